// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/kernel_cases.h"

#include <algorithm>
#include <random>

namespace torpor::gpu_check {

std::vector<float> Normals(int64_t n, uint64_t stream) {
  constexpr int64_t kDrawn = int64_t{1} << 20;
  std::mt19937_64 engine(stream + 1);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < std::min(n, kDrawn); ++i) {
    out[static_cast<size_t>(i)] = normal(engine);
  }
  for (int64_t i = kDrawn; i < n; ++i) {
    out[static_cast<size_t>(i)] = out[static_cast<size_t>(i - kDrawn)];
  }
  return out;
}

std::vector<uint8_t> Records(kernels::RowFormat format, int64_t n, int64_t dim,
                             uint64_t stream) {
  const auto x = Normals(n * dim, stream);
  const int64_t bytes = kernels::RowBytes(format, dim, 0);
  std::vector<uint8_t> rows(static_cast<size_t>(n * bytes));
  kernels::EncodeRowsRef({.format = format,
                          .x = x.data(),
                          .n_rows = n,
                          .dim = dim,
                          .x_stride = dim,
                          .out = rows.data(),
                          .out_stride = bytes});
  return rows;
}

std::string Differ(std::span<const float> got, std::span<const float> wanted,
                   double tolerance) {
  const auto result = kernels::Near(got, wanted, tolerance);
  return result ? "" : result.message();
}

}  // namespace torpor::gpu_check
