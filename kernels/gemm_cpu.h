// SPDX-License-Identifier: Apache-2.0
//
// kernels/gemm.h over sixteen lanes. A tile of R rows by G column groups keeps
// R*G accumulators in registers and walks k once; the tile's shape changes the
// speed, never an element's order of operations.

#ifndef TORPOR_KERNELS_GEMM_CPU_H_
#define TORPOR_KERNELS_GEMM_CPU_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

// How one step of k meets an accumulator.
template <class V>
struct GemmStepBf16 {
  using A = uint32_t;  // two bf16: k, k + 1
  static int64_t Steps(int64_t k) { return k / 2; }
  static typename V::U32 LoadB(const uint8_t* p) {
    return V::LoadU32(reinterpret_cast<const uint32_t*>(p));
  }
  static typename V::U32 Broadcast(A a) { return V::SetU32(a); }
  static typename V::F32 Accumulate(typename V::U32 a, typename V::U32 b,
                                    typename V::F32 acc) {
    return V::DotBf16(acc, a, b);
  }
};

template <class V>
struct GemmStepF32 {
  using A = float;
  static int64_t Steps(int64_t k) { return k; }
  static typename V::F32 LoadB(const uint8_t* p) {
    return V::Load(reinterpret_cast<const float*>(p));
  }
  static typename V::F32 Broadcast(A a) { return V::Set(a); }
  static typename V::F32 Accumulate(typename V::F32 a, typename V::F32 b,
                                    typename V::F32 acc) {
    return V::Fma(a, b, acc);
  }
};

// Bytes of one group's step of k, in either dtype.
inline constexpr int64_t kGemmStepBytes = kGemmGroup * 4;

template <class V, class Step, int R, int G>
void GemmTile(const GemmParams& p, int64_t row, int64_t group) {
  const int64_t steps = Step::Steps(p.b->k());
  const auto* a = static_cast<const typename Step::A*>(p.a) + row * steps;
  const uint8_t* b = p.b->data() + group * steps * kGemmStepBytes;
  const int64_t group_bytes = steps * kGemmStepBytes;
  typename V::F32 acc[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) acc[r][g] = V::Zero();
  }
  for (int64_t s = 0; s < steps; ++s) {
    decltype(Step::LoadB(b)) bs[G];
    for (int g = 0; g < G; ++g) {
      bs[g] = Step::LoadB(b + g * group_bytes + s * kGemmStepBytes);
    }
    for (int r = 0; r < R; ++r) {
      const auto as = Step::Broadcast(a[r * steps + s]);
      for (int g = 0; g < G; ++g) {
        acc[r][g] = Step::Accumulate(as, bs[g], acc[r][g]);
      }
    }
  }
  const int64_t n = p.b->n();
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) {
      const int64_t column = (group + g) * kGemmGroup;
      float* c = p.c + (row + r) * n + column;
      if (column + kGemmGroup <= n) {
        auto value = acc[r][g];
        if (p.bias != nullptr) value = V::Add(value, V::Load(p.bias + column));
        V::Store(value, c);
        continue;
      }
      float lanes[kGemmGroup];
      V::Store(acc[r][g], lanes);
      for (int64_t i = 0; column + i < n; ++i) {
        c[i] = lanes[i] + (p.bias != nullptr ? p.bias[column + i] : 0.0f);
      }
    }
  }
}

// Rows [row, row + R) of the groups [begin, end).
template <class V, class Step, int R, int G>
void GemmStrip(const GemmParams& p, int64_t row, int64_t begin, int64_t end) {
  int64_t group = begin;
  for (; group + G <= end; group += G) GemmTile<V, Step, R, G>(p, row, group);
  for (; group < end; ++group) GemmTile<V, Step, R, 1>(p, row, group);
}

// Few rows want many columns in flight, many rows few; V::kGemmRows x
// V::kGemmGroups accumulators fit the registers of the path.
template <class V, class Step>
void GemmRows(const GemmParams& p, int64_t row, int64_t rows, int64_t begin,
              int64_t end) {
  constexpr int kRows = V::kGemmRows;
  constexpr int kGroups = V::kGemmGroups;
  switch (rows) {
    case 1:
      return GemmStrip<V, Step, 1, 4 * kGroups>(p, row, begin, end);
    case 2:
      return GemmStrip<V, Step, 2, 2 * kGroups>(p, row, begin, end);
    case 3:
      return GemmStrip<V, Step, 3, 2 * kGroups>(p, row, begin, end);
    default:
      break;
  }
  if (rows == kRows)
    return GemmStrip<V, Step, kRows, kGroups>(p, row, begin, end);
  for (; rows >= 4; rows -= 4, row += 4) {
    GemmStrip<V, Step, 4, kGroups>(p, row, begin, end);
  }
  if (rows > 0) GemmRows<V, Step>(p, row, rows, begin, end);
}

// Column groups [begin, end) of every row.
template <class V, class Step>
void GemmColumns(const GemmParams& p, int64_t begin, int64_t end) {
  // A panel of b stays in the first-level cache while all rows pass over it.
  constexpr int64_t kPanel = V::kGemmGroups;
  for (int64_t group = begin; group < end;) {
    int64_t stop = group + (p.n_rows >= 4 ? kPanel : end - group);
    if (stop > end) stop = end;
    for (int64_t row = 0; row < p.n_rows; row += V::kGemmRows) {
      int64_t rows = p.n_rows - row;
      if (rows > V::kGemmRows) rows = V::kGemmRows;
      GemmRows<V, Step>(p, row, rows, group, stop);
    }
    group = stop;
  }
}

template <class V>
void GemmCpu(const GemmParams& p, int64_t group_begin, int64_t group_end) {
  if (p.b->dtype() == DType::kBf16) {
    GemmColumns<V, GemmStepBf16<V>>(p, group_begin, group_end);
  } else {
    GemmColumns<V, GemmStepF32<V>>(p, group_begin, group_end);
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_GEMM_CPU_H_
