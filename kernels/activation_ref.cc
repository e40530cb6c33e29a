// SPDX-License-Identifier: Apache-2.0

#include "kernels/activation.h"

#include <cmath>

namespace torpor::kernels {

void GatedGeluRef(const GatedGeluParams& p) {
  constexpr double kSqrt2OverPi = 0.7978845608028654;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* gate = p.gate_up + row * 2 * p.dim;
    const float* up = gate + p.dim;
    for (int64_t i = 0; i < p.dim; ++i) {
      const double x = gate[i];
      const double gelu =
          0.5 * x *
          (1.0 + std::tanh(kSqrt2OverPi * (x + 0.044715 * x * x * x)));
      const auto y = static_cast<float>(gelu * up[i]);
      if (p.out_dtype == DType::kBf16) {
        static_cast<Bf16*>(p.out)[row * p.dim + i] = ToBf16(y);
      } else {
        static_cast<float*>(p.out)[row * p.dim + i] = y;
      }
    }
  }
}

void GatedSiluRef(const GatedSiluParams& p) {
  const double limit = p.limit == 0.0f ? INFINITY : p.limit;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* gate = p.gate_up + row * 2 * p.dim;
    const float* up = gate + p.dim;
    const double weight = p.row_weight == nullptr ? 1.0 : p.row_weight[row];
    for (int64_t i = 0; i < p.dim; ++i) {
      // A NaN passes every comparison of these.
      const double g = gate[i] > limit ? limit : gate[i];
      const double u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
      const auto y =
          static_cast<float>(g / (1.0 + std::exp(-double{p.slope} * g)) *
                             (u + p.up_offset) * weight);
      if (p.out_dtype == DType::kBf16) {
        static_cast<Bf16*>(p.out)[row * p.dim + i] = ToBf16(y);
      } else {
        static_cast<float*>(p.out)[row * p.dim + i] = y;
      }
    }
  }
}

void AddRef(const AddParams& p) {
  for (int64_t i = 0; i < p.n; ++i) p.x[i] += p.y[i];
}

void SoftcapRef(const SoftcapParams& p) {
  for (int64_t i = 0; i < p.n; ++i) {
    p.x[i] = static_cast<float>(p.cap *
                                std::tanh(static_cast<double>(p.x[i]) / p.cap));
  }
}

void ToBf16Ref(const ToBf16Params& p) {
  for (int64_t i = 0; i < p.n; ++i) p.out[i] = ToBf16(p.x[i]);
}

void RoundBf16Ref(const RoundBf16Params& p) {
  for (int64_t i = 0; i < p.n; ++i) p.x[i] = RoundToBf16(p.x[i]);
}

void ScaleRef(const ScaleParams& p) {
  for (int64_t i = 0; i < p.n; ++i) p.x[i] *= p.factor;
}

}  // namespace torpor::kernels
