// SPDX-License-Identifier: Apache-2.0

#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/bf16.h"

namespace torpor::kernels {

void RmsNormRef(const RmsNormParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* x = p.x + row * p.x_stride;
    double squares = 0;
    for (int64_t i = 0; i < p.dim; ++i) {
      squares += static_cast<double>(x[i]) * x[i];
    }
    const double scale =
        1.0 / std::sqrt(squares / static_cast<double>(p.dim) + p.eps);
    for (int64_t i = 0; i < p.dim; ++i) {
      const auto y = static_cast<float>(
          x[i] * scale * (static_cast<double>(p.offset) + p.weight[i]));
      const int64_t at = row * p.out_stride + i;
      switch (p.sink) {
        case RowSink::kStoreF32:
          static_cast<float*>(p.out)[at] = y;
          break;
        case RowSink::kStoreBf16:
          static_cast<Bf16*>(p.out)[at] = ToBf16(y);
          break;
        case RowSink::kAddF32:
          static_cast<float*>(p.out)[at] += y;
          break;
      }
    }
  }
}

}  // namespace torpor::kernels
