// SPDX-License-Identifier: Apache-2.0
//
// Bytes that move as they are.

#ifndef TORPOR_KERNELS_DEVICE_BYTES_H_
#define TORPOR_KERNELS_DEVICE_BYTES_H_

#include <cstdint>

#include "kernels/cuda_simt.h"
#include "kernels/device_float4.h"

namespace torpor::kernels::device {

// n bytes by a warp, as wide as both ends and n are aligned.
TORPOR_DEVICE_ONLY inline void CopyByWarp(const uint8_t* from, uint8_t* to,
                                          int64_t n) {
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const auto fits = [&](unsigned bytes) {
    return IsAligned(from, bytes) && IsAligned(to, bytes) && n % bytes == 0;
  };
  if (fits(16)) {
    for (int64_t i = lane; i < n / 16; i += 32) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else if (fits(4)) {
    for (int64_t i = lane; i < n / 4; i += 32) {
      reinterpret_cast<uint32_t*>(to)[i] =
          reinterpret_cast<const uint32_t*>(from)[i];
    }
  } else {
    for (int64_t i = lane; i < n; i += 32) to[i] = from[i];
  }
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_BYTES_H_
