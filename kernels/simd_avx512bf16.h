// SPDX-License-Identifier: Apache-2.0
//
// kernels/simd_portable.h's contract on AVX-512 with BF16: one register a
// value. vdpbf16ps reads denormal inputs as zero and flushes denormal results,
// which is part of this path's numerics. Included only by files that are
// compiled for that path.

#ifndef TORPOR_KERNELS_SIMD_AVX512BF16_H_
#define TORPOR_KERNELS_SIMD_AVX512BF16_H_

#include <immintrin.h>

#include <cstdint>

namespace torpor::kernels {

struct Avx512Bf16Simd {
  static constexpr const char* kName = "avx512bf16";
  // Tile of a GEMM that fits this path's registers (kernels/gemm_cpu.h).
  static constexpr int kGemmRows = 12;
  static constexpr int kGemmGroups = 2;
  // The same for attention (kernels/attention_cpu.h); the last two wherever
  // rows of numbers meet vectors (kernels/latent_attention_cpu.h).
  static constexpr int kScoreRows = 8;
  static constexpr int kValueRows = 4;
  static constexpr int kValueVecs = 4;

  struct F32 {
    __m512 v;
  };
  struct U32 {
    __m512i v;
  };

  static F32 Zero() { return {_mm512_setzero_ps()}; }
  static F32 Set(float x) { return {_mm512_set1_ps(x)}; }
  static F32 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static void Store(F32 a, float* p) { _mm512_storeu_ps(p, a.v); }
  static U32 LoadU32(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }

  static F32 Add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
  static F32 Sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
  static F32 Mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
  static F32 Div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
  static F32 Fma(F32 a, F32 b, F32 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  static F32 Max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
  static F32 Min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
  static F32 Round(F32 a) {
    return {_mm512_roundscale_ps(
        a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  }
  static F32 Exp2Int(F32 n) {
    const __m512i e =
        _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
  }
  static F32 Select(int begin, int end, F32 a, F32 b) {
    const unsigned below_end = end >= 16 ? 0xffffu : (1u << end) - 1u;
    const unsigned below_begin = begin >= 16 ? 0xffffu : (1u << begin) - 1u;
    return {_mm512_mask_blend_ps(
        static_cast<__mmask16>(below_end & ~below_begin), b.v, a.v)};
  }

  static float Sum(F32 a) {
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), Upper(a.v));
    const __m128 s4 =
        _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }
  static float MaxLane(F32 a) {
    const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), Upper(a.v));
    const __m128 s4 =
        _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }

  static F32 SwapPairs(F32 a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
  static void Transpose4(const float* in, int64_t stride, float* out) {
    // Register i: rows i, i + 4, i + 8 and i + 12.
    const auto four = [&](int64_t i) {
      const float* row = in + i * stride;
      __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(row));
      v = _mm512_insertf32x4(v, _mm_loadu_ps(row + 4 * stride), 1);
      v = _mm512_insertf32x4(v, _mm_loadu_ps(row + 8 * stride), 2);
      return _mm512_insertf32x4(v, _mm_loadu_ps(row + 12 * stride), 3);
    };
    const __m512 r0 = four(0);
    const __m512 r1 = four(1);
    const __m512 r2 = four(2);
    const __m512 r3 = four(3);
    const __m512 a = _mm512_unpacklo_ps(r0, r1);
    const __m512 b = _mm512_unpackhi_ps(r0, r1);
    const __m512 c = _mm512_unpacklo_ps(r2, r3);
    const __m512 d = _mm512_unpackhi_ps(r2, r3);
    _mm512_storeu_ps(out, _mm512_shuffle_ps(a, c, 0x44));
    _mm512_storeu_ps(out + 16, _mm512_shuffle_ps(a, c, 0xee));
    _mm512_storeu_ps(out + 32, _mm512_shuffle_ps(b, d, 0x44));
    _mm512_storeu_ps(out + 48, _mm512_shuffle_ps(b, d, 0xee));
  }

