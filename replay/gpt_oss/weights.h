// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss' weights in a backend's memory. Tensor names are those of
// transformers, under "model." or at the root. Experts are BF16 or F32
// ("gate_up_proj" [experts, hidden, 2 * intermediate], gate and up in turns),
// or the release's MXFP4: "gate_up_proj_blocks" [experts, 2 * intermediate,
// hidden / 32, 16], two E2M1 a byte, and "gate_up_proj_scales" [experts, 2 *
// intermediate, hidden / 32] E8M0, both U8; "down_proj" likewise.

#ifndef TORPOR_REPLAY_GPT_OSS_WEIGHTS_H_
#define TORPOR_REPLAY_GPT_OSS_WEIGHTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu_ops.h"
#include "kernels/gemm.h"
#include "kernels/ops.h"
#include "replay/gpt_oss/config.h"
#include "replay/kv_weights.h"
#include "replay/safetensors.h"

namespace torpor::replay::gpt_oss {

struct ExpertWeights {
  explicit ExpertWeights(kernels::Ops* ops)
      : norm(ops), router_bias(ops), gate_up_bias(ops), down_bias(ops) {}

  Floats norm;                   // [hidden]
  kernels::PackedMatrix router;  // [n_experts, hidden]
  Floats router_bias;            // [n_experts]
  // Of each expert: gate's rows, then up's, [2 * intermediate, hidden].
  std::vector<kernels::PackedMatrix> gate_up;
  Floats gate_up_bias;  // [n_experts, 2 * intermediate]: gate, then up
  std::vector<kernels::PackedMatrix> down;  // [hidden, intermediate]
  Floats down_bias;                         // [n_experts, hidden]
};

struct LayerWeights {
  explicit LayerWeights(kernels::Ops* ops) : attention(ops), experts(ops) {}

  AttentionWeights attention;
  ExpertWeights experts;
};

struct Weights {
  explicit Weights(kernels::Ops* ops) : outer(ops) {}

  OuterWeights outer;
  std::vector<LayerWeights> layers;
  // Hex digest over all of it, for the fingerprint.
  std::string digest;
};

// kNotFound names a missing tensor, kInvalidArgument one of another shape or
// dtype. `host` decodes MXFP4. `ops` outlives the weights.
absl::StatusOr<Weights> LoadWeights(const Config& config,
                                    const ModelTensors& tensors,
                                    kernels::DType compute_dtype,
                                    kernels::CpuOps* host, kernels::Ops* ops);

// The dtype of the embedding, which names that of the model.
absl::StatusOr<kernels::DType> StoredDType(const ModelTensors& tensors);

}  // namespace torpor::replay::gpt_oss

#endif  // TORPOR_REPLAY_GPT_OSS_WEIGHTS_H_
