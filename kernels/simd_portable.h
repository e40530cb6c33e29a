// SPDX-License-Identifier: Apache-2.0
//
// Sixteen floats as one value, in plain C++: the portable path, and the
// contract of the other two (kernels/simd_avx2.h, kernels/simd_avx512bf16.h).
// Kernels are templates over such a struct, so one text serves every path.
//
// Every path has 16 lanes whatever its registers hold, and every reduction has
// one order: a kernel's result depends on the path, never on the compiler. Fma
// fuses where the path has an instruction for it and rounds twice here.

#ifndef TORPOR_KERNELS_SIMD_PORTABLE_H_
#define TORPOR_KERNELS_SIMD_PORTABLE_H_

#include <bit>
#include <cstdint>
#include <cstring>

namespace torpor::kernels {

struct PortableSimd {
  static constexpr const char* kName = "portable";
  // Tile of a GEMM that fits this path's registers (kernels/gemm_cpu.h).
  static constexpr int kGemmRows = 4;
  static constexpr int kGemmGroups = 1;
  // The same for attention (kernels/attention_cpu.h); the last two wherever
  // rows of numbers meet vectors (kernels/latent_attention_cpu.h).
  static constexpr int kScoreRows = 2;
  static constexpr int kValueRows = 2;
  static constexpr int kValueVecs = 2;

  // A vector of the compiler, which keeps those in registers but not arrays.
  struct F32 {
    float v __attribute__((vector_size(64)));
  };
  struct U32 {
    uint32_t v __attribute__((vector_size(64)));
  };

  template <typename Fn>
  static F32 Map(Fn fn) {
    F32 out;
    for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
    return out;
  }

  static F32 Zero() { return Set(0.0f); }
  static F32 Set(float x) { return {x - decltype(F32::v){}}; }
  static F32 Load(const float* p) {
    F32 out;
    std::memcpy(&out.v, p, sizeof(out.v));
    return out;
  }
  static void Store(F32 a, float* p) { std::memcpy(p, &a.v, sizeof(a.v)); }
  static U32 LoadU32(const uint32_t* p) {
    U32 out;
    std::memcpy(&out.v, p, sizeof(out.v));
    return out;
  }

  static F32 Add(F32 a, F32 b) { return {a.v + b.v}; }
  static F32 Sub(F32 a, F32 b) { return {a.v - b.v}; }
  static F32 Mul(F32 a, F32 b) { return {a.v * b.v}; }
  static F32 Div(F32 a, F32 b) { return {a.v / b.v}; }
  // a * b + c.
  static F32 Fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
  // The second operand where either is NaN.
  static F32 Max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
  static F32 Min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
  // Nearest integer, ties to even; |a| < 2^31.
  static F32 Round(F32 a) {
    return Map([&](int i) { return __builtin_rintf(a.v[i]); });
  }
  // 2^n for integral n in [-126, 127]; unspecified for others and NaN.
  static F32 Exp2Int(F32 n) {
    return Map([&](int i) {
      const bool inside = n.v[i] >= -126.0f && n.v[i] <= 127.0f;
      const auto e = static_cast<int32_t>(inside ? n.v[i] : 0.0f);
      return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
    });
  }
  // Lanes [begin, end) of a, the others of b.
  static F32 Select(int begin, int end, F32 a, F32 b) {
    return Map([&](int i) { return i >= begin && i < end ? a.v[i] : b.v[i]; });
  }

