// SPDX-License-Identifier: Apache-2.0
//
// Element-wise ops: the gated GELU of Gemma's MLP, the clamped gated SiLU of
// DeepSeek's and gpt-oss' experts, sums, softcap, scaling, and rounding rows to
// bf16, as the next GEMM wants them or in place.

#ifndef TORPOR_KERNELS_ACTIVATION_H_
#define TORPOR_KERNELS_ACTIVATION_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

// out = gelu_tanh(gate) * up.
struct GatedGeluParams {
  // [n_rows, 2 * dim] f32: gate, then up.
  const float* gate_up = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  // [n_rows, dim] of `out_dtype`.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
};

// out = g * sigmoid(slope * g) * (clamp(up, -limit, limit) + up_offset) *
// row_weight, g = min(gate, limit).
struct GatedSiluParams {
  // [n_rows, 2 * dim] f32: gate, then up.
  const float* gate_up = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  // 0 = none.
  float limit = 0.0f;
  // [n_rows] f32; null = 1.
  const float* row_weight = nullptr;
  // [n_rows, dim] of `out_dtype`.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  // 1 = SiLU.
  float slope = 1.0f;
  float up_offset = 0.0f;
};

// x = x + y, in place. Floor: both read once, x written once.
struct AddParams {
  float* x = nullptr;
  const float* y = nullptr;
  int64_t n = 0;
};

// x = cap * tanh(x / cap), in place.
struct SoftcapParams {
  float* x = nullptr;
  int64_t n = 0;
  float cap = 0.0f;
};

// Rounds to nearest even; NaN stays NaN.
struct ToBf16Params {
  const float* x = nullptr;
  int64_t n = 0;
  Bf16* out = nullptr;
};

// x = the nearest value that a bf16 holds, in place; as ToBf16 rounds. Floor:
// each value read once and written once.
struct RoundBf16Params {
  float* x = nullptr;
  int64_t n = 0;
};

// x = x * factor, in place. Floor: likewise.
struct ScaleParams {
  float* x = nullptr;
  int64_t n = 0;
  float factor = 1.0f;
};

void GatedGeluRef(const GatedGeluParams& params);
void GatedSiluRef(const GatedSiluParams& params);
void AddRef(const AddParams& params);
void SoftcapRef(const SoftcapParams& params);
void ToBf16Ref(const ToBf16Params& params);
void RoundBf16Ref(const RoundBf16Params& params);
void ScaleRef(const ScaleParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ACTIVATION_H_
