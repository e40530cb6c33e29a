// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's weights in a backend's memory, the Engram tables in the
// host's. Tensor names are the release's ("layers.N.attn.wq_a.weight" ...), at
// the root or under "model."; dtypes the release's (FP8 with a UE8M0 scale per
// 32x32, packed FP4 for routed experts, BF16, F32) or BF16 and F32 throughout.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu_ops.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/deepseek_v41/config.h"
#include "replay/safetensors.h"

namespace torpor::replay::deepseek_v41 {

using Floats = kernels::Buffer<float>;

struct Linear {
  kernels::PackedMatrix w;
  // The release multiplies such a layer's FP8 or FP4 weights with inputs that
  // are rounded to FP8 with a scale per 32 channels.
  bool quantised_input = false;
};

// Single-pass mHC of one site; S streams of hidden_size.
struct HyperWeights {
  explicit HyperWeights(kernels::Ops* ops) : base(ops), scale(ops) {}

  Linear fn;     // [S * (2 + S), S * hidden]
  Floats base;   // [S * (2 + S)]
  Floats scale;  // [3]
};

struct AttentionWeights {
  explicit AttentionWeights(kernels::Ops* ops)
      : norm(ops), q_norm(ops), kv_norm(ops), sinks(ops) {}

  Floats norm;     // [hidden]
  Linear wq_a;     // [q_rank, hidden]
  Floats q_norm;   // [q_rank]
  Linear wq_b;     // [n_heads * head_dim, q_rank]
  Linear wkv;      // [head_dim, hidden]
  Floats kv_norm;  // [head_dim]
  // Per group: [o_rank, n_heads * head_dim / o_groups].
  std::vector<Linear> wo_a;
  Linear wo_b;   // [hidden, o_groups * o_rank]
  Floats sinks;  // [n_heads]
};

// Of KV sources.
struct CompressorWeights {
  explicit CompressorWeights(kernels::Ops* ops) : norm(ops), k_norm(ops) {}

  Linear wkv;                  // [head_dim, hidden]
  std::optional<Linear> gate;  // the same; ratio above 1
  Floats norm;                 // [head_dim]
  Linear wk;                   // [index_dim, head_dim]
  Floats k_norm;               // [index_dim]
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
  explicit FfnWeights(kernels::Ops* ops) : norm(ops), bias(ops) {}

  Floats norm;    // [hidden]
  Linear router;  // [n_experts, hidden]
  Floats bias;    // [n_experts]; chooses, does not weigh
  // Of one dtype and all quantised or none.
  std::vector<ExpertWeights> experts;
  std::optional<ExpertWeights> shared;
};

struct EngramWeights {
  explicit EngramWeights(kernels::Ops* ops) : qk(ops) {}

  // [rows, head_dim] FP8 with `scale` [rows, head_dim / 32], or BF16 or F32.
  TensorView table;
  TensorView scale;
  Linear wkv;  // [(S + 1) * hidden, n_rows * head_dim]: S keys, then a value
  // q_weight * k_weight: [S, hidden]
  Floats qk;
};

struct LayerWeights {
  explicit LayerWeights(kernels::Ops* ops)
      : attn_hc(ops), attn(ops), ffn_hc(ops), ffn(ops) {}

  std::optional<EngramWeights> engram;
  HyperWeights attn_hc;
  AttentionWeights attn;
  std::optional<CompressorWeights> compressor;
  std::optional<IndexerWeights> indexer;
  HyperWeights ffn_hc;
  FfnWeights ffn;
};

struct Weights {
  explicit Weights(kernels::Ops* ops) : norm(ops) {}

  kernels::DType dtype = kernels::DType::kF32;
  // [vocab, hidden] as the file has it; valid as long as the tensors.
  std::shared_ptr<const uint8_t> embedding;
  kernels::DType embedding_dtype = kernels::DType::kF32;
  std::vector<LayerWeights> layers;
  Floats norm;  // [hidden]
  Linear head;  // [vocab, hidden]
  // Hex digest over all of it and over engram.json, for the fingerprint.
  std::string digest;
};

// kNotFound names a missing tensor, kInvalidArgument one of another shape or
// dtype, or a layer whose experts are not alike. Matrices that the release
// keeps in F32 stay so under any compute dtype. `host` decodes quantised
// weights, the same values on every path. `ops` outlives the weights.
absl::StatusOr<Weights> LoadWeights(const Config& config,
                                    const ModelTensors& tensors,
                                    std::string_view engram_json,
                                    kernels::DType compute_dtype,
                                    kernels::CpuOps* host, kernels::Ops* ops);

// The dtype of the embedding, which names that of the model.
absl::StatusOr<kernels::DType> StoredDType(const ModelTensors& tensors);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_WEIGHTS_H_
