// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's weights, packed for the kernels. Tensor names are the
// release's ("layers.N.attn.wq_a.weight" ...), at the root or under "model.";
// dtypes the release's (FP8 with a UE8M0 scale per 32x32, packed FP4 for routed
// experts, BF16, F32) or BF16 and F32 throughout.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu_ops.h"
#include "kernels/gemm.h"
#include "replay/deepseek_v41/config.h"
#include "replay/safetensors.h"

namespace torpor::replay::deepseek_v41 {

struct Linear {
  kernels::PackedMatrix w;
  // The release multiplies such a layer's FP8 or FP4 weights with inputs that
  // are rounded to FP8 with a scale per 32 channels.
  bool quantised_input = false;
};

// Single-pass mHC of one site; S streams of hidden_size.
struct HyperWeights {
  Linear fn;                 // [S * (2 + S), S * hidden]
  std::vector<float> base;   // [S * (2 + S)]
  std::vector<float> scale;  // [3]
};

struct AttentionWeights {
  std::vector<float> norm;     // [hidden]
  Linear wq_a;                 // [q_rank, hidden]
  std::vector<float> q_norm;   // [q_rank]
  Linear wq_b;                 // [n_heads * head_dim, q_rank]
  Linear wkv;                  // [head_dim, hidden]
  std::vector<float> kv_norm;  // [head_dim]
  // Per group: [o_rank, n_heads * head_dim / o_groups].
  std::vector<Linear> wo_a;
  Linear wo_b;               // [hidden, o_groups * o_rank]
  std::vector<float> sinks;  // [n_heads]
};

// Of KV sources.
struct CompressorWeights {
  Linear wkv;                  // [head_dim, hidden]
  std::optional<Linear> gate;  // the same; ratio above 1
  std::vector<float> norm;     // [head_dim]
  Linear wk;                   // [index_dim, head_dim]
  std::vector<float> k_norm;   // [index_dim]
};

// Of index sources.
struct IndexerWeights {
  Linear wq_b;          // [index_heads * index_dim, q_rank]
  Linear weights_proj;  // [index_heads, hidden]
};

struct ExpertWeights {
  // w1's rows, then w3's: [2 * expert_dim, hidden]
  Linear gate_up;
  Linear down;  // [hidden, expert_dim]
};

struct FfnWeights {
  std::vector<float> norm;  // [hidden]
  Linear router;            // [n_experts, hidden]
  std::vector<float> bias;  // [n_experts]; chooses, does not weigh
  std::vector<ExpertWeights> experts;
  std::optional<ExpertWeights> shared;
};

struct EngramWeights {
  // [rows, head_dim] FP8 with `scale` [rows, head_dim / 32], or BF16 or F32.
  TensorView table;
  TensorView scale;
  Linear wkv;  // [(S + 1) * hidden, n_rows * head_dim]: S keys, then a value
  // q_weight * k_weight: [S, hidden]
  std::vector<float> qk;
};

struct LayerWeights {
  std::optional<EngramWeights> engram;
  HyperWeights attn_hc;
  AttentionWeights attn;
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  HyperWeights ffn_hc;
  FfnWeights ffn;
};

struct Weights {
  kernels::DType dtype = kernels::DType::kF32;
  TensorView embedding;  // [vocab, hidden], BF16 or F32
  std::vector<LayerWeights> layers;
  std::vector<float> norm;  // [hidden]
  Linear head;              // [vocab, hidden]
  // Hex digest over all of it and over engram.json, for the fingerprint.
  std::string digest;
};

// kNotFound names a missing tensor, kInvalidArgument one of another shape or
// dtype. Matrices that the release keeps in F32 stay so under any compute
// dtype. `ops` decodes quantised weights, the same values on every path.
absl::StatusOr<Weights> LoadWeights(const Config& config,
                                    const ModelTensors& tensors,
                                    std::string_view engram_json,
                                    kernels::DType compute_dtype,
                                    kernels::CpuOps* ops);

// The dtype of the embedding, which names that of the model.
absl::StatusOr<kernels::DType> StoredDType(const ModelTensors& tensors);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_
