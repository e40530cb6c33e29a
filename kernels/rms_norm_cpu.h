// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_KERNELS_RMS_NORM_CPU_H_
#define TORPOR_KERNELS_RMS_NORM_CPU_H_

#include <cstdint>

#include "kernels/rms_norm.h"

namespace torpor::kernels {

template <class V>
void StoreLanes(typename V::F32 y, int64_t at, void* out, RowSink sink) {
  switch (sink) {
    case RowSink::kStoreF32:
      V::Store(y, static_cast<float*>(out) + at);
      break;
    case RowSink::kStoreBf16:
      V::StoreBf16(y, static_cast<uint16_t*>(out) + at);
      break;
    case RowSink::kAddF32: {
      float* sum = static_cast<float*>(out) + at;
      V::Store(V::Add(V::Load(sum), y), sum);
      break;
    }
  }
}

// The ragged end of a row: `n` < 16 values through the same lanes.
template <class V>
void StoreSome(typename V::F32 y, int64_t n, int64_t at, void* out,
               RowSink sink) {
  float values[16];
  uint16_t halves[16];
  V::Store(y, values);
  V::StoreBf16(y, halves);
  for (int64_t i = 0; i < n; ++i) {
    switch (sink) {
      case RowSink::kStoreF32:
        static_cast<float*>(out)[at + i] = values[i];
        break;
      case RowSink::kStoreBf16:
        static_cast<uint16_t*>(out)[at + i] = halves[i];
        break;
      case RowSink::kAddF32:
        static_cast<float*>(out)[at + i] += values[i];
        break;
    }
  }
}

// Up to 16 values, zeros after the first n.
template <class V>
typename V::F32 LoadSome(const float* p, int64_t n) {
  float values[16] = {};
  for (int64_t i = 0; i < n; ++i) values[i] = p[i];
  return V::Load(values);
}

template <class V>
void RmsNormCpu(const RmsNormParams& p, int64_t row_begin, int64_t row_end) {
  const int64_t whole = p.dim / 16 * 16;
  const int64_t rest = p.dim - whole;
  const auto offset = V::Set(p.offset);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = p.x + row * p.x_stride;
    auto squares = V::Zero();
    for (int64_t i = 0; i < whole; i += 16) {
      const auto v = V::Load(x + i);
      squares = V::Fma(v, v, squares);
    }
    if (rest != 0) {
      const auto v = LoadSome<V>(x + whole, rest);
      squares = V::Fma(v, v, squares);
    }
    const float mean = V::Sum(squares) / static_cast<float>(p.dim);
    const auto scale = V::Set(1.0f / __builtin_sqrtf(mean + p.eps));
    const int64_t at = row * p.out_stride;
    for (int64_t i = 0; i < whole; i += 16) {
      const auto w = V::Add(offset, V::Load(p.weight + i));
      const auto y = V::Mul(V::Mul(V::Load(x + i), scale), w);
      StoreLanes<V>(y, at + i, p.out, p.sink);
    }
    if (rest != 0) {
      const auto w = V::Add(offset, LoadSome<V>(p.weight + whole, rest));
      const auto y = V::Mul(V::Mul(LoadSome<V>(x + whole, rest), scale), w);
      StoreSome<V>(y, rest, at + whole, p.out, p.sink);
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RMS_NORM_CPU_H_
