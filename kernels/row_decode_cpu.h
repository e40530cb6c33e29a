// SPDX-License-Identifier: Apache-2.0
//
// Decoding of kernels/row_codec.h and kernels/weight_codec.h over sixteen
// lanes, with nothing rounded where the reference does not: E4M3's exponent and
// mantissa are moved under f32's; a subnormal is made with an exponent too
// many, whose power of two is then subtracted.

#ifndef TORPOR_KERNELS_ROW_DECODE_CPU_H_
#define TORPOR_KERNELS_ROW_DECODE_CPU_H_

#include <cstdint>

#include "kernels/row_codec.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

// Scales that are made or read at once.
inline constexpr int64_t kScaleLanes = 16;

enum class ScaleType { kE4m3, kUe8m0 };

// Bits without the sign: as integers they order as the numbers do, NaN last.
template <class V>
typename V::U32 Magnitude(typename V::F32 x) {
  return V::And(V::Bits(x), V::SetU32(0x7fffffffu));
}

// Values of codes in bits 20 to 26 and 31, none NaN; other bits do not count.
template <class V>
typename V::F32 E4m3Shifted(typename V::U32 shifted) {
  const auto biased = V::FromBits(V::AddU32(
      V::And(shifted, V::SetU32(0x07f00000u)), V::SetU32(120u << 23)));
  // Twice the number, less itself or the 2^-6 that a subnormal has too much.
  const auto excess = V::Max(biased, V::Set(0x1p-6f));
  return V::WithSign(V::Add(biased, V::Sub(biased, excess)), shifted);
}

// Values of signed bytes; kNan says whether any may be NaN.
template <class V, bool kNan>
typename V::F32 E4m3Values(typename V::U32 codes) {
  const auto value = E4m3Shifted<V>(V::template ShiftLeft<20>(codes));
  if constexpr (!kNan) return value;
  return V::FromBits(V::IfGreater(V::And(codes, V::SetU32(0x7f)),
                                  V::SetU32(0x7e), V::SetU32(0x7fc00000u),
                                  V::Bits(value)));
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

// Scales of up to 16 blocks, as floats.
struct Scales {
  float values[kScaleLanes];
  bool any_nan;
  // Whether all products with E4M3 are bf16: no scale is below 2^-124.
  bool fit_bf16;
};

// n <= 16 of them.
template <class V>
void LoadScales(ScaleType type, const uint8_t* bytes, int64_t n, Scales* out) {
  // Neither NaN nor small in either type.
  constexpr uint8_t kFill = 0x38;
  const auto codes =
      n < kScaleLanes ? V::LoadI8Some(bytes, n, kFill) : V::LoadI8(bytes);
  const auto values = type == ScaleType::kE4m3 ? E4m3Values<V, true>(codes)
                                               : Ue8m0Values<V>(codes);
  V::Store(values, out->values);
  const auto u = V::Bits(values);
  out->any_nan = V::AnyGreater(u, V::SetU32(0x7f800000u));
  // Only E4M3 asks, whose scales are UE8M0.
  out->fit_bf16 = !V::AnyGreater(V::SetU32(3u << 23), u);
}

// 16 channels' values from their codes and scale. kCareful: any may be NaN,
// and then is 0x7fc00000.
struct Fp4Codes {
  static constexpr int64_t kBytes = 8;

  template <class V>
  static typename V::F32 Table() {
    constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                   4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                   -2.0f, -3.0f, -4.0f, -6.0f};
    return V::Load(kValues);
  }
  // Of 32 channels, without a scale.
  template <class V>
  static void Pairs(const uint8_t* codes, typename V::F32* even,
                    typename V::F32* odd) {
    const auto both = V::LoadI8(codes);
    *even = V::Lookup(Table<V>(), both);
    *odd = V::Lookup(Table<V>(), V::template ShiftRight<4>(both));
  }

  template <class V, bool kCareful>
  struct Block {
    // All products.
    typename V::F32 table;
    explicit Block(float scale) : table(V::Mul(Table<V>(), V::Set(scale))) {}
    typename V::F32 Values(const uint8_t* codes) const {
      return V::Lookup(table, V::LoadNibbles(codes));
    }
  };
};

struct Fp8Codes {
  static constexpr int64_t kBytes = 16;

  template <class V>
  static void Pairs(const uint8_t* codes, typename V::F32* even,
                    typename V::F32* odd) {
    const auto both = V::LoadI8Pairs(codes);
    *even = E4m3Shifted<V>(V::template ShiftLeft<20>(both));
    *odd = E4m3Shifted<V>(V::template ShiftLeft<4>(both));
  }

  template <class V, bool kCareful>
  struct Block {
    typename V::F32 factor;
    explicit Block(float scale) : factor(V::Set(scale)) {}
    typename V::F32 Values(const uint8_t* codes) const {
      return V::Mul(E4m3Values<V, kCareful>(V::LoadI8(codes)), factor);
    }
  };
};

