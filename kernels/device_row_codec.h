// SPDX-License-Identifier: Apache-2.0
//
// kernels/row_codec.h as functions of a CUDA thread: a few channels of a row,
// one block's scale. Bits are those of the reference, in software, whatever the
// architecture converts by itself. They need subnormal floats and divisions
// that round to nearest: no -ftz, no fast-math.

#ifndef TORPOR_KERNELS_DEVICE_ROW_CODEC_H_
#define TORPOR_KERNELS_DEVICE_ROW_CODEC_H_

#include <bit>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_simt.h"
#include "kernels/device_float4.h"
#include "kernels/row_codec.h"
#include "kernels/small_float.h"

namespace torpor::kernels::device {

constexpr bool IsFp4Format(RowFormat format) {
  return format == RowFormat::kMainFp4 || format == RowFormat::kIndexFp4;
}

// Channels of a scale.
constexpr int BlockOf(RowFormat format) {
  return format == RowFormat::kMainFp4    ? 16
         : format == RowFormat::kV4Record ? 64
                                          : 32;
}

// Bytes of the codes of n channels.
constexpr int CodeBytes(bool fp4, int n) { return fp4 ? n / 2 : n; }

// ---- bytes of any alignment ------------------------------------------------

// kBytes (2, 4 or 8), the first lowest.
template <int kBytes>
TORPOR_DEVICE inline uint64_t LoadBytes(const uint8_t* from) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8);
  if (IsAligned(from, kBytes)) {
    if constexpr (kBytes == 2) {
      return *reinterpret_cast<const uint16_t*>(from);
    } else if constexpr (kBytes == 4) {
      return *reinterpret_cast<const uint32_t*>(from);
    } else {
      return *reinterpret_cast<const uint64_t*>(from);
    }
  }
  uint64_t v = 0;
  for (int i = 0; i < kBytes; ++i) v |= uint64_t{from[i]} << (8 * i);
  return v;
}

template <int kBytes>
TORPOR_DEVICE inline void StoreBytes(uint8_t* to, uint64_t v) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8);
  if (IsAligned(to, kBytes)) {
    if constexpr (kBytes == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(v);
    } else if constexpr (kBytes == 4) {
      *reinterpret_cast<uint32_t*>(to) = static_cast<uint32_t>(v);
    } else {
      *reinterpret_cast<uint64_t*>(to) = v;
    }
    return;
  }
  for (int i = 0; i < kBytes; ++i) to[i] = static_cast<uint8_t>(v >> (8 * i));
}

// Sixteen bytes of values, in one piece where `out` is aligned to that.
TORPOR_DEVICE inline void StoreValues(const float (&v)[4], float* out) {
  StoreFloat4(out, make_float4(v[0], v[1], v[2], v[3]));
}

TORPOR_DEVICE inline void StoreValues(const float (&v)[8], Bf16* out) {
  if (!IsAligned(out, 16)) {
    for (int i = 0; i < 8; ++i) out[i] = ToBf16(v[i]);
    return;
  }
  uint32_t words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = ToBf16(v[2 * i]).bits |
               static_cast<uint32_t>(ToBf16(v[2 * i + 1]).bits) << 16;
  }
  *AsAligned16<uint4>(out) = make_uint4(words[0], words[1], words[2], words[3]);
}

// ---- decoding --------------------------------------------------------------

// As E2m1ToFloat and E4m3ToFloat: the code's exponent and mantissa stand where
// a float has them, so that one product with a power of two moves the bias.
TORPOR_DEVICE inline float E2m1Value(uint32_t code) {
  return std::bit_cast<float>((code & 7) << 22 | (code & 8) << 28) * 0x1p126f;
}

TORPOR_DEVICE inline float E4m3Value(uint32_t code) {
  if ((code & 0x7f) == kE4m3NanCode) {
    return std::bit_cast<float>(kDecodedNanBits);
  }
  return std::bit_cast<float>((code & 0x7f) << 20 | (code & 0x80) << 24) *
         0x1p120f;
}

TORPOR_DEVICE inline float ScaleValue(bool e4m3, uint8_t byte) {
  return e4m3 ? E4m3Value(byte) : Ue8m0ToFloat(byte);
}

// A product's NaN has other bits on a GPU than on a CPU.
TORPOR_DEVICE inline float CanonicalNan(float v) {
  return v != v ? std::bit_cast<float>(kDecodedNanBits) : v;
}

// kN channels of one scale from `codes`, which has those of the first in it.
template <bool kFp4, int kN>
TORPOR_DEVICE inline void DecodeCodes(const uint8_t* codes, float scale,
                                      float (&out)[kN]) {
  const uint64_t word = LoadBytes<CodeBytes(kFp4, kN)>(codes);
  for (int i = 0; i < kN; ++i) {
    const auto code = static_cast<uint32_t>(word >> (kFp4 ? 4 * i : 8 * i));
    out[i] =
        CanonicalNan((kFp4 ? E2m1Value(code) : E4m3Value(code & 0xff)) * scale);
  }
}

