// SPDX-License-Identifier: Apache-2.0
//
// kernels/row_codec.h and kernels/weight_codec.h over sixteen lanes. Every step
// is exact or rounds as the reference does, so that all paths give its bytes:
//   E4M3 decode: exponent and mantissa moved under f32's; a subnormal is made
//     with an exponent too many, whose power of two is then subtracted
//   rounding to few bits: half of the last place, and ties by its parity, added
//     to the bits; below the normal range, a float is added whose last place is
//     the format's smallest step
//   x / scale under a power of two: x * (1 / scale), the same quotient

#ifndef TORPOR_KERNELS_ROW_CODEC_CPU_H_
#define TORPOR_KERNELS_ROW_CODEC_CPU_H_

#include <cstdint>

#include "kernels/row_codec.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

// Scales that are made or read at once.
inline constexpr int64_t kScaleLanes = 16;

enum class ScaleType { kE4m3, kUe8m0 };

// The magnitude's bits, and its largest lane with NaN above all.
template <class V>
typename V::U32 Magnitude(typename V::F32 x) {
  return V::And(V::Bits(x), V::SetU32(0x7fffffffu));
}

// Values of signed bytes; kNan says whether any may be NaN.
template <class V, bool kNan>
typename V::F32 E4m3Values(typename V::U32 codes) {
  const auto shifted = V::template ShiftLeft<20>(codes);
  const auto biased = V::FromBits(V::AddU32(
      V::And(shifted, V::SetU32(0x07f00000u)), V::SetU32(120u << 23)));
  // Twice the number, less itself or the 2^-6 that a subnormal has too much.
  const auto excess = V::Max(biased, V::Set(0x1p-6f));
  auto value = V::WithSign(V::Add(biased, V::Sub(biased, excess)), shifted);
  if constexpr (kNan) {
    value = V::FromBits(V::IfGreater(V::And(codes, V::SetU32(0x7f)),
                                     V::SetU32(0x7e), V::SetU32(0x7fc00000u),
                                     V::Bits(value)));
  }
  return value;
}

template <class V>
typename V::F32 Ue8m0Values(typename V::U32 codes) {
  const auto byte = V::And(codes, V::SetU32(0xff));
  const auto power =
      V::IfGreater(byte, V::SetU32(0), V::template ShiftLeft<23>(byte),
                   V::SetU32(0x400000u));
  return V::FromBits(
      V::IfGreater(byte, V::SetU32(254), V::SetU32(0x7fc00000u), power));
}

// `n` <= 16 scales as floats.
template <class V>
void LoadScales(ScaleType type, const uint8_t* bytes, int64_t n,
                float* values) {
  uint8_t some[kScaleLanes] = {};
  if (n < kScaleLanes) {
    for (int64_t i = 0; i < n; ++i) some[i] = bytes[i];
    bytes = some;
  }
  const auto codes = V::LoadI8(bytes);
  V::Store(type == ScaleType::kE4m3 ? E4m3Values<V, true>(codes)
                                    : Ue8m0Values<V>(codes),
           values);
}

template <class V>
bool AnyE4m3Nan(const uint8_t* codes, int64_t n) {
  bool any = false;
  for (int64_t i = 0; i < n; i += 16) any = V::Any7f(codes + i) || any;
  return any;
}

// Where decoded values go. Those of E2M1 fit bf16.
template <class V, DType kOut, bool kFits>
void StoreDecoded(typename V::F32 value, void* out, int64_t at) {
  if constexpr (kOut == DType::kF32) {
    V::Store(value, static_cast<float*>(out) + at);
  } else if constexpr (kFits) {
    V::StoreUpper(value, static_cast<uint16_t*>(out) + at);
  } else {
    V::StoreBf16(value, static_cast<uint16_t*>(out) + at);
  }
}

struct Fp4Codes {
  static constexpr bool kFitsBf16 = true;
  static constexpr int64_t kPerByte = 2;

  // Codes of 16 channels under a scale, from the table of its products.
  template <class V>
  struct Block {
    typename V::F32 table;
    explicit Block(float scale) {
      constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                     4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                     -2.0f, -3.0f, -4.0f, -6.0f};
      // A NaN product may have either sign.
      table = scale == scale ? V::Mul(V::Load(kValues), V::Set(scale))
                             : V::Set(scale);
    }
    typename V::F32 Values(const uint8_t* codes) const {
      return V::Lookup(table, V::LoadNibbles(codes));
    }
  };
};

template <bool kNan>
struct Fp8Codes {
  static constexpr bool kFitsBf16 = false;
  static constexpr int64_t kPerByte = 1;

  template <class V>
  struct Block {
    typename V::F32 factor;
    explicit Block(float scale) : factor(V::Set(scale)) {}
    typename V::F32 Values(const uint8_t* codes) const {
      return V::Mul(E4m3Values<V, kNan>(V::LoadI8(codes)), factor);
    }
  };
};

struct CodedRow {
  const uint8_t* codes;
  const uint8_t* scales;
  ScaleType scale_type;
  // A multiple of 16; a scale covers `block` of them, the last maybe fewer.
  int64_t n;
  int64_t block;
  // Values go to out[out_at...].
  void* out;
  int64_t out_at;
};