// Whole blocks of `steps` times 16 channels; kSteps is that where it is known.
// Not kCareful: no value is NaN, and all fit the type of `out`.
template <class V, class Codes, class Out, bool kCareful, int kSteps>
void DecodeBlocks(const uint8_t* codes, const float* scales, int64_t n_blocks,
                  int64_t steps, Out* out) {
  for (int64_t b = 0; b < n_blocks; ++b) {
    const typename Codes::template Block<V, kCareful> block(scales[b]);
    for (int64_t s = 0; s < (kSteps == 0 ? steps : kSteps); ++s) {
      auto value = block.Values(codes);
      if constexpr (kCareful) {
        value = V::FromBits(
            V::IfGreater(Magnitude<V>(value), V::SetU32(0x7f800000u),
                         V::SetU32(0x7fc00000u), V::Bits(value)));
      }
      if constexpr (sizeof(Out) == 4) {
        V::Store(value, out);
      } else {
        V::StoreBf16(value, out);
      }
      codes += Codes::kBytes;
      out += 16;
    }
  }
}

// The same to bf16, 32 channels at a time, of one block or of two; what is left
// goes the way above.
template <class V, class Codes, int kSteps>
void DecodePairs(const uint8_t* codes, const float* scales, int64_t n_blocks,
                 uint16_t* out) {
  const int64_t pairs = n_blocks * kSteps / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    typename V::F32 even;
    typename V::F32 odd;
    Codes::template Pairs<V>(codes + 2 * i * Codes::kBytes, &even, &odd);
    const auto factor = kSteps == 1
                            ? V::SetHalves(scales[2 * i], scales[2 * i + 1])
                            : V::Set(scales[2 * i / kSteps]);
    V::StoreUpperPairs(V::Mul(even, factor), V::Mul(odd, factor), out + 32 * i);
  }
  if (kSteps == 1 && n_blocks % 2 != 0) {
    DecodeBlocks<V, Codes, uint16_t, false, 1>(
        codes + 2 * pairs * Codes::kBytes, scales + n_blocks - 1, 1, 1,
        out + 32 * pairs);
  }
}

template <class V, class Codes, class Out, bool kCareful, int kSteps>
void DecodeKnown(const uint8_t* codes, const float* scales, int64_t n_blocks,
                 Out* out) {
  if constexpr (sizeof(Out) == 2 && !kCareful) {
    DecodePairs<V, Codes, kSteps>(codes, scales, n_blocks, out);
  } else {
    DecodeBlocks<V, Codes, Out, kCareful, kSteps>(codes, scales, n_blocks,
                                                  kSteps, out);
  }
}

template <class V, class Codes, class Out, bool kCareful>
void DecodeSteps(const uint8_t* codes, const float* scales, int64_t n_blocks,
                 int64_t steps, Out* out) {
  switch (steps) {
    case 1:
      return DecodeKnown<V, Codes, Out, kCareful, 1>(codes, scales, n_blocks,
                                                     out);
    case 2:
      return DecodeKnown<V, Codes, Out, kCareful, 2>(codes, scales, n_blocks,
                                                     out);
    case 4:
      return DecodeKnown<V, Codes, Out, kCareful, 4>(codes, scales, n_blocks,
                                                     out);
    default:
      return DecodeBlocks<V, Codes, Out, kCareful, 0>(codes, scales, n_blocks,
                                                      steps, out);
  }
}

struct CodedRow {
  const uint8_t* codes;
  const uint8_t* scales;
  ScaleType scale_type;
  // Multiples of 16; a scale covers `block` channels, the last maybe fewer.
  int64_t n;
  int64_t block;
};

template <class V, class Codes, class Out>
void DecodeCoded(const CodedRow& r, Out* out) {
  const int64_t chunk = kScaleLanes * r.block;
  for (int64_t at = 0; at < r.n; at += chunk) {
    const int64_t n = r.n - at < chunk ? r.n - at : chunk;
    const int64_t whole = n / r.block;
    const int64_t rest = n % r.block;
    Scales scales;
    LoadScales<V>(r.scale_type, r.scales + at / r.block,
                  whole + (rest != 0 ? 1 : 0), &scales);
    const uint8_t* codes = r.codes + at / 16 * Codes::kBytes;
    bool careful = scales.any_nan;
    if constexpr (Codes::kBytes == 16) {
      careful = careful || (sizeof(Out) == 2 && !scales.fit_bf16) ||
                V::Any7f(codes, n);
    }
    const auto decode = careful ? &DecodeSteps<V, Codes, Out, true>
                                : &DecodeSteps<V, Codes, Out, false>;
    decode(codes, scales.values, whole, r.block / 16, out + at);
    if (rest != 0) {
      const int64_t done = whole * r.block;
      decode(codes + done / 16 * Codes::kBytes, scales.values + whole, 1,
             rest / 16, out + at + done);
    }
  }
}

// To `at` of `out`, elements of `dtype`.
template <class V>
void DecodeCoded(const CodedRow& r, bool fp4, DType dtype, void* out,
                 int64_t at) {
  auto* f32 = static_cast<float*>(out) + at;
  auto* bf16 = static_cast<uint16_t*>(out) + at;
  if (dtype == DType::kF32) {
    fp4 ? DecodeCoded<V, Fp4Codes>(r, f32) : DecodeCoded<V, Fp8Codes>(r, f32);
  } else {
    fp4 ? DecodeCoded<V, Fp4Codes>(r, bf16) : DecodeCoded<V, Fp8Codes>(r, bf16);
  }
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
                    .block = shape.block},
                   main || p.format == RowFormat::kIndexFp4, p.out_dtype, p.out,
                   at);
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
                    .block = p.block_columns},
                   p.format == WeightFormat::kFp4, p.out_dtype, p.out,
                   row * p.out_stride);
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_DECODE_CPU_H_
