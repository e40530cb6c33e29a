// SPDX-License-Identifier: Apache-2.0
//
// Prefill and decode of this process against llama.cpp's llama-bench, a binary
// that is given: same weights and dtype, same number of threads, round by round
// in turn.

#ifndef TORPOR_BENCH_PEER_H_
#define TORPOR_BENCH_PEER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"
#include "service/cli/engine_options.h"

namespace torpor::bench {

struct PeerOptions {
  // config.json and safetensors; the GGUF file holds the same values.
  std::string model_dir;
  std::string llama_bench;
  std::string gguf;
  service::cli::EngineOptions engine;
  // Tokens of a prefill.
  std::vector<uint64_t> prefill = {512, 2'048, 8'192};
  // Tokens before those that are decoded.
  std::vector<uint64_t> decode_at = {0, 4'096};
  int rounds = 3;
};

// Tokens/s, medians; the peer's better of flash attention on and off. Before
// timing, tokens that were decoded one by one are held against the same tokens
// prefilled, to the bit. Rows that say "not measured" when a path is empty.
absl::StatusOr<std::vector<LimitRow>> MeasurePeer(const PeerOptions& options,
                                                  const Common& common);

// --model, --llama-bench, --gguf and what is measured.
void AddPeerOptions(CLI::App* app, PeerOptions* options);
RunBenchmark AddPeerCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_PEER_H_
