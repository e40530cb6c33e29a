// SPDX-License-Identifier: Apache-2.0
//
// A Gemma 3 of random weights, written as Hugging Face stores one.

#ifndef TORPOR_TESTS_GPU_CHECK_MADE_UP_MODEL_H_
#define TORPOR_TESTS_GPU_CHECK_MADE_UP_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace torpor::gpu_check {

struct MadeUpShape {
  int64_t n_layers = 0;
  // Each layer whose number, counted from 1, this divides sees all tokens.
  int64_t full_every = 0;
  int64_t hidden = 0;
  int64_t mlp = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;
  int64_t vocab = 0;
};

// Gemma 3 270M's, but for the vocabulary: 32,768 of 262,144, since a replay
// reads embeddings of its tokens alone and no head.
MadeUpShape Gemma270M();
// For an emulator.
MadeUpShape TinyGemma();

// config.json and model.safetensors in bf16 into a directory that is there.
// kUnavailable when it cannot be written.
absl::Status WriteMadeUpModel(const MadeUpShape& shape,
                              const std::string& directory);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_MADE_UP_MODEL_H_
