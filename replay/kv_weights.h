// SPDX-License-Identifier: Apache-2.0
//
// Weights that families with K and V rows per token share, in a backend's
// memory: what stands before and behind the layers, and a layer's attention.
// Names of tensors are those of transformers.

#ifndef TORPOR_REPLAY_KV_WEIGHTS_H_
#define TORPOR_REPLAY_KV_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/activations.h"
#include "replay/tensor_loader.h"

namespace torpor::replay {

// Tensors of a TensorLoader, put where `ops` reads them. Both outlive it.
class WeightReader {
 public:
  WeightReader(TensorLoader* loader, kernels::DType dtype, kernels::Ops* ops)
      : loader_(*loader), dtype_(dtype), ops_(*ops) {}

  [[nodiscard]] TensorLoader& tensors() { return loader_; }
  // What matrices are rounded to.
  [[nodiscard]] kernels::DType dtype() const { return dtype_; }
  [[nodiscard]] kernels::Ops* ops() { return &ops_; }

  // As the loader's of the same names.
  absl::StatusOr<Floats> Vector(const std::string& name, int64_t n);
  absl::StatusOr<Floats> Table(const std::string& name, int64_t n,
                               int64_t columns);
  absl::StatusOr<Floats> Bias(const std::vector<TensorLoader::Part>& parts);
  absl::StatusOr<kernels::PackedMatrix> Matrix(
      const std::vector<TensorLoader::Part>& parts, int64_t columns);

 private:
  TensorLoader& loader_;
  const kernels::DType dtype_;
  kernels::Ops& ops_;
};

struct OuterWeights {
  explicit OuterWeights(kernels::Ops* ops) : final_norm(ops) {}

  // Of the matrices.
  kernels::DType dtype = kernels::DType::kF32;
  // [vocab, hidden] as the file has it; valid as long as the tensors.
  std::shared_ptr<const uint8_t> embedding;
  kernels::DType embedding_dtype = kernels::DType::kF32;
  float embedding_scale = 1.0f;
  Floats final_norm;  // [hidden]
  // [vocab, hidden]
  kernels::PackedMatrix head;
};

inline constexpr char kEmbedding[] = "embed_tokens.weight";

// Of the embedding under the first of `prefixes` that has one; kNotFound.
absl::StatusOr<kernels::DType> EmbeddingDType(
    const ModelTensors& tensors, std::span<const char* const> prefixes);

// embed_tokens, norm and lm_head, which is embed_tokens where they are tied.
absl::StatusOr<OuterWeights> LoadOuterWeights(int64_t vocab_size,
                                              int64_t hidden_size, bool tied,
                                              WeightReader* reader);

struct AttentionWeights {
  explicit AttentionWeights(kernels::Ops* ops)
      : norm(ops),
        q_norm(ops),
        k_norm(ops),
        q_bias(ops),
        kv_bias(ops),
        o_bias(ops),
        sinks(ops) {}

  Floats norm;  // [hidden]
  // [head_dim]; empty where heads are not normed.
  Floats q_norm;
  Floats k_norm;
  // [n_heads * head_dim, hidden] and its bias, empty when there is none
  kernels::PackedMatrix q;
  Floats q_bias;
  // K's rows, then V's: [2 * n_kv_heads * head_dim, hidden]
  kernels::PackedMatrix kv;
  Floats kv_bias;
  // [hidden, n_heads * head_dim]
  kernels::PackedMatrix o;
  Floats o_bias;
  Floats sinks;  // [n_heads]; empty when there are none
};

struct AttentionWeightsShape {
  int64_t hidden_size = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;
  int64_t head_dim = 0;
  bool biases = false;
  bool head_norms = false;
  bool sinks = false;
};

// Of the layer whose names begin with `at`.
absl::StatusOr<AttentionWeights> LoadAttentionWeights(
    const AttentionWeightsShape& shape, const std::string& at,
    WeightReader* reader);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_KV_WEIGHTS_H_
