// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3's weights in a backend's memory. Tensor names are those of
// transformers, under "model.", "language_model.model." or
// "model.language_model.".

#ifndef TORPOR_REPLAY_GEMMA3_WEIGHTS_H_
#define TORPOR_REPLAY_GEMMA3_WEIGHTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/gemma3/config.h"
#include "replay/safetensors.h"

namespace torpor::replay::gemma3 {

using Floats = kernels::Buffer<float>;

struct LayerWeights {
  explicit LayerWeights(kernels::Ops* ops)
      : input_norm(ops),
        post_attention_norm(ops),
        pre_feedforward_norm(ops),
        post_feedforward_norm(ops),
        q_norm(ops),
        k_norm(ops),
        q_bias(ops),
        kv_bias(ops),
        o_bias(ops) {}

  // [hidden]; applied as 1 + w.
  Floats input_norm;
  Floats post_attention_norm;
  Floats pre_feedforward_norm;
  Floats post_feedforward_norm;
  // [head_dim]
  Floats q_norm;
  Floats k_norm;
  // [n_heads * head_dim, hidden] and its bias (empty when there is none)
  kernels::PackedMatrix q;
  Floats q_bias;
  // K's rows, then V's: [2 * n_kv_heads * head_dim, hidden]
  kernels::PackedMatrix kv;
  Floats kv_bias;
  // [hidden, n_heads * head_dim]
  kernels::PackedMatrix o;
  Floats o_bias;
  // gate's rows, then up's: [2 * intermediate, hidden]
  kernels::PackedMatrix gate_up;
  // [hidden, intermediate]
  kernels::PackedMatrix down;
};

struct Weights {
  explicit Weights(kernels::Ops* ops) : final_norm(ops) {}

  kernels::DType dtype = kernels::DType::kF32;
  // [vocab, hidden] as the file has it; valid as long as the tensors.
  std::shared_ptr<const uint8_t> embedding;
  kernels::DType embedding_dtype = kernels::DType::kF32;
  // sqrt(hidden), rounded to the compute dtype as transformers does.
  float embedding_scale = 0;
  std::vector<LayerWeights> layers;
  Floats final_norm;
  // [vocab, hidden]
  kernels::PackedMatrix head;
  // Hex digest over all of it, for the fingerprint.
  std::string digest;
};

// kNotFound names a missing tensor, kInvalidArgument one of another shape or
// dtype (BF16 and F32 are read). `ops` outlives the weights.
absl::StatusOr<Weights> LoadWeights(const Config& config,
                                    const ModelTensors& tensors,
                                    kernels::DType compute_dtype,
                                    kernels::Ops* ops);

// The dtype of the embedding, which names that of the model.
absl::StatusOr<kernels::DType> StoredDType(const ModelTensors& tensors);

}  // namespace torpor::replay::gemma3

#endif  // TORPOR_REPLAY_GEMMA3_WEIGHTS_H_
