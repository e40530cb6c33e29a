// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's config.json (the release's keys and those of transformers)
// and engram.json. Names follow the model: mHC streams, compressors, index and
// candidate sources, Engram.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_CONFIG_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_CONFIG_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/rope.h"
#include "replay/model_layout.h"

namespace torpor::replay::deepseek_v41 {

// What one layer does beside its window.
struct LayerConfig {
  // Tokens of a compressed entry; 0 = the layer reads none.
  int64_t ratio = 0;
  // The layer whose entries it reads and the one that chooses them; -1 = none.
  int64_t kv_source = -1;
  int64_t index_source = -1;
  bool is_kv_source = false;
  bool is_index_source = false;
  // It chooses inside the candidate blocks of the candidate source.
  bool uses_candidates = false;
  // Which of the Engram tables stands before it; -1 = none.
  int64_t engram = -1;
};

// Compressed ids of Engram at most: with more, NumPy would draw multipliers by
// another method than NumpyRandom.
inline constexpr int64_t kMostCompressedIds = (int64_t{1} << 30) - 1;

struct EngramConfig {
  // Tokens of the longest n-gram; orders 2 .. max_ngram.
  int64_t max_ngram = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  // The tables' sizes are the first primes of at least this.
  int64_t base_vocab = 0;
  // Compressed ids; 0 = engram.json alone says it.
  int64_t compressed_vocab = 0;

  [[nodiscard]] int64_t n_orders() const { return max_ngram - 1; }
  // Rows of the table that a token reads.
  [[nodiscard]] int64_t n_rows() const { return n_orders() * n_heads; }
};

struct Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  int64_t q_rank = 0;
  int64_t o_groups = 0;
  int64_t o_rank = 0;
  int64_t window = 0;
  double norm_eps = 0;

  std::vector<LayerConfig> layers;

  int64_t index_heads = 0;
  int64_t index_dim = 0;
  int64_t index_topk = 0;
  // -1 = no hierarchy.
  int64_t candidate_source = -1;
  int64_t candidate_blocks = 0;
  int64_t candidate_block_size = 0;

  int64_t n_experts = 0;
  int64_t n_active = 0;
  int64_t n_shared = 0;
  int64_t expert_dim = 0;
  double routed_scale = 0;
  double gate_temperature = 0;
  // 0 = none.
  double swiglu_limit = 0;

  int64_t n_streams = 0;
  int64_t sinkhorn_iterations = 0;
  double hc_eps = 0;

  double rope_theta = 0;
  double compress_theta = 0;
  kernels::YarnParams yarn;

  EngramConfig engram;
  // Layers with an Engram, ascending; the rows of their tables.
  std::vector<int64_t> engram_layers;
  std::vector<int64_t> engram_rows;
  int64_t engram_pad_id = 0;

  // Last layer that writes compressed rows; -1 = none.
  [[nodiscard]] int64_t LastSource() const;
};

// kInvalidArgument names the key; kUnimplemented for what no forward here does.
absl::StatusOr<Config> ParseConfig(const nlohmann::json& config);

// Slots layer.N.window, .main, .index, .open; no draft windows, since this
// forward runs no draft layers. Rows are the family's own records, whatever the
// dtype of the rest: their rounding is part of the model.
absl::StatusOr<ModelLayout> LayoutOf(const nlohmann::json& config);

// The rope variant as the fingerprint names it.
std::string RopeName(const Config& config);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_CONFIG_H_
