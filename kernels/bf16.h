// SPDX-License-Identifier: Apache-2.0
//
// bfloat16 as its 16 bits: the upper half of an IEEE single. Pure functions.

#ifndef TORPOR_KERNELS_BF16_H_
#define TORPOR_KERNELS_BF16_H_

#include <bit>
#include <cstdint>

#include "kernels/device_function.h"

namespace torpor::kernels {

struct Bf16 {
  uint16_t bits = 0;
  friend bool operator==(Bf16, Bf16) = default;
};

TORPOR_DEVICE constexpr float ToFloat(Bf16 v) {
  return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16);
}

// Round to nearest, ties to even. A NaN stays a (quiet) NaN.
TORPOR_DEVICE constexpr Bf16 ToBf16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  }
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

// The nearest value that a bf16 holds.
TORPOR_DEVICE constexpr float RoundToBf16(float v) {
  return ToFloat(ToBf16(v));
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_BF16_H_
