// SPDX-License-Identifier: Apache-2.0
//
// The element and scale types of quantised rows and weights (OCP MX and FP8):
//   E2M1   s ee m       bias 1; 0 0.5 1 1.5 2 3 4 6; no infinity, no NaN
//   E4M3   s eeee mmm   bias 7; up to 448, subnormals k 2^-9; NaN is 0x7f and
//                       0xff, no infinity (the "fn" variant)
//   UE8M0  eeeeeeee     2^(byte - 127); 255 is NaN; no sign, no zero
// Pure functions on bits: no log2, no dependence on the rounding mode.

#ifndef TORPOR_KERNELS_SMALL_FLOAT_H_
#define TORPOR_KERNELS_SMALL_FLOAT_H_

#include <bit>
#include <cstdint>

#include "kernels/device_function.h"

namespace torpor::kernels {

inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kE4m3Max = 448.0f;
// The smallest E4M3 above zero, a subnormal: 2^-9.
inline constexpr float kE4m3Min = 0x1p-9f;
inline constexpr uint8_t kE4m3MaxCode = 0x7e;
inline constexpr uint8_t kE4m3NanCode = 0x7f;
// 2^127; an infinity's scale too.
inline constexpr uint8_t kUe8m0MaxCode = 254;
inline constexpr uint8_t kUe8m0NanCode = 255;
// What every NaN of these types decodes to, whatever its sign.
inline constexpr uint32_t kDecodedNanBits = 0x7fc00000u;

namespace small_float {

inline constexpr uint32_t kMagnitude = 0x7fffffffu;
inline constexpr uint32_t kInfinity = 0x7f800000u;

// The bits below the sign of the number nearest to a float's magnitude, ties to
// an even code, in a format of `mantissa_bits` and exponent `bias`, as if its
// exponents had no end. `u` are the magnitude's bits; not NaN.
TORPOR_DEVICE constexpr uint32_t Nearest(uint32_t u, int mantissa_bits,
                                         int bias) {
  const auto field = static_cast<int>(u >> 23);
  const uint32_t mantissa = (u & 0x7fffffu) | (field == 0 ? 0u : 0x800000u);
  const int exponent = (field == 0 ? 1 : field) - 127;
  const int smallest = 1 - bias;
  const int at = exponent > smallest ? exponent : smallest;
  // mantissa 2^(exponent - 23) in units of the result's last place.
  const int shift = 23 - mantissa_bits + (at - exponent);
  if (shift > 25) return 0;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t odd = (mantissa >> shift) & 1u;
  const uint32_t rounded = (mantissa + half - 1 + odd) >> shift;
  return (static_cast<uint32_t>(at - smallest) << mantissa_bits) + rounded;
}

}  // namespace small_float

// The low four bits of `code`.
TORPOR_DEVICE constexpr float E2m1ToFloat(uint8_t code) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float magnitude = kValues[code & 7];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// Nearest, ties to an even code (0.25 0.75 1.25 1.75 2.5 3.5 5 give codes 0 2 2
// 4 4 6 6), saturating at 6; keeps the sign, a zero's too. NaN: 6 with its
// sign.
TORPOR_DEVICE constexpr uint8_t FloatToE2m1(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  const uint32_t magnitude = u & small_float::kMagnitude;
  uint32_t code = small_float::Nearest(magnitude, 1, 1);
  if (code > 7 || magnitude > small_float::kInfinity) code = 7;
  return static_cast<uint8_t>((u >> 28 & 8u) | code);
}

TORPOR_DEVICE constexpr float E4m3ToFloat(uint8_t code) {
  if ((code & 0x7f) == kE4m3NanCode) {
    return std::bit_cast<float>(kDecodedNanBits);
  }
  const int field = code >> 3 & 15;
  const int mantissa = code & 7;
  // Both factors are exact, and so is the product.
  const float unit = std::bit_cast<float>(
      static_cast<uint32_t>((field == 0 ? 1 : field) - 10 + 127) << 23);
  const float magnitude =
      static_cast<float>(mantissa + (field == 0 ? 0 : 8)) * unit;
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest, ties to an even code, saturating at 448 (infinities too); keeps the
// sign, a zero's and a NaN's too.
TORPOR_DEVICE constexpr uint8_t FloatToE4m3(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  const uint32_t magnitude = u & small_float::kMagnitude;
  const uint32_t sign = u >> 24 & 0x80u;
  if (magnitude > small_float::kInfinity) {
    return static_cast<uint8_t>(sign | kE4m3NanCode);
  }
  const uint32_t code = small_float::Nearest(magnitude, 3, 7);
  return static_cast<uint8_t>(sign |
                              (code < kE4m3MaxCode ? code : kE4m3MaxCode));
}

TORPOR_DEVICE constexpr float Ue8m0ToFloat(uint8_t code) {
  if (code == kUe8m0NanCode) return std::bit_cast<float>(kDecodedNanBits);
  // 2^-127 is a subnormal float.
  const uint32_t u = code == 0 ? 0x400000u : static_cast<uint32_t>(code) << 23;
  return std::bit_cast<float>(u);
}

// The smallest power of two that is not below v, by v's bits; v <= 2^-127 gives
// 0, above 2^127 and infinity 254, NaN 255. REQUIRES: v has no sign.
TORPOR_DEVICE constexpr uint8_t CeilToUe8m0(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  if (u > small_float::kInfinity) return kUe8m0NanCode;
  if (u <= 0x400000u) return 0;
  const uint32_t code = (u + 0x7fffffu) >> 23;
  return static_cast<uint8_t>(code < kUe8m0MaxCode ? code : kUe8m0MaxCode);
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SMALL_FLOAT_H_
