// SPDX-License-Identifier: Apache-2.0
//
// Four neighbouring floats of a row: one access of 16 bytes where they are
// aligned to that, single ones elsewhere. The values are the same.

#ifndef TORPOR_KERNELS_DEVICE_FLOAT4_H_
#define TORPOR_KERNELS_DEVICE_FLOAT4_H_

#include <cstdint>

#include "kernels/cuda_simt.h"

namespace torpor::kernels::device {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

TORPOR_DEVICE inline bool IsAligned(const void* p, unsigned bytes) {
  return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

// The same address, of which nvcc can see that it is aligned: without that it
// makes single accesses of the wide ones. REQUIRES: IsAligned(p, 16).
template <typename T, typename U>
TORPOR_DEVICE inline T* AsAligned16(U* p) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) & ~uintptr_t{15});
}

TORPOR_DEVICE inline float4 LoadFloat4(const float* from) {
  if (IsAligned(from, 16)) return *AsAligned16<const float4>(from);
  return make_float4(from[0], from[1], from[2], from[3]);
}

// Of the first n alone where n < 4; zeros in place of the others.
TORPOR_DEVICE inline float4 LoadFloat4(const float* from, int64_t n) {
  if (n >= 4) return LoadFloat4(from);
  return make_float4(n > 0 ? from[0] : 0.0f, n > 1 ? from[1] : 0.0f,
                     n > 2 ? from[2] : 0.0f, 0.0f);
}

TORPOR_DEVICE inline void StoreFloat4(float* to, const float4& v) {
  if (IsAligned(to, 16)) {
    *AsAligned16<float4>(to) = v;
    return;
  }
  to[0] = v.x;
  to[1] = v.y;
  to[2] = v.z;
  to[3] = v.w;
}

TORPOR_DEVICE inline void StoreFloat4(float* to, const float4& v, int64_t n) {
  if (n >= 4) return StoreFloat4(to, v);
  if (n > 0) to[0] = v.x;
  if (n > 1) to[1] = v.y;
  if (n > 2) to[2] = v.z;
}

// a * b + c.
TORPOR_DEVICE inline float4 Fma(float a, const float4& b, const float4& c) {
  return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z),
                     fmaf(a, b.w, c.w));
}

TORPOR_DEVICE inline float4 Times(float a, const float4& b) {
  return make_float4(a * b.x, a * b.y, a * b.z, a * b.w);
}

TORPOR_DEVICE inline float4 Plus(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_FLOAT4_H_
