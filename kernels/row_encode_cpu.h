// SPDX-License-Identifier: Apache-2.0
//
// Encoding of kernels/row_codec.h, and kernels/weight_codec.h's FakeQuantFp8,
// over sixteen lanes. Every step is exact or rounds as the reference does, so
// that all paths give its bytes:
//   rounding to few bits: half of the last place, and ties by its parity, added
//     to the bits; below the normal range, a float is added whose last place is
//     the format's smallest step
//   x / scale under a power of two: x * (1 / scale), the same quotient

#ifndef TORPOR_KERNELS_ROW_ENCODE_CPU_H_
#define TORPOR_KERNELS_ROW_ENCODE_CPU_H_

#include <cstdint>

#include "kernels/row_codec.h"
#include "kernels/row_decode_cpu.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

// Codes of magnitudes, NaN as 6.
template <class V>
typename V::U32 E2m1Codes(typename V::F32 magnitude) {
  const auto q = V::Min(magnitude, V::Set(6.0f));
  const auto u = V::Bits(q);
  // The last place of 2^22 is 0.5.
  const auto step = V::Set(0x1p22f);
  const auto below_one = V::SubU32(V::Bits(V::Add(q, step)), V::Bits(step));
  const auto odd = V::And(V::template ShiftRight<22>(u), V::SetU32(1));
  const auto rounded = V::template ShiftRight<22>(
      V::AddU32(V::AddU32(u, V::SetU32(0x1fffffu)), odd));
  return V::IfGreater(V::SetU32(0x3f800000u), u, below_one,
                      V::SubU32(rounded, V::SetU32(126u << 1)));
}

// Codes of magnitudes, NaN as 0x7f.
template <class V>
typename V::U32 E4m3Codes(typename V::F32 magnitude) {
  const auto u = V::Bits(magnitude);
  // The last place of 2^14 is 2^-9.
  const auto step = V::Set(0x1p14f);
  const auto subnormal =
      V::SubU32(V::Bits(V::Add(magnitude, step)), V::Bits(step));
  const auto odd = V::And(V::template ShiftRight<20>(u), V::SetU32(1));
  const auto rounded = V::template ShiftRight<20>(
      V::AddU32(V::AddU32(u, V::SetU32(0x7ffffu)), odd));
  const auto normal =
      V::MinI32(V::SubU32(rounded, V::SetU32(120u << 3)), V::SetU32(0x7e));
  // Below 2^-6, the smallest normal.
  const auto code = V::IfGreater(V::SetU32(0x3c800000u), u, subnormal, normal);
  return V::IfGreater(u, V::SetU32(0x7f800000u), V::SetU32(0x7f), code);
}

// 2^ceil(log2(v)) for lanes of at least 2^-126, 2^127 for all above it, NaN for
// NaN: its codes, and what the block's values are multiplied by.
template <class V>
void CeilToPower(typename V::F32 v, typename V::U32* codes,
                 typename V::F32* inverse) {
  const auto u = V::Bits(v);
  const auto ceiling =
      V::MinI32(V::template ShiftRight<23>(V::AddU32(u, V::SetU32(0x7fffffu))),
                V::SetU32(254));
  const auto infinity = V::SetU32(0x7f800000u);
  *codes = V::IfGreater(u, infinity, V::SetU32(255), ceiling);
  // 2^-127, the inverse of the largest, is a subnormal.
  const auto power =
      V::template ShiftLeft<23>(V::SubU32(V::SetU32(254), ceiling));
  const auto finite =
      V::IfGreater(ceiling, V::SetU32(253), V::SetU32(0x400000u), power);
  *inverse =
      V::FromBits(V::IfGreater(u, infinity, V::SetU32(0x7fc00000u), finite));
}

// Scales of up to 16 blocks of one kind from their amax: bytes, and what
// Scaled takes.
template <class V>
struct MainBlocks {
  static constexpr int64_t kBlock = 16;
  static constexpr bool kFp4 = true;

  static void Scales(typename V::F32 amax, typename V::U32* codes,
                     typename V::F32* factor) {
    // Max gives its second operand where one is NaN.
    const auto floored = V::Max(V::Set(6 * 0x1p-9f), amax);
    *codes = E4m3Codes<V>(V::Div(floored, V::Set(6.0f)));
    *factor = E4m3Values<V, true>(*codes);
  }
  static typename V::F32 Scaled(typename V::F32 x, typename V::F32 factor) {
    return V::Div(x, factor);
  }
};

template <class V>
struct IndexBlocks {
  static constexpr int64_t kBlock = 32;
  static constexpr bool kFp4 = true;

  static void Scales(typename V::F32 amax, typename V::U32* codes,
                     typename V::F32* factor) {
    const auto floored = V::Max(V::Set(6 * 0x1p-126f), amax);
    CeilToPower<V>(V::Mul(floored, V::Set(1.0f / 6.0f)), codes, factor);
  }
  static typename V::F32 Scaled(typename V::F32 x, typename V::F32 factor) {
    return V::Mul(x, factor);
  }
};

template <class V, int64_t kChannels>
struct Fp8Blocks {
  static constexpr int64_t kBlock = kChannels;
  static constexpr bool kFp4 = false;

  static void Scales(typename V::F32 amax, typename V::U32* codes,
                     typename V::F32* factor) {
    const auto floored = V::Max(V::Set(1e-4f), amax);
    CeilToPower<V>(V::Mul(floored, V::Set(1.0f / 448.0f)), codes, factor);
  }
  static typename V::F32 Scaled(typename V::F32 x, typename V::F32 factor) {
    return V::Mul(x, factor);
  }
};

