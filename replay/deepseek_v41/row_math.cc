// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/row_math.h"

#include "kernels/weight_codec.h"

namespace torpor::replay::deepseek_v41 {

using kernels::DType;

FloatRows RowMath::Multiply(const Linear& linear, std::span<const float> x) {
  const int64_t k = linear.w.k();
  const int64_t rows = static_cast<int64_t>(x.size()) / k;
  const float* in = x.data();
  if (linear.quantised_input) {
    quantised_.assign(x.begin(), x.end());
    ops_.FakeQuantFp8(
        {.x = quantised_.data(), .n_rows = rows, .dim = k, .x_stride = k});
    in = quantised_.data();
  }
  const void* a = in;
  if (linear.w.dtype() == DType::kBf16) {
    bf16_.resize(x.size());
    ops_.ToBf16(
        {.x = in, .n = static_cast<int64_t>(x.size()), .out = bf16_.data()});
    a = bf16_.data();
  }
  FloatRows out(static_cast<size_t>(rows * linear.w.n()));
  ops_.Gemm({.a = a, .n_rows = rows, .b = &linear.w, .c = out.data()});
  return out;
}

FloatRows RowMath::Project(const Linear& w, std::span<const float> x) {
  return Round(Multiply(w, x));
}

FloatRows RowMath::Norm(std::span<const float> x,
                        std::span<const float> weight) {
  const auto dim = static_cast<int64_t>(weight.size());
  FloatRows out(x.size());
  ops_.RmsNorm({.x = x.data(),
                .n_rows = static_cast<int64_t>(x.size()) / dim,
                .dim = dim,
                .x_stride = dim,
                .weight = weight.data(),
                .eps = norm_eps_,
                .out = out.data(),
                .out_stride = dim});
  return Round(std::move(out));
}

FloatRows RowMath::Round(FloatRows x) const {
  if (is_bf16()) {
    for (float& v : x) v = kernels::RoundToBf16(v);
  }
  return x;
}

}  // namespace torpor::replay::deepseek_v41
