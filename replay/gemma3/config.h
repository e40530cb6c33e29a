// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3 (text): what its config.json says. Reads model_type gemma3_text, and
// gemma3 with a nested text_config, in the spellings of transformers 4.50 to
// 5.x; defaults are those of transformers' Gemma3TextConfig.

#ifndef TORPOR_REPLAY_GEMMA3_CONFIG_H_
#define TORPOR_REPLAY_GEMMA3_CONFIG_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "replay/layouts/attention_stack.h"
#include "replay/model_layout.h"

namespace torpor::replay::gemma3 {

// Rotary embedding of one kind of layer.
struct Rope {
  double theta = 0;
  // Positions are divided by it; 1 = none.
  double linear_factor = 1;
};

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t sliding_window = 0;
  int64_t max_positions = 0;
  double query_pre_attn_scalar = 0;
  double rms_norm_eps = 0;
  // 0 = none.
  double final_softcap = 0;
  bool attention_bias = false;
  bool tied_embeddings = true;
  // Per layer.
  std::vector<bool> is_sliding;
  Rope full_rope;
  Rope sliding_rope;
  // What config.json names: "bf16", "f16", "f32", another name as it stands
  // there, or empty.
  std::string dtype;
  // Nested in a multimodal config.
  bool nested = false;
};

// kInvalidArgument names the key; kFailedPrecondition for bidirectional
// attention; kUnimplemented for rope types without a forward here.
absl::StatusOr<Config> ParseConfig(const nlohmann::json& config);

layouts::AttentionStack StackOf(const Config& config);

// Slots "layer.N.k" and "layer.N.v", rows [n_kv_heads, head_dim].
ModelLayout LayoutOf(const Config& config, kernels::DType kv_dtype);

// The rope variant as the fingerprint names it.
std::string RopeName(const Config& config);

}  // namespace torpor::replay::gemma3

#endif  // TORPOR_REPLAY_GEMMA3_CONFIG_H_
