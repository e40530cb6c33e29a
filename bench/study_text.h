// SPDX-License-Identifier: Apache-2.0
//
// What a study feeds a model: text of its own kind as token ids, from a file
// or, where there is none, sampled from the model itself.

#ifndef TORPOR_BENCH_STUDY_TEXT_H_
#define TORPOR_BENCH_STUDY_TEXT_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "replay/model.h"

namespace torpor::bench {

struct StudyText {
  // Where it comes from, for the results to say.
  std::string source;
  // Its tokens are bytes.
  bool bytes = false;
  // Begins every session, where the model wants such a token.
  std::optional<uint32_t> begin;
  std::vector<std::vector<uint32_t>> documents;

  [[nodiscard]] uint64_t n_tokens() const;
};

struct TextRequest {
  // A file of token ids in decimal, with anything between them; empty = none.
  std::string ids_file;
  // Fed as bytes to a model whose vocabulary is 256 tokens; empty = none.
  std::string bytes_file;
  // The model's, for its bos_token_id.
  std::string config_json;
  // Tokens of a document that is sampled.
  uint64_t n_sampled = 0;
  uint64_t seed = 1;
};

// kInvalidArgument for an id outside the vocabulary.
absl::StatusOr<StudyText> TextFor(replay::Model* model,
                                  const TextRequest& request,
                                  const Common& common);

// Tokens of draw i of n: `length`, the beginning one included, from an offset
// at random within the i-th of n equal parts of the documents, so that draws
// spread over all of the text.
// kInvalidArgument when no document is as long.
absl::StatusOr<std::vector<uint32_t>> DrawText(const StudyText& text,
                                               uint64_t i, uint64_t n,
                                               uint64_t length,
                                               std::mt19937_64* random);

// A value in [0, n), n > 0; the same on every machine.
inline uint64_t Below(std::mt19937_64* random, uint64_t n) {
  return (*random)() % n;
}

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_STUDY_TEXT_H_
