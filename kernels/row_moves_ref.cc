// SPDX-License-Identifier: Apache-2.0

#include "kernels/row_moves.h"

#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"

namespace torpor::kernels {

void EmbedRowsRef(const EmbedRowsParams& p) {
  const size_t element = DTypeBytes(p.dtype);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const uint8_t* from =
        p.table + static_cast<size_t>(p.ids[row]) * p.dim * element;
    float* out = p.out + row * p.dim;
    if (p.dtype == DType::kF32) {
      std::memcpy(out, from, static_cast<size_t>(p.dim) * element);
      for (int64_t i = 0; i < p.dim; ++i) out[i] *= p.scale;
      continue;
    }
    for (int64_t i = 0; i < p.dim; ++i) {
      Bf16 raw;
      std::memcpy(&raw, from + i * sizeof(raw), sizeof(raw));
      out[i] = ToFloat(raw) * p.scale;
    }
  }
}

void CopyRowsRef(const CopyRowsParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    std::copy_n(p.x + row * p.x_stride, p.dim, p.out + row * p.out_stride);
  }
}

void ScatterRowsRef(const ScatterRowsParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    std::memcpy(p.out[row], p.x + row * p.x_stride,
                static_cast<size_t>(p.dim) * sizeof(float));
  }
}

}  // namespace torpor::kernels