// kSteps vectors to a block; 0: as many as it says.
template <class V, class Codes, DType kOut, int kSteps>
void DecodeBlocks(const CodedRow& r) {
  const int64_t block = kSteps == 0 ? r.block : 16 * kSteps;
  const int64_t n_blocks = (r.n + block - 1) / block;
  float scales[kScaleLanes];
  for (int64_t b = 0; b < n_blocks; ++b) {
    if (b % kScaleLanes == 0) {
      const int64_t left = n_blocks - b;
      LoadScales<V>(r.scale_type, r.scales + b,
                    left < kScaleLanes ? left : kScaleLanes, scales);
    }
    const typename Codes::template Block<V> values(scales[b % kScaleLanes]);
    const int64_t at = b * block;
    const int64_t end = r.n - at < block ? r.n : at + block;
    for (int64_t i = at; i < end; i += 16) {
      StoreDecoded<V, kOut, Codes::kFitsBf16>(
          values.Values(r.codes + i / Codes::kPerByte), r.out, r.out_at + i);
    }
  }
}

template <class V, class Codes, DType kOut>
void DecodeRow(const CodedRow& r) {
  const bool whole = r.n % r.block == 0;
  if (whole && r.block == 16) return DecodeBlocks<V, Codes, kOut, 1>(r);
  if (whole && r.block == 32) return DecodeBlocks<V, Codes, kOut, 2>(r);
  DecodeBlocks<V, Codes, kOut, 0>(r);
}

template <class V>
void DecodeCoded(const CodedRow& r, bool fp4, DType out_dtype) {
  const bool f32 = out_dtype == DType::kF32;
  if (fp4) {
    return f32 ? DecodeRow<V, Fp4Codes, DType::kF32>(r)
               : DecodeRow<V, Fp4Codes, DType::kBf16>(r);
  }
  if (AnyE4m3Nan<V>(r.codes, r.n)) {
    return f32 ? DecodeRow<V, Fp8Codes<true>, DType::kF32>(r)
               : DecodeRow<V, Fp8Codes<true>, DType::kBf16>(r);
  }
  return f32 ? DecodeRow<V, Fp8Codes<false>, DType::kF32>(r)
             : DecodeRow<V, Fp8Codes<false>, DType::kBf16>(r);
}

template <class V>
void DecodeTail(const uint8_t* in, int64_t n, DType dtype, void* out,
                int64_t at) {
  if (dtype == DType::kBf16) {
    __builtin_memcpy(static_cast<uint16_t*>(out) + at, in,
                     static_cast<size_t>(2 * n));
    return;
  }
  for (int64_t i = 0; i < n; i += 16) {
    uint16_t values[16];
    __builtin_memcpy(values, in + 2 * i, sizeof(values));
    V::Store(V::LoadBf16(values), static_cast<float*>(out) + at + i);
  }
}

template <class V>
void DecodeRowsCpu(const DecodeRowsParams& p, const RowShape& shape,
                   int64_t row_begin, int64_t row_end) {
  const bool main = p.format == RowFormat::kMainFp4;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const uint8_t* in = p.in + row * p.in_stride;
    const int64_t at = row * p.out_stride;
    DecodeCoded<V>({.codes = in,
                    .scales = in + shape.scales_at,
                    .scale_type = main ? ScaleType::kE4m3 : ScaleType::kUe8m0,
                    .n = shape.n_coded,
                    .block = shape.block,
                    .out = p.out,
                    .out_at = at},
                   main || p.format == RowFormat::kIndexFp4, p.out_dtype);
    DecodeTail<V>(in + shape.tail_at, shape.n_tail, p.out_dtype, p.out,
                  at + shape.n_coded);
  }
}

template <class V>
void DecodeWeightsCpu(const DecodeWeightsParams& p, int64_t row_begin,
                      int64_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    DecodeCoded<V>({.codes = p.codes + row * p.codes_stride,
                    .scales = p.scales + row / p.block_rows * p.scales_stride,
                    .scale_type = ScaleType::kUe8m0,
                    .n = p.dim,
                    .block = p.block_columns,
                    .out = p.out,
                    .out_at = row * p.out_stride},
                   p.format == WeightFormat::kFp4, p.out_dtype);
  }
}

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
    uint8_t* out = p.out + row * p.out_stride;
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
      float scales[kScaleLanes];
      MakeScales<V, Blocks>(x, some, bytes, factors);
      LoadScales<V>(ScaleType::kUe8m0, bytes, kScaleLanes, scales);
      for (int64_t i = 0; i < some; i += 16) {
        const int64_t b = i / Blocks::kBlock;
        const auto v = V::Load(x + i);
        const auto q = V::Mul(V::FromBits(Magnitude<V>(v)), V::Set(factors[b]));
        // A signed byte's sign in bit 11: E4m3Values looks no further.
        const auto sign =
            V::And(V::template ShiftRight<20>(V::Bits(v)), V::SetU32(0x800));
        const auto code = V::Or(E4m3Codes<V>(q), sign);
        V::Store(V::Mul(E4m3Values<V, true>(code), V::Set(scales[b])), x + i);
      }
    }
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_CODEC_CPU_H_
