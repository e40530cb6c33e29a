// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3's weights in a backend's memory. Tensor names are those of
// transformers, under "model.", "language_model.model." or
// "model.language_model.".

#ifndef TORPOR_REPLAY_GEMMA3_WEIGHTS_H_
#define TORPOR_REPLAY_GEMMA3_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/gemma3/config.h"
#include "replay/kv_weights.h"
#include "replay/safetensors.h"

namespace torpor::replay::gemma3 {

struct LayerWeights {
  explicit LayerWeights(kernels::Ops* ops)
      : attention(ops),
        post_attention_norm(ops),
        pre_feedforward_norm(ops),
        post_feedforward_norm(ops) {}

  AttentionWeights attention;
  // [hidden]; applied, as every norm's, as 1 + w.
  Floats post_attention_norm;
  Floats pre_feedforward_norm;
  Floats post_feedforward_norm;
  // gate's rows, then up's: [2 * intermediate, hidden]
  kernels::PackedMatrix gate_up;
  // [hidden, intermediate]
  kernels::PackedMatrix down;
};

struct Weights {
  explicit Weights(kernels::Ops* ops) : outer(ops) {}

  // The embedding's scale is sqrt(hidden), rounded to the compute dtype as
  // transformers does.
  OuterWeights outer;
  std::vector<LayerWeights> layers;
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
