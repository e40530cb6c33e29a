// SPDX-License-Identifier: Apache-2.0
//
// y = x / sqrt(mean(x^2) + eps) * (offset + weight), a row at a time, in f32.
// Gemma multiplies by 1 + weight (offset 1), others by weight (offset 0).
// Order: 16 partial sums over ascending lanes, folded by halves, then the
// ragged end. Floor: reads and writes each row once.

#ifndef TORPOR_KERNELS_RMS_NORM_H_
#define TORPOR_KERNELS_RMS_NORM_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

// What happens to a row of results.
enum class RowSink : uint8_t {
  kStoreF32,
  kStoreBf16,
  // out (f32) += result.
  kAddF32,
};

struct RmsNormParams {
  const float* x = nullptr;  // [n_rows, dim] f32, `x_stride` apart
  int64_t n_rows = 0;
  int64_t dim = 0;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [dim] f32
  float offset = 0.0f;
  float eps = 0.0f;
  void* out = nullptr;  // [n_rows, dim] of the sink's type, `out_stride` apart
  int64_t out_stride = 0;
  RowSink sink = RowSink::kStoreF32;
};

void RmsNormRef(const RmsNormParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RMS_NORM_H_
