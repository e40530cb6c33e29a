// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_KERNELS_ROPE_CPU_H_
#define TORPOR_KERNELS_ROPE_CPU_H_

#include <cstdint>

#include "kernels/rms_norm_cpu.h"
#include "kernels/rope.h"

namespace torpor::kernels {

// Element by element, two roundings to a term: equal on every path.
template <class V>
void RopeCpu(const RopeParams& p, int64_t row_begin, int64_t row_end) {
  const int64_t half = p.head_dim / 2;
  const int64_t whole = half / 16 * 16;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* cos = p.tables + row * p.head_dim;
    const float* sin = cos + half;
    for (int64_t head = 0; head < p.n_heads; ++head) {
      float* x = p.x + (row * p.n_heads + head) * p.head_dim;
      for (int64_t j = 0; j < whole; j += 16) {
        const auto a = V::Load(x + j);
        const auto b = V::Load(x + half + j);
        const auto c = V::Load(cos + j);
        const auto s = V::Load(sin + j);
        V::Store(V::Sub(V::Mul(a, c), V::Mul(b, s)), x + j);
        V::Store(V::Add(V::Mul(b, c), V::Mul(a, s)), x + half + j);
      }
      for (int64_t j = whole; j < half; ++j) {
        const float a = x[j];
        const float b = x[half + j];
        x[j] = a * cos[j] - b * sin[j];
        x[half + j] = b * cos[j] + a * sin[j];
      }
    }
  }
}

// Element by element, two roundings to a term: equal on every path.
template <class V>
void RopeTailCpu(const RopeTailParams& p, int64_t row_begin, int64_t row_end) {
  const float sign = p.inverse ? -1.0f : 1.0f;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* cos = p.tables + row * p.rope_dim;
    const float* sin = cos + p.rope_dim / 2;
    for (int64_t i = 0; i < p.rope_dim; i += 16) {
      const int64_t n = p.rope_dim - i < 16 ? p.rope_dim - i : 16;
      // Each pair's cos twice, and its sin with both signs.
      float cosines[16] = {};
      float sines[16] = {};
      for (int64_t lane = 0; lane < n; lane += 2) {
        const int64_t j = (i + lane) / 2;
        cosines[lane] = cosines[lane + 1] = cos[j];
        sines[lane] = -sign * sin[j];
        sines[lane + 1] = sign * sin[j];
      }
      const auto c = V::Load(cosines);
      const auto s = V::Load(sines);
      for (int64_t head = 0; head < p.n_heads; ++head) {
        float* x =
            p.x + (row * p.n_heads + head + 1) * p.head_dim - p.rope_dim + i;
        const auto v = n == 16 ? V::Load(x) : LoadSome<V>(x, n);
        const auto y = V::Add(V::Mul(v, c), V::Mul(V::SwapPairs(v), s));
        if (n == 16) {
          V::Store(y, x);
        } else {
          StoreSome<V>(y, n, 0, x, RowSink::kStoreF32);
        }
      }
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROPE_CPU_H_
