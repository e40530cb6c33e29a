// SPDX-License-Identifier: Apache-2.0

#include "kernels/weight_codec.h"

#include <bit>
#include <cmath>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/row_codec.h"
#include "kernels/small_float.h"

namespace torpor::kernels {

void DecodeWeightsRef(const DecodeWeightsParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const uint8_t* codes = p.codes + row * p.codes_stride;
    const uint8_t* scales = p.scales + row / p.block_rows * p.scales_stride;
    for (int64_t i = 0; i < p.dim; ++i) {
      const float code =
          p.format == WeightFormat::kFp8
              ? E4m3ToFloat(codes[i])
              : E2m1ToFloat(static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4)));
      float value = code * Ue8m0ToFloat(scales[i / p.block_columns]);
      if (std::isnan(value)) value = std::bit_cast<float>(kDecodedNanBits);
      const int64_t at = row * p.out_stride + i;
      if (p.out_dtype == DType::kF32) {
        static_cast<float*>(p.out)[at] = value;
      } else {
        static_cast<Bf16*>(p.out)[at] = ToBf16(value);
      }
    }
  }
}

void FakeQuantFp8Ref(const FakeQuantFp8Params& p) {
  const int64_t bytes = RowBytes(RowFormat::kWindowFp8, p.dim, 0);
  std::vector<uint8_t> row(static_cast<size_t>(bytes));
  for (int64_t i = 0; i < p.n_rows; ++i) {
    float* x = p.x + i * p.x_stride;
    EncodeRowsRef({.format = RowFormat::kWindowFp8,
                   .x = x,
                   .n_rows = 1,
                   .dim = p.dim,
                   .out = row.data()});
    DecodeRowsRef({.format = RowFormat::kWindowFp8,
                   .in = row.data(),
                   .n_rows = 1,
                   .dim = p.dim,
                   .out = x});
  }
}

}  // namespace torpor::kernels
