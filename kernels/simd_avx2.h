// SPDX-License-Identifier: Apache-2.0
//
// kernels/simd_portable.h's contract on AVX2 with FMA: two registers a value.
// Included only by files that are compiled for that path.

#ifndef TORPOR_KERNELS_SIMD_AVX2_H_
#define TORPOR_KERNELS_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace torpor::kernels {

struct Avx2Simd {
  static constexpr const char* kName = "avx2";
  // Tile of a GEMM that fits this path's registers (kernels/gemm_cpu.h).
  static constexpr int kGemmRows = 4;
  static constexpr int kGemmGroups = 1;
  // The same for attention (kernels/attention_cpu.h); the last two wherever
  // rows of numbers meet vectors (kernels/latent_attention_cpu.h).
  static constexpr int kScoreRows = 4;
  static constexpr int kValueRows = 2;
  static constexpr int kValueVecs = 2;

  struct F32 {
    __m256 lo, hi;
  };
  struct U32 {
    __m256i lo, hi;
  };

  static F32 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32 Set(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
  }
  static F32 Load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static void Store(F32 a, float* p) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static U32 LoadU32(const uint32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
  }

  static F32 Add(F32 a, F32 b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  static F32 Sub(F32 a, F32 b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  static F32 Mul(F32 a, F32 b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  static F32 Div(F32 a, F32 b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  static F32 Fma(F32 a, F32 b, F32 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo),
            _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static F32 Max(F32 a, F32 b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  static F32 Min(F32 a, F32 b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  static F32 Round(F32 a) {
    constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, kMode), _mm256_round_ps(a.hi, kMode)};
  }
  static F32 Exp2Int(F32 n) {
    const auto one = [](__m256 x) {
      const __m256i e =
          _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
      return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
    };
    return {one(n.lo), one(n.hi)};
  }
  static F32 Select(int begin, int end, F32 a, F32 b) {
    const auto mask = [&](int first) {
      const __m256i lane = _mm256_add_epi32(
          _mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
      return _mm256_castsi256_ps(_mm256_and_si256(
          _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1)),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
    };
    return {_mm256_blendv_ps(b.lo, a.lo, mask(0)),
            _mm256_blendv_ps(b.hi, a.hi, mask(8))};
  }

  static float Sum(F32 a) {
    const __m256 s8 = _mm256_add_ps(a.lo, a.hi);
    const __m128 s4 =
        _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }
  static float MaxLane(F32 a) {
    const __m256 s8 = _mm256_max_ps(a.lo, a.hi);
    const __m128 s4 =
        _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
  }

  static F32 SwapPairs(F32 a) {
    return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
  }
  static void Transpose4(const float* in, int64_t stride, float* out) {
    for (int half = 0; half < 2; ++half) {
      // Register i: rows i and i + 4 of this half.
      const float* rows = in + half * 8 * stride;
      const auto two = [&](int64_t i) {
        return _mm256_insertf128_ps(
            _mm256_castps128_ps256(_mm_loadu_ps(rows + i * stride)),
            _mm_loadu_ps(rows + (i + 4) * stride), 1);
      };
      const __m256 a = _mm256_unpacklo_ps(two(0), two(1));
      const __m256 b = _mm256_unpackhi_ps(two(0), two(1));
      const __m256 c = _mm256_unpacklo_ps(two(2), two(3));
      const __m256 d = _mm256_unpackhi_ps(two(2), two(3));
      float* to = out + half * 8;
      _mm256_storeu_ps(to, _mm256_shuffle_ps(a, c, 0x44));
      _mm256_storeu_ps(to + 16, _mm256_shuffle_ps(a, c, 0xee));
      _mm256_storeu_ps(to + 32, _mm256_shuffle_ps(b, d, 0x44));
      _mm256_storeu_ps(to + 48, _mm256_shuffle_ps(b, d, 0xee));
    }
  }

  static F32 DotBf16(F32 acc, U32 a, U32 b) {
    const auto low = [](__m256i u) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    };
    const auto high = [](__m256i u) {
      return _mm256_castsi256_ps(
          _mm256_and_si256(u, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
    };
    const auto one = [&](__m256 c, __m256i x, __m256i y) {
      return _mm256_fmadd_ps(high(x), high(y),
                             _mm256_fmadd_ps(low(x), low(y), c));
    };
    return {one(acc.lo, a.lo, b.lo), one(acc.hi, a.hi, b.hi)};
  }
  static U32 SetU32(uint32_t u) {
    const __m256i v = _mm256_set1_epi32(static_cast<int>(u));
    return {v, v};
  }
  static U32 And(U32 a, U32 b) {
    return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
  }

  static U32 Bits(F32 a) {
    return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
  }
  static F32 FromBits(U32 a) {
    return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
  }
  static U32 Or(U32 a, U32 b) {
    return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
  }
  static U32 AddU32(U32 a, U32 b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  static U32 SubU32(U32 a, U32 b) {
    return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
  }
  template <int kBits>
  static U32 ShiftLeft(U32 a) {
    return {_mm256_slli_epi32(a.lo, kBits), _mm256_slli_epi32(a.hi, kBits)};
  }
  template <int kBits>
  static U32 ShiftRight(U32 a) {
    return {_mm256_srli_epi32(a.lo, kBits), _mm256_srli_epi32(a.hi, kBits)};
  }
  static U32 IfGreater(U32 a, U32 b, U32 x, U32 y) {
    return {_mm256_blendv_epi8(y.lo, x.lo, _mm256_cmpgt_epi32(a.lo, b.lo)),
            _mm256_blendv_epi8(y.hi, x.hi, _mm256_cmpgt_epi32(a.hi, b.hi))};
  }
  static bool AnyGreater(U32 a, U32 b) {
    return _mm256_movemask_epi8(
               _mm256_or_si256(_mm256_cmpgt_epi32(a.lo, b.lo),
                               _mm256_cmpgt_epi32(a.hi, b.hi))) != 0;
  }
  static U32 MaxI32(U32 a, U32 b) {
    return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
  }
  static U32 MinI32(U32 a, U32 b) {
    return {_mm256_min_epi32(a.lo, b.lo), _mm256_min_epi32(a.hi, b.hi)};
  }
  static uint32_t MaxLaneI32(U32 a) {
    const __m256i s8 = _mm256_max_epi32(a.lo, a.hi);
    const __m128i s4 = _mm_max_epi32(_mm256_castsi256_si128(s8),
                                     _mm256_extracti128_si256(s8, 1));
    const __m128i s2 = _mm_max_epi32(s4, _mm_shuffle_epi32(s4, 0x4e));
    return static_cast<uint32_t>(
        _mm_cvtsi128_si32(_mm_max_epi32(s2, _mm_shuffle_epi32(s2, 0xb1))));
  }
  static F32 WithSign(F32 a, U32 b) {
    return FromBits(Or(Bits(a), And(b, SetU32(0x80000000u))));
  }
  static U32 LoadI8(const uint8_t* p) {
    const auto one = [](const uint8_t* q) {
      return _mm256_cvtepi8_epi32(
          _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)));
    };
    return {one(p), one(p + 8)};
  }
  static U32 LoadI8Some(const uint8_t* p, int64_t n, uint8_t fill) {
    // In registers: a load of bytes just stored one by one would wait.
    const auto word = [&](const uint8_t* q, int64_t some) {
      uint64_t w = 0;
      for (int64_t i = 7; i >= 0; --i) w = w << 8 | (i < some ? q[i] : fill);
      return static_cast<int64_t>(w);
    };
    const __m128i bytes = _mm_set_epi64x(word(p + 8, n - 8), word(p, n));
    return {_mm256_cvtepi8_epi32(bytes),
            _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static void StoreI8(U32 a, uint8_t* p) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), LowBytes(a));
  }
  static U32 LoadNibbles(const uint8_t* p) {
    const auto one = [](const uint8_t* q) {
      int four;
      __builtin_memcpy(&four, q, 4);
      return _mm256_srlv_epi32(_mm256_set1_epi32(four),
                               _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    };
    return {one(p), one(p + 4)};
  }
  static void StoreNibbles(U32 a, uint8_t* p) {
    // lane 2i + 16 * lane 2i+1, in 16 bits.
    const __m128i pairs =
        _mm_maddubs_epi16(LowBytes(a), _mm_set1_epi16(0x1001));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(pairs, pairs));
  }
  static F32 Lookup(F32 table, U32 index) {
    const auto one = [&](__m256i i) {
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.lo, i),
                              _mm256_permutevar8x32_ps(table.hi, i),
                              _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
    };
    return {one(index.lo), one(index.hi)};
  }
  static U32 LoadI8Pairs(const uint8_t* p) {
    const auto one = [](const uint8_t* q) {
      return _mm256_cvtepi8_epi16(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    };
    return {one(p), one(p + 16)};
  }
  static bool Any7f(const uint8_t* p, int64_t n) {
    __m128i any = _mm_setzero_si128();
    for (int64_t i = 0; i < n; i += 16) {
      const __m128i m = _mm_and_si128(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i)),
          _mm_set1_epi8(0x7f));
      any = _mm_or_si128(any, _mm_cmpeq_epi8(m, _mm_set1_epi8(0x7f)));
    }
    return _mm_movemask_epi8(any) != 0;
  }
  static F32 SetHalves(float low, float high) {
    return {_mm256_set1_ps(low), _mm256_set1_ps(high)};
  }
  static void StoreUpperPairs(F32 even, F32 odd, uint16_t* p) {
    const auto one = [](__m256 e, __m256 o, uint16_t* q) {
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(q),
          _mm256_blend_epi16(_mm256_srli_epi32(_mm256_castps_si256(e), 16),
                             _mm256_castps_si256(o), 0xaa));
    };
    one(even.lo, odd.lo, p);
    one(even.hi, odd.hi, p + 16);
  }

  static void StoreBf16(F32 a, uint16_t* p) {
    const auto one = [](__m256 x) {
      const __m256i u = _mm256_castps_si256(x);
      const __m256i odd =
          _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
      const __m256i rounded = _mm256_srli_epi32(
          _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd),
          16);
      const __m256i quiet =
          _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
      const __m256i nan =
          _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
      return _mm256_blendv_epi8(rounded, quiet, nan);
    };
    const __m256i packed = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(one(a.lo), one(a.hi)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
  }
  static F32 LoadBf16(const uint16_t* p) {
    const auto one = [](const uint16_t* q) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(
          _mm256_cvtepu16_epi32(
              _mm_loadu_si128(reinterpret_cast<const __m128i*>(q))),
          16));
    };
    return {one(p), one(p + 8)};
  }

 private:
  static __m128i LowBytes(U32 a) {
    const __m256i low = _mm256_set1_epi32(0xff);
    const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.lo, low),
                                              _mm256_and_si256(a.hi, low));
    const __m256i sorted = _mm256_permute4x64_epi64(words, 0xd8);
    return _mm_packus_epi16(_mm256_castsi256_si128(sorted),
                            _mm256_extracti128_si256(sorted, 1));
  }
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SIMD_AVX2_H_
