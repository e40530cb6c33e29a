// SPDX-License-Identifier: Apache-2.0
//
// How scores are compared where some are chosen: a NaN is the highest, so that
// damage is seen and not passed over; zeros of both signs are equal.

#ifndef TORPOR_KERNELS_DEVICE_SCORE_ORDER_H_
#define TORPOR_KERNELS_DEVICE_SCORE_ORDER_H_

#include <bit>
#include <cstdint>

#include "kernels/device_function.h"
#include "kernels/small_float.h"

namespace torpor::kernels::device {

// What OrderOf gives for -inf, the least of all.
inline constexpr uint32_t kOrderOfNever = 0x007fffffu;

// Integers that order as scores do.
TORPOR_DEVICE inline uint32_t OrderOf(float score) {
  const auto u = std::bit_cast<uint32_t>(score);
  const uint32_t magnitude = u & small_float::kMagnitude;
  if (magnitude > small_float::kInfinity) return 0xffffffffu;
  return magnitude == u || magnitude == 0 ? magnitude | 0x80000000u : ~u;
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_SCORE_ORDER_H_
