// SPDX-License-Identifier: Apache-2.0
//
// Quantised weights to rows, and activations as a quantised GEMM sees them
// (DeepSeek V4.1's release: E4M3 with a UE8M0 scale per block of rows and
// columns, 32x32 or 1x32; routed experts packed E2M1 with a UE8M0 scale per 32
// columns). The same bits on every path; kernels/small_float.h has the types.

#ifndef TORPOR_KERNELS_WEIGHT_CODEC_H_
#define TORPOR_KERNELS_WEIGHT_CODEC_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

enum class WeightFormat : uint8_t { kFp8, kFp4 };

// value = code * scale, exact and limited as kernels/row_codec.h says of
// decoding.
struct DecodeWeightsParams {
  WeightFormat format = WeightFormat::kFp8;
  // kFp8: [n_rows, dim] E4M3. kFp4: [n_rows, dim / 2], two E2M1 a byte, the
  // even column's in the low nibble. Any alignment, `codes_stride` bytes apart.
  const uint8_t* codes = nullptr;
  int64_t codes_stride = 0;
  // [ceil(n_rows / block_rows), ceil(dim / block_columns)] UE8M0,
  // `scales_stride` bytes apart: a scale covers block_rows x block_columns.
  const uint8_t* scales = nullptr;
  int64_t scales_stride = 0;
  int64_t block_rows = 1;
  // REQUIRES: a multiple of 16.
  int64_t block_columns = 32;
  int64_t n_rows = 0;
  // REQUIRES: a multiple of 16.
  int64_t dim = 0;
  // [n_rows, dim] of `out_dtype`, `out_stride` elements apart.
  void* out = nullptr;
  int64_t out_stride = 0;
  DType out_dtype = DType::kF32;
};

// x = decode(encode(x)) in place, as RowFormat::kWindowFp8 has it: E4M3 with a
// UE8M0 scale per 32 channels, amax at least 1e-4.
struct FakeQuantFp8Params {
  // [n_rows, dim] f32, `x_stride` floats apart. REQUIRES: dim a multiple of 32.
  float* x = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  int64_t x_stride = 0;
};

void DecodeWeightsRef(const DecodeWeightsParams& params);
void FakeQuantFp8Ref(const FakeQuantFp8Params& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_WEIGHT_CODEC_H_
