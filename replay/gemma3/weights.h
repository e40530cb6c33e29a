// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3's weights, packed for the kernels. Tensor names are those of
// transformers, under "model.", "language_model.model." or
// "model.language_model.".

#ifndef TORPOR_REPLAY_GEMMA3_WEIGHTS_H_
#define TORPOR_REPLAY_GEMMA3_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "replay/gemma3/config.h"
#include "replay/safetensors.h"

namespace torpor::replay::gemma3 {

struct LayerWeights {
  // [hidden]; applied as 1 + w.
  std::vector<float> input_norm;
  std::vector<float> post_attention_norm;
  std::vector<float> pre_feedforward_norm;
  std::vector<float> post_feedforward_norm;
  // [head_dim]
  std::vector<float> q_norm;
  std::vector<float> k_norm;
  // [n_heads * head_dim, hidden] and its bias (empty when there is none)
  kernels::PackedMatrix q;
  std::vector<float> q_bias;
  // K's rows, then V's: [2 * n_kv_heads * head_dim, hidden]
  kernels::PackedMatrix kv;
  std::vector<float> kv_bias;
  // [hidden, n_heads * head_dim]
  kernels::PackedMatrix o;
  std::vector<float> o_bias;
  // gate's rows, then up's: [2 * intermediate, hidden]
  kernels::PackedMatrix gate_up;
  // [hidden, intermediate]
  kernels::PackedMatrix down;
};

struct Weights {
  kernels::DType dtype = kernels::DType::kF32;
  // [vocab, hidden] as the file has it; valid as long as the tensors.
  TensorView embedding;
  // sqrt(hidden), rounded to the compute dtype as transformers does.
  float embedding_scale = 0;
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;
  // [vocab, hidden]
  kernels::PackedMatrix head;
  // Hex digest over all of it, for the fingerprint.
  std::string digest;
};

// kNotFound names a missing tensor, kInvalidArgument one of another shape or
// dtype (BF16 and F32 are read).
absl::StatusOr<Weights> LoadWeights(const Config& config,
                                    const ModelTensors& tensors,
                                    kernels::DType compute_dtype);

// The dtype of the embedding, which names that of the model.
absl::StatusOr<kernels::DType> StoredDType(const ModelTensors& tensors);

}  // namespace torpor::replay::gemma3

#endif  // TORPOR_REPLAY_GEMMA3_WEIGHTS_H_
