// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_KERNELS_ACTIVATION_CPU_H_
#define TORPOR_KERNELS_ACTIVATION_CPU_H_

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/simd_math.h"

namespace torpor::kernels {

template <class V>
void GatedGeluCpu(const GatedGeluParams& p, int64_t row_begin,
                  int64_t row_end) {
  const RowSink sink =
      p.out_dtype == DType::kBf16 ? RowSink::kStoreBf16 : RowSink::kStoreF32;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* gate = p.gate_up + row * 2 * p.dim;
    const float* up = gate + p.dim;
    const int64_t whole = p.dim / 16 * 16;
    const int64_t rest = p.dim - whole;
    for (int64_t i = 0; i < whole; i += 16) {
      const auto y = V::Mul(GeluTanh<V>(V::Load(gate + i)), V::Load(up + i));
      StoreLanes<V>(y, row * p.dim + i, p.out, sink);
    }
    if (rest != 0) {
      const auto y = V::Mul(GeluTanh<V>(LoadSome<V>(gate + whole, rest)),
                            LoadSome<V>(up + whole, rest));
      StoreSome<V>(y, rest, row * p.dim + whole, p.out, sink);
    }
  }
}

template <class V>
void GatedSiluCpu(const GatedSiluParams& p, int64_t row_begin,
                  int64_t row_end) {
  const RowSink sink =
      p.out_dtype == DType::kBf16 ? RowSink::kStoreBf16 : RowSink::kStoreF32;
  const float limit = p.limit == 0.0f ? __builtin_inff() : p.limit;
  // Min and Max give their second operand where one is NaN.
  const auto gated = [&](typename V::F32 gate, typename V::F32 up,
                         typename V::F32 weight) {
    const auto g = V::Min(V::Set(limit), gate);
    const auto u = V::Max(V::Set(-limit), V::Min(V::Set(limit), up));
    const auto gate_out = V::Mul(g, Sigmoid<V>(V::Mul(V::Set(p.slope), g)));
    return V::Mul(V::Mul(gate_out, V::Add(u, V::Set(p.up_offset))), weight);
  };
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* gate = p.gate_up + row * 2 * p.dim;
    const float* up = gate + p.dim;
    const auto weight =
        V::Set(p.row_weight == nullptr ? 1.0f : p.row_weight[row]);
    const int64_t whole = p.dim / 16 * 16;
    const int64_t rest = p.dim - whole;
    for (int64_t i = 0; i < whole; i += 16) {
      StoreLanes<V>(gated(V::Load(gate + i), V::Load(up + i), weight),
                    row * p.dim + i, p.out, sink);
    }
    if (rest != 0) {
      StoreSome<V>(gated(LoadSome<V>(gate + whole, rest),
                         LoadSome<V>(up + whole, rest), weight),
                   rest, row * p.dim + whole, p.out, sink);
    }
  }
}

template <class V>
void SoftcapCpu(const SoftcapParams& p, int64_t begin, int64_t end) {
  const auto cap = V::Set(p.cap);
  for (int64_t i = begin; i < end; i += 16) {
    const int64_t n = end - i < 16 ? end - i : 16;
    const auto x = LoadSome<V>(p.x + i, n);
    StoreSome<V>(V::Mul(cap, Tanh<V>(V::Div(x, cap))), n, i, p.x,
                 RowSink::kStoreF32);
  }
}

template <class V>
void ToBf16Cpu(const ToBf16Params& p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) {
    const int64_t n = end - i < 16 ? end - i : 16;
    if (n == 16) {
      V::StoreBf16(V::Load(p.x + i), &p.out[i].bits);
    } else {
      StoreSome<V>(LoadSome<V>(p.x + i, n), n, i, p.out, RowSink::kStoreBf16);
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ACTIVATION_CPU_H_
