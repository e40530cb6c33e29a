// SPDX-License-Identifier: Apache-2.0

#include "kernels/engram_gate.h"

#include <cmath>

namespace torpor::kernels {
namespace {

template <typename Term>
float SumOf(int64_t n, const Term& term) {
  float partial[16] = {};
  for (int64_t i = 0; i < n; ++i) partial[i % 16] += term(i);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

float Gate(const float* x, const float* qk, const float* key, int64_t n,
           float eps) {
  const auto count = static_cast<float>(n);
  const float dot = SumOf(n, [&](int64_t i) { return x[i] * qk[i] * key[i]; });
  const float of_x = SumOf(n, [&](int64_t i) { return x[i] * x[i]; });
  const float of_key = SumOf(n, [&](int64_t i) { return key[i] * key[i]; });
  const float t = dot / std::sqrt(of_x / count + eps) /
                  std::sqrt(of_key / count + eps) / std::sqrt(count);
  // A NaN stays one.
  const float size = std::fabs(t) < 1e-6f ? 1e-6f : std::fabs(t);
  const float root = std::copysign(std::sqrt(size), t);
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(root))));
}

}  // namespace

void EngramGateRef(const EngramGateParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* keys = p.kv + row * (p.n_streams + 1) * p.dim;
    const float* value = keys + p.n_streams * p.dim;
    for (int64_t j = 0; j < p.n_streams; ++j) {
      float* x = p.x + (row * p.n_streams + j) * p.dim;
      const float gate =
          Gate(x, p.qk + j * p.dim, keys + j * p.dim, p.dim, p.eps);
      for (int64_t i = 0; i < p.dim; ++i) x[i] += gate * value[i];
    }
  }
}

}  // namespace torpor::kernels