// The bits of a block's amax: NaN where E2M1's has one, without it for E4M3.
template <class V, bool kFp4>
uint32_t AbsMaxBits(const float* x, int64_t n) {
  auto amax = V::SetU32(0);
  for (int64_t i = 0; i < n; i += 16) {
    auto magnitude = Magnitude<V>(V::Load(x + i));
    if constexpr (!kFp4) {
      magnitude = V::Bits(V::Max(V::FromBits(magnitude), V::Zero()));
    }
    amax = V::MaxI32(amax, magnitude);
  }
  return V::MaxLaneI32(amax);
}

// Bytes and factors of the scales of n <= 16 blocks' worth of channels.
template <class V, class Blocks>
void MakeScales(const float* x, int64_t n, uint8_t* bytes, float* factors) {
  uint32_t amax[kScaleLanes] = {};
  for (int64_t b = 0; b * Blocks::kBlock < n; ++b) {
    const int64_t at = b * Blocks::kBlock;
    const int64_t left = n - at;
    amax[b] = AbsMaxBits<V, Blocks::kFp4>(
        x + at, left < Blocks::kBlock ? left : Blocks::kBlock);
  }
  typename V::U32 codes;
  typename V::F32 factor;
  Blocks::Scales(V::FromBits(V::LoadU32(amax)), &codes, &factor);
  V::StoreI8(codes, bytes);
  V::Store(factor, factors);
}

template <class V, class Blocks>
void EncodeCoded(const float* x, int64_t n, uint8_t* codes, uint8_t* scales) {
  constexpr int64_t kChunk = kScaleLanes * Blocks::kBlock;
  for (int64_t chunk = 0; chunk < n; chunk += kChunk) {
    const int64_t some = n - chunk < kChunk ? n - chunk : kChunk;
    uint8_t bytes[kScaleLanes];
    float factors[kScaleLanes];
    MakeScales<V, Blocks>(x + chunk, some, bytes, factors);
    __builtin_memcpy(
        scales + chunk / Blocks::kBlock, bytes,
        static_cast<size_t>((some + Blocks::kBlock - 1) / Blocks::kBlock));
    for (int64_t i = 0; i < some; i += 16) {
      const auto v = V::Load(x + chunk + i);
      const auto magnitude = V::FromBits(Magnitude<V>(v));
      const auto q =
          Blocks::Scaled(magnitude, V::Set(factors[i / Blocks::kBlock]));
      if constexpr (Blocks::kFp4) {
        const auto sign =
            V::And(V::template ShiftRight<28>(V::Bits(v)), V::SetU32(8));
        V::StoreNibbles(V::Or(E2m1Codes<V>(q), sign), codes + (chunk + i) / 2);
      } else {
        const auto sign =
            V::And(V::template ShiftRight<24>(V::Bits(v)), V::SetU32(0x80));
        V::StoreI8(V::Or(E4m3Codes<V>(q), sign), codes + chunk + i);
      }
    }
  }
}

template <class V>
void EncodeRowsCpu(const EncodeRowsParams& p, const RowShape& shape,
                   int64_t row_begin, int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = p.x + row * p.x_stride;
    uint8_t* out = p.rows != nullptr ? p.rows[row] : p.out + row * p.out_stride;
    uint8_t* scales = out + shape.scales_at;
    switch (p.format) {
      case RowFormat::kMainFp4:
        EncodeCoded<V, MainBlocks<V>>(x, shape.n_coded, out, scales);
        break;
      case RowFormat::kIndexFp4:
        EncodeCoded<V, IndexBlocks<V>>(x, shape.n_coded, out, scales);
        break;
      case RowFormat::kWindowFp8:
        EncodeCoded<V, Fp8Blocks<V, 32>>(x, shape.n_coded, out, scales);
        break;
      case RowFormat::kV4Record:
        EncodeCoded<V, Fp8Blocks<V, 64>>(x, shape.n_coded, out, scales);
        break;
    }
    for (int64_t i = 0; i < shape.n_tail; i += 16) {
      uint16_t values[16];
      V::StoreBf16(V::Load(x + shape.n_coded + i), values);
      __builtin_memcpy(out + shape.tail_at + 2 * i, values, sizeof(values));
    }
    for (int64_t i = shape.scales_at + shape.n_scales; i < shape.bytes; ++i) {
      out[i] = 0;
    }
  }
}

template <class V>
void FakeQuantFp8Cpu(const FakeQuantFp8Params& p, int64_t row_begin,
                     int64_t row_end) {
  using Blocks = Fp8Blocks<V, 32>;
  constexpr int64_t kChunk = kScaleLanes * Blocks::kBlock;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t chunk = 0; chunk < p.dim; chunk += kChunk) {
      float* x = p.x + row * p.x_stride + chunk;
      const int64_t some = p.dim - chunk < kChunk ? p.dim - chunk : kChunk;
      uint8_t bytes[kScaleLanes];
      float factors[kScaleLanes];
      Scales scales;
      MakeScales<V, Blocks>(x, some, bytes, factors);
      LoadScales<V>(ScaleType::kUe8m0, bytes, kScaleLanes, &scales);
      for (int64_t i = 0; i < some; i += 16) {
        const int64_t b = i / Blocks::kBlock;
        const auto v = V::Load(x + i);
        const auto q = V::Mul(V::FromBits(Magnitude<V>(v)), V::Set(factors[b]));
        // A signed byte's sign in bit 11: E4m3Values looks no further.
        const auto sign =
            V::And(V::template ShiftRight<20>(V::Bits(v)), V::SetU32(0x800));
        const auto code = V::Or(E4m3Codes<V>(q), sign);
        V::Store(V::Mul(E4m3Values<V, true>(code), V::Set(scales.values[b])),
                 x + i);
      }
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_ENCODE_CPU_H_
