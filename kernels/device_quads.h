// SPDX-License-Identifier: Apache-2.0
//
// Four neighbouring elements of a row at a time, the unit of the kernels that
// memory bounds: one access of 16 bytes (f32) or 8 (bf16) where a row allows
// it, single elements elsewhere. Both ways give the same values, so a row's
// bits do not depend on where it stands.

#ifndef TORPOR_KERNELS_DEVICE_QUADS_H_
#define TORPOR_KERNELS_DEVICE_QUADS_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_simt.h"
#include "kernels/gemm.h"

namespace torpor::kernels::device {

// Whether every quad of every row of `p`, `stride` elements apart, is aligned
// to its own size.
template <typename T>
bool QuadsAligned(const T* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % (4 * sizeof(T)) == 0 &&
         stride % 4 == 0;
}

inline bool QuadsAligned(const void* p, DType dtype, int64_t stride) {
  return dtype == DType::kBf16
             ? QuadsAligned(static_cast<const Bf16*>(p), stride)
             : QuadsAligned(static_cast<const float*>(p), stride);
}

struct Quad {
  float v[4];
};

TORPOR_DEVICE inline float LowBf16(uint32_t pair) {
  return std::bit_cast<float>(pair << 16);
}
TORPOR_DEVICE inline float HighBf16(uint32_t pair) {
  return std::bit_cast<float>(pair & 0xffff0000u);
}
TORPOR_DEVICE inline uint32_t Bf16Pair(float low, float high) {
  return ToBf16(low).bits | static_cast<uint32_t>(ToBf16(high).bits) << 16;
}

// Elements [0, n) of p, zeros behind them; `aligned` as QuadsAligned says.
TORPOR_DEVICE inline Quad LoadQuad(const float* p, int64_t n, bool aligned) {
  if (aligned && n >= 4) {
    const float4 x = *reinterpret_cast<const float4*>(p);
    return {{x.x, x.y, x.z, x.w}};
  }
  Quad q = {};
  for (int i = 0; i < 4; ++i) {
    if (i < n) q.v[i] = p[i];
  }
  return q;
}

TORPOR_DEVICE inline Quad LoadQuad(const Bf16* p, int64_t n, bool aligned) {
  if (aligned && n >= 4) {
    const uint2 x = *reinterpret_cast<const uint2*>(p);
    return {{LowBf16(x.x), HighBf16(x.x), LowBf16(x.y), HighBf16(x.y)}};
  }
  Quad q = {};
  for (int i = 0; i < 4; ++i) {
    if (i < n) q.v[i] = ToFloat(p[i]);
  }
  return q;
}

TORPOR_DEVICE inline void StoreQuad(const Quad& q, float* p, int64_t n,
                                    bool aligned) {
  if (aligned && n >= 4) {
    *reinterpret_cast<float4*>(p) = make_float4(q.v[0], q.v[1], q.v[2], q.v[3]);
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < n) p[i] = q.v[i];
  }
}

TORPOR_DEVICE inline void StoreQuad(const Quad& q, Bf16* p, int64_t n,
                                    bool aligned) {
  if (aligned && n >= 4) {
    *reinterpret_cast<uint2*>(p) =
        make_uint2(Bf16Pair(q.v[0], q.v[1]), Bf16Pair(q.v[2], q.v[3]));
    return;
  }
  for (int i = 0; i < 4; ++i) {
    if (i < n) p[i] = ToBf16(q.v[i]);
  }
}

// Quads of a [rows, dim] array of either dtype.
TORPOR_DEVICE inline Quad LoadQuad(const void* p, DType dtype, int64_t at,
                                   int64_t n, bool aligned) {
  return dtype == DType::kBf16
             ? LoadQuad(static_cast<const Bf16*>(p) + at, n, aligned)
             : LoadQuad(static_cast<const float*>(p) + at, n, aligned);
}

TORPOR_DEVICE inline void StoreQuad(const Quad& q, void* p, DType dtype,
                                    int64_t at, int64_t n, bool aligned) {
  dtype == DType::kBf16 ? StoreQuad(q, static_cast<Bf16*>(p) + at, n, aligned)
                        : StoreQuad(q, static_cast<float*>(p) + at, n, aligned);
}

inline constexpr int kQuadThreads = 256;

// Blocks for `n` threads' worth of work, within the grid's limit: kernels
// stride by the grid.
inline unsigned BlocksFor(int64_t n, int64_t threads) {
  const int64_t blocks = (n + threads - 1) / threads;
  constexpr int64_t kMost = 1 << 20;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_QUADS_H_
