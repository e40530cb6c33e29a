// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss: what its config.json says, as transformers 5.24's GptOssConfig reads
// it, defaults included. Keys of training and of generation are not read.

#ifndef TORPOR_REPLAY_GPT_OSS_CONFIG_H_
#define TORPOR_REPLAY_GPT_OSS_CONFIG_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/rope.h"
#include "replay/layouts/attention_stack.h"
#include "replay/model_layout.h"

namespace torpor::replay::gpt_oss {

struct Rope {
  double theta = 0;
  // None: the plain rope.
  std::optional<kernels::YarnParams> yarn;
  // cos and sin are multiplied by it.
  double attention_factor = 1.0;
};

struct Config {
  // Vocabulary, positions, and the layers: full or sliding, of equal heads.
  layouts::AttentionStack stack;
  int64_t hidden_size = 0;
  // Of an expert.
  int64_t intermediate_size = 0;
  int64_t n_heads = 0;
  int64_t n_experts = 0;
  // Experts of a row.
  int64_t n_active = 0;
  double rms_norm_eps = 0;
  double swiglu_alpha = 0;
  double swiglu_limit = 0;
  bool attention_bias = true;
  bool tied_embeddings = false;
  Rope rope;
  // What config.json names: "bf16", "f16", "f32", another name as it stands
  // there, or empty.
  std::string dtype;

  [[nodiscard]] int64_t n_layers() const {
    return static_cast<int64_t>(stack.layers.size());
  }
  [[nodiscard]] int64_t n_kv_heads() const {
    return stack.layers[0].n_kv_heads;
  }
  [[nodiscard]] int64_t head_dim() const { return stack.layers[0].k_dim; }
};

// kInvalidArgument names the key, or the keys that contradict each other;
// kUnimplemented what has no forward here.
absl::StatusOr<Config> ParseConfig(const nlohmann::json& config);

// Slots "layer.N.k" and "layer.N.v", rows [n_kv_heads, head_dim].
// kInvalidArgument names the keys of rows that would not fit a layout.
absl::StatusOr<ModelLayout> LayoutOf(const Config& config,
                                     kernels::DType kv_dtype);

// The rope variant as the fingerprint names it.
std::string RopeName(const Config& config);

}  // namespace torpor::replay::gpt_oss

#endif  // TORPOR_REPLAY_GPT_OSS_CONFIG_H_