  static F32 DotBf16(F32 acc, U32 a, U32 b) {
    return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v),
                             reinterpret_cast<__m512bh>(b.v))};
  }
  static U32 SetU32(uint32_t u) {
    return {_mm512_set1_epi32(static_cast<int>(u))};
  }
  static U32 And(U32 a, U32 b) { return {_mm512_and_si512(a.v, b.v)}; }

  static U32 Bits(F32 a) { return {_mm512_castps_si512(a.v)}; }
  static F32 FromBits(U32 a) { return {_mm512_castsi512_ps(a.v)}; }
  static U32 Or(U32 a, U32 b) { return {_mm512_or_si512(a.v, b.v)}; }
  static U32 AddU32(U32 a, U32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
  static U32 SubU32(U32 a, U32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
  template <int kBits>
  static U32 ShiftLeft(U32 a) {
    return {_mm512_slli_epi32(a.v, kBits)};
  }
  template <int kBits>
  static U32 ShiftRight(U32 a) {
    return {_mm512_srli_epi32(a.v, kBits)};
  }
  static U32 IfGreater(U32 a, U32 b, U32 x, U32 y) {
    return {
        _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(a.v, b.v), y.v, x.v)};
  }
  static bool AnyGreater(U32 a, U32 b) {
    return _mm512_cmpgt_epi32_mask(a.v, b.v) != 0;
  }
  static U32 MaxI32(U32 a, U32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
  static U32 MinI32(U32 a, U32 b) { return {_mm512_min_epi32(a.v, b.v)}; }
  static uint32_t MaxLaneI32(U32 a) {
    const __m256i s8 = _mm256_max_epi32(_mm512_castsi512_si256(a.v),
                                        _mm512_extracti64x4_epi64(a.v, 1));
    const __m128i s4 = _mm_max_epi32(_mm256_castsi256_si128(s8),
                                     _mm256_extracti128_si256(s8, 1));
    const __m128i s2 = _mm_max_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return static_cast<uint32_t>(
        _mm_cvtsi128_si32(_mm_max_epi32(s2, _mm_shuffle_epi32(s2, 0xb1))));
  }
  static F32 WithSign(F32 a, U32 b) {
    // a | (b & c), as a truth table of its bits.
    return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(
        _mm512_castps_si512(a.v), b.v,
        _mm512_set1_epi32(static_cast<int>(0x80000000)), 0xf8))};
  }
  static U32 LoadI8(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static U32 LoadI8Some(const uint8_t* p, int64_t n, uint8_t fill) {
    const auto there = static_cast<__mmask16>((1u << n) - 1);
    return {_mm512_cvtepi8_epi32(
        _mm_mask_loadu_epi8(_mm_set1_epi8(static_cast<char>(fill)), there, p))};
  }
  static void StoreI8(U32 a, uint8_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
  }
  static U32 LoadNibbles(const uint8_t* p) {
    int low;
    int high;
    __builtin_memcpy(&low, p, 4);
    __builtin_memcpy(&high, p + 4, 4);
    const __m512i shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4,
                                             8, 12, 16, 20, 24, 28);
    return {_mm512_srlv_epi32(
        _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high), shifts)};
  }
  static void StoreNibbles(U32 a, uint8_t* p) {
    // lane 2i + 16 * lane 2i+1, in 16 bits.
    const __m128i pairs =
        _mm_maddubs_epi16(_mm512_cvtepi32_epi8(a.v), _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(pairs, pairs));
  }
  static F32 Lookup(F32 table, U32 index) {
    return {_mm512_permutexvar_ps(index.v, table.v)};
  }
  static U32 LoadI8Pairs(const uint8_t* p) {
    return {_mm512_cvtepi8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static bool Any7f(const uint8_t* p, int64_t n) {
    const __m512i wanted = _mm512_set1_epi8(0x7f);
    __mmask64 any = 0;
    for (int64_t i = 0; i < n; i += 64) {
      const __mmask64 there =
          n - i < 64 ? (uint64_t{1} << (n - i)) - 1 : ~uint64_t{0};
      const __m512i bytes = _mm512_maskz_loadu_epi8(there, p + i);
      any |= _mm512_cmpeq_epi8_mask(_mm512_and_si512(bytes, wanted), wanted);
    }
    return any != 0;
  }
  static F32 SetHalves(float low, float high) {
    return {_mm512_mask_blend_ps(0xff00, _mm512_set1_ps(low),
                                 _mm512_set1_ps(high))};
  }
  static void StoreUpperPairs(F32 even, F32 odd, uint16_t* p) {
    _mm512_storeu_si512(
        p, _mm512_mask_blend_epi16(
               0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(even.v), 16),
               _mm512_castps_si512(odd.v)));
  }

  static void StoreBf16(F32 a, uint16_t* p) {
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd),
        16);
    const __m512i quiet =
        _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(p),
        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
  }
  static F32 LoadBf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
        16))};
  }

 private:
  static __m256 Upper(__m512 v) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  }
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SIMD_AVX512BF16_H_