// Coded channels [at, at + kN) of a row, kN dividing `at` and at most 8.
template <RowFormat kFormat, int kN>
TORPOR_DEVICE inline void DecodeChannels(const uint8_t* row, int64_t scales_at,
                                         int64_t at, float (&out)[kN]) {
  constexpr bool kFp4 = IsFp4Format(kFormat);
  const float scale = ScaleValue(kFormat == RowFormat::kMainFp4,
                                 row[scales_at + at / BlockOf(kFormat)]);
  DecodeCodes<kFp4>(row + (kFp4 ? at / 2 : at), scale, out);
}

// The same where the format is known when it runs.
template <int kN>
TORPOR_DEVICE inline void DecodeChannels(RowFormat format, const uint8_t* row,
                                         int64_t scales_at, int64_t at,
                                         float (&out)[kN]) {
  switch (format) {
    case RowFormat::kMainFp4:
      return DecodeChannels<RowFormat::kMainFp4>(row, scales_at, at, out);
    case RowFormat::kIndexFp4:
      return DecodeChannels<RowFormat::kIndexFp4>(row, scales_at, at, out);
    case RowFormat::kWindowFp8:
      return DecodeChannels<RowFormat::kWindowFp8>(row, scales_at, at, out);
    case RowFormat::kV4Record:
      return DecodeChannels<RowFormat::kV4Record>(row, scales_at, at, out);
  }
}

// ---- encoding --------------------------------------------------------------

struct BlockScale {
  uint8_t byte;
  float value;
};

// The bits of the largest magnitude of v: they order as the numbers do, NaN
// last. E4M3's blocks pass a NaN over.
TORPOR_DEVICE inline uint32_t AbsMaxBits(const float4& v, bool nan_counts) {
  const float values[4] = {v.x, v.y, v.z, v.w};
  uint32_t largest = 0;
  for (const float value : values) {
    const uint32_t u = std::bit_cast<uint32_t>(value) & small_float::kMagnitude;
    if (!nan_counts && u > small_float::kInfinity) continue;
    largest = u > largest ? u : largest;
  }
  return largest;
}

// From those of a whole block.
template <RowFormat kFormat>
TORPOR_DEVICE inline BlockScale ScaleOfBlock(uint32_t amax_bits) {
  const auto amax = std::bit_cast<float>(amax_bits);
  const bool is_nan = amax_bits > small_float::kInfinity;
  if constexpr (kFormat == RowFormat::kMainFp4) {
    constexpr float kLeast = kE2m1Max * kE4m3Min;
    const uint8_t byte =
        is_nan ? kE4m3NanCode
               : FloatToE4m3((amax > kLeast ? amax : kLeast) / kE2m1Max);
    return {byte, E4m3Value(byte)};
  } else if constexpr (kFormat == RowFormat::kIndexFp4) {
    constexpr float kLeast = 6 * 0x1p-126f;
    constexpr float kSixth = 1.0f / 6.0f;
    const uint8_t byte =
        is_nan ? kUe8m0NanCode
               : CeilToUe8m0((amax > kLeast ? amax : kLeast) * kSixth);
    return {byte, Ue8m0ToFloat(byte)};
  } else {
    constexpr float kLeast = 1e-4f;
    constexpr float kInverse = 1.0f / 448.0f;
    const uint8_t byte =
        CeilToUe8m0((amax > kLeast ? amax : kLeast) * kInverse);
    return {byte, Ue8m0ToFloat(byte)};
  }
}

// The scale of the block that a thread's four channels belong to; its
// block / 4 neighbours in the warp hold the others.
template <RowFormat kFormat>
TORPOR_DEVICE_ONLY inline BlockScale ScaleOfLanes(uint32_t amax_bits) {
  for (int step = BlockOf(kFormat) / 8; step > 0; step /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, amax_bits, step);
    amax_bits = other > amax_bits ? other : amax_bits;
  }
  return ScaleOfBlock<kFormat>(amax_bits);
}

// x / scale with x's sign, which a NaN scale would not keep, as an E2M1 code.
TORPOR_DEVICE inline uint32_t Fp4Code(float x, float scale) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) & ~small_float::kMagnitude;
  const uint32_t magnitude =
      std::bit_cast<uint32_t>(x / scale) & small_float::kMagnitude;
  return FloatToE2m1(std::bit_cast<float>(magnitude | sign));
}

// Likewise E4M3. A NaN keeps x's sign: a GPU's quotient would not.
TORPOR_DEVICE inline uint32_t Fp8Code(float x, float scale) {
  return x != x ? FloatToE4m3(x) : FloatToE4m3(x / scale);
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_ROW_CODEC_H_