  // Lanes i and i+8, then i+4, i+2, i+1.
  static float Sum(F32 a) {
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
    }
    return a.v[0];
  }
  // In the same order; NaN where any lane pair ends in one.
  static float MaxLane(F32 a) {
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
      }
    }
    return a.v[0];
  }

  // Lanes 2i and 2i + 1 exchanged.
  static F32 SwapPairs(F32 a) {
    return Map([&](int i) { return a.v[i ^ 1]; });
  }
  // Four columns of sixteen rows, `stride` floats apart: out is [4, 16].
  static void Transpose4(const float* in, int64_t stride, float* out) {
    for (int row = 0; row < 16; ++row) {
      for (int c = 0; c < 4; ++c) out[c * 16 + row] = in[row * stride + c];
    }
  }

  // Two bf16 to a lane, the even one in the low half: acc + lo*lo, then +
  // hi*hi.
  static F32 DotBf16(F32 acc, U32 a, U32 b) {
    const auto low = [](uint32_t u) { return std::bit_cast<float>(u << 16); };
    const auto high = [](uint32_t u) {
      return std::bit_cast<float>(u & 0xffff0000u);
    };
    return Map([&](int i) {
      const float first = acc.v[i] + low(a.v[i]) * low(b.v[i]);
      return first + high(a.v[i]) * high(b.v[i]);
    });
  }
  static U32 SetU32(uint32_t u) { return {u + decltype(U32::v){}}; }
  static U32 And(U32 a, U32 b) { return {a.v & b.v}; }

  // Bits and integers, mod 2^32.
  template <typename Fn>
  static U32 MapU32(Fn fn) {
    U32 out;
    for (int i = 0; i < 16; ++i) out.v[i] = fn(i);
    return out;
  }
  static U32 Bits(F32 a) { return std::bit_cast<U32>(a); }
  static F32 FromBits(U32 a) { return std::bit_cast<F32>(a); }
  static U32 Or(U32 a, U32 b) { return {a.v | b.v}; }
  static U32 AddU32(U32 a, U32 b) { return {a.v + b.v}; }
  static U32 SubU32(U32 a, U32 b) { return {a.v - b.v}; }
  template <int kBits>
  static U32 ShiftLeft(U32 a) {
    return {a.v << kBits};
  }
  template <int kBits>
  static U32 ShiftRight(U32 a) {
    return {a.v >> kBits};
  }
  // Lanes of x where a > b as signed integers, of y elsewhere.
  static U32 IfGreater(U32 a, U32 b, U32 x, U32 y) {
    struct I32 {
      int32_t v __attribute__((vector_size(64)));
    };
    const auto greater = std::bit_cast<I32>(a).v > std::bit_cast<I32>(b).v;
    return {greater ? x.v : y.v};
  }
  static bool AnyGreater(U32 a, U32 b) {
    bool any = false;
    for (int i = 0; i < 16; ++i) {
      any = any || static_cast<int32_t>(a.v[i]) > static_cast<int32_t>(b.v[i]);
    }
    return any;
  }
  // The largest as a signed integer.
  static U32 MaxI32(U32 a, U32 b) { return IfGreater(a, b, a, b); }
  static U32 MinI32(U32 a, U32 b) { return IfGreater(a, b, b, a); }
  static uint32_t MaxLaneI32(U32 a) {
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        const auto x = static_cast<int32_t>(a.v[i]);
        const auto y = static_cast<int32_t>(a.v[i + half]);
        a.v[i] = static_cast<uint32_t>(x > y ? x : y);
      }
    }
    return a.v[0];
  }
  // a, which has none, with b's sign bit.
  static F32 WithSign(F32 a, U32 b) {
    return FromBits(Or(Bits(a), And(b, SetU32(0x80000000u))));
  }
  // Sixteen signed bytes to lanes, and the lanes' low bytes back.
  static U32 LoadI8(const uint8_t* p) {
    return MapU32([&](int i) {
      return static_cast<uint32_t>(
          static_cast<int32_t>(static_cast<int8_t>(p[i])));
    });
  }
  // The same of n < 16, and `fill` after them.
  static U32 LoadI8Some(const uint8_t* p, int64_t n, uint8_t fill) {
    uint8_t bytes[16];
    for (int i = 0; i < 16; ++i) bytes[i] = i < n ? p[i] : fill;
    return LoadI8(bytes);
  }
  static void StoreI8(U32 a, uint8_t* p) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint8_t>(a.v[i]);
  }
  // Eight bytes as 16 times four bits, the low ones first; bits above a lane's
  // four are unspecified. And lanes below 16 back.
  static U32 LoadNibbles(const uint8_t* p) {
    return MapU32(
        [&](int i) { return static_cast<uint32_t>(p[i / 2] >> (i % 2 * 4)); });
  }
  static void StoreNibbles(U32 a, uint8_t* p) {
    for (int i = 0; i < 8; ++i) {
      p[i] = static_cast<uint8_t>(a.v[2 * i] | a.v[2 * i + 1] << 4);
    }
  }
  // Lanes of the table by the low four bits of each index.
  static F32 Lookup(F32 table, U32 index) {
    return Map([&](int i) { return table.v[index.v[i] & 15]; });
  }
  // 32 signed bytes as 16 bits each, two to a lane, the first one low.
  static U32 LoadI8Pairs(const uint8_t* p) {
    return MapU32([&](int i) {
      const auto low = static_cast<int8_t>(p[2 * i]);
      const auto high = static_cast<int8_t>(p[2 * i + 1]);
      return (static_cast<uint32_t>(low) & 0xffffu) |
             static_cast<uint32_t>(high) << 16;
    });
  }
  // Whether any of n bytes is 0x7f or 0xff; n a multiple of 16.
  static bool Any7f(const uint8_t* p, int64_t n) {
    unsigned any = 0;
    for (int64_t i = 0; i < n; ++i) any |= (p[i] & 0x7fu) == 0x7fu ? 1u : 0u;
    return any != 0;
  }
  // Lanes below 8 and the others.
  static F32 SetHalves(float low, float high) {
    return Map([&](int i) { return i < 8 ? low : high; });
  }
  // even[0] odd[0] even[1] ..., with their lower halves cut off.
  static void StoreUpperPairs(F32 even, F32 odd, uint16_t* p) {
    const U32 low = Bits(even);
    const U32 high = Bits(odd);
    uint32_t pairs[16];
    for (int i = 0; i < 16; ++i) {
      if constexpr (std::endian::native == std::endian::little) {
        pairs[i] = low.v[i] >> 16 | (high.v[i] & 0xffff0000u);
      } else {
        pairs[i] = (low.v[i] & 0xffff0000u) | high.v[i] >> 16;
      }
    }
    std::memcpy(p, pairs, sizeof(pairs));
  }

  // Rounds to nearest even; NaN stays NaN.
  static void StoreBf16(F32 a, uint16_t* p) {
    for (int i = 0; i < 16; ++i) {
      const auto u = std::bit_cast<uint32_t>(a.v[i]);
      p[i] =
          (u & 0x7fffffffu) > 0x7f800000u
              ? static_cast<uint16_t>((u >> 16) | 0x40u)
              : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  static F32 LoadBf16(const uint16_t* p) {
    return Map([&](int i) {
      return std::bit_cast<float>(static_cast<uint32_t>(p[i]) << 16);
    });
  }
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SIMD_PORTABLE_H_
