// SPDX-License-Identifier: Apache-2.0
//
// kernels/gemm.h in bf16 on tiles (kernels/simd_amx.h): 16 rows by 16 columns
// by 32 of k an instruction. A group of a packed matrix is a stack of B tiles
// as it stands; C is 32 rows by 32 columns at a time.

#ifndef TORPOR_KERNELS_GEMM_AMX_H_
#define TORPOR_KERNELS_GEMM_AMX_H_

#include <cstdint>

#include "kernels/gemm.h"
#include "kernels/gemm_cpu.h"
#include "kernels/simd_amx.h"

namespace torpor::kernels {

inline constexpr int64_t kAmxRows = AmxSimd::kTileRows;
inline constexpr int64_t kAmxRowBytes = AmxSimd::kTileRowBytes;
inline constexpr int64_t kAmxTileBytes = AmxSimd::kTileBytes;
// Of k in one instruction.
inline constexpr int64_t kAmxSteps = 32;

// One call's walk over 32 rows by 32 columns at a time: C in tiles 0 to 3, A in
// 4 and 5, B in 6 and 7. V gives the vectors of the edges.
template <class V>
class AmxGemm {
 public:
  explicit AmxGemm(const GemmParams& p)
      : p_(p), k_(p.b->k()), whole_(k_ / kAmxSteps) {}

  void Run(int64_t group_begin, int64_t group_end) {
    for (int64_t group = group_begin; group < group_end; group += 2) {
      const bool two = group + 1 < group_end;
      if (k_ % kAmxSteps != 0) {
        PadB(group, b_tail_[0]);
        if (two) PadB(group + 1, b_tail_[1]);
      }
      for (int64_t row = 0; row < p_.n_rows; row += 2 * kAmxRows) {
        const int64_t left = p_.n_rows - row;
        const int64_t upper = left < kAmxRows ? left : kAmxRows;
        const int64_t lower = left - upper < kAmxRows ? left - upper : kAmxRows;
        Configure(upper, lower);
        if (lower > 0) {
          two ? Tiles<true, true>(row, group) : Tiles<true, false>(row, group);
        } else {
          two ? Tiles<false, true>(row, group)
              : Tiles<false, false>(row, group);
        }
      }
    }
    V::ReleaseTiles();
  }

 private:
  void Configure(int64_t upper, int64_t lower) {
    if (upper == upper_ && lower == lower_) return;
    upper_ = upper;
    lower_ = lower;
    typename V::TileShapes config;
    for (const int tile : {0, 1, 4}) {
      config.rows[tile] = static_cast<uint8_t>(upper);
    }
    for (const int tile : {2, 3, 5}) {
      config.rows[tile] = static_cast<uint8_t>(lower);
    }
    for (const int tile : {6, 7}) config.rows[tile] = kAmxRows;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = config.rows[tile] == 0 ? 0 : kAmxRowBytes;
    }
    V::ConfigureTiles(config);
  }

  const uint8_t* B(int64_t group) const {
    return p_.b->data() + group * kGemmGroup * k_ * 2;
  }

  // The last pairs of k, zeros behind them: they add nothing.
  void PadB(int64_t group, uint8_t* out) const {
    __builtin_memset(out, 0, kAmxTileBytes);
    __builtin_memcpy(out, B(group) + whole_ * kAmxTileBytes,
                     static_cast<size_t>((k_ % kAmxSteps) / 2 * kAmxRowBytes));
  }
  void PadA(int64_t row, int64_t rows, uint8_t* out) const {
    const auto* a = static_cast<const uint8_t*>(p_.a);
    __builtin_memset(out, 0, kAmxTileBytes);
    for (int64_t r = 0; r < rows; ++r) {
      __builtin_memcpy(out + r * kAmxRowBytes,
                       a + ((row + r) * k_ + whole_ * kAmxSteps) * 2,
                       static_cast<size_t>(k_ % kAmxSteps * 2));
    }
  }

  // Few rows are done with a tile of B before the next has come from memory.
  static void Prefetch(const uint8_t* tile) {
    constexpr int64_t kAhead = 6 * kAmxTileBytes;
    for (int64_t i = 0; i < kAmxTileBytes; i += 64) {
      __builtin_prefetch(tile + kAhead + i);
    }
  }

  template <bool kLower, bool kTwo>
  void Tiles(int64_t row, int64_t group) {
    const auto* a = static_cast<const uint8_t*>(p_.a) + row * k_ * 2;
    const auto stride = static_cast<size_t>(k_ * 2);
    const uint8_t* b = B(group);
    const int64_t next = kGemmGroup * k_ * 2;
    TORPOR_TILE_ZERO(0);
    if (kTwo) TORPOR_TILE_ZERO(1);
    if (kLower) TORPOR_TILE_ZERO(2);
    if (kLower && kTwo) TORPOR_TILE_ZERO(3);
    for (int64_t s = 0; s < whole_; ++s) {
      if (!kLower) {
        Prefetch(b + s * kAmxTileBytes);
        if (kTwo) Prefetch(b + next + s * kAmxTileBytes);
      }
      Multiply<kLower, kTwo>(
          a + s * kAmxRowBytes, a + kAmxRows * k_ * 2 + s * kAmxRowBytes,
          stride, b + s * kAmxTileBytes, b + next + s * kAmxTileBytes);
    }
    if (k_ % kAmxSteps != 0) {
      PadA(row, upper_, a_tail_[0]);
      if (kLower) PadA(row + kAmxRows, lower_, a_tail_[1]);
      Multiply<kLower, kTwo>(a_tail_[0], a_tail_[1], kAmxRowBytes, b_tail_[0],
                             b_tail_[1]);
    }
    TORPOR_TILE_STORE(0, c_, kAmxRowBytes);
    StoreC(row, upper_, group);
    if (kTwo) {
      TORPOR_TILE_STORE(1, c_, kAmxRowBytes);
      StoreC(row, upper_, group + 1);
    }
    if (kLower) {
      TORPOR_TILE_STORE(2, c_, kAmxRowBytes);
      StoreC(row + kAmxRows, lower_, group);
    }
    if (kLower && kTwo) {
      TORPOR_TILE_STORE(3, c_, kAmxRowBytes);
      StoreC(row + kAmxRows, lower_, group + 1);
    }
  }

  template <bool kLower, bool kTwo>
  static void Multiply(const uint8_t* a0, const uint8_t* a1, size_t stride,
                       const uint8_t* b0, const uint8_t* b1) {
    TORPOR_TILE_LOAD(4, a0, stride);
    TORPOR_TILE_LOAD(6, b0, kAmxRowBytes);
    TORPOR_TILE_DOT_BF16(0, 4, 6);
    if (kTwo) {
      TORPOR_TILE_LOAD(7, b1, kAmxRowBytes);
      TORPOR_TILE_DOT_BF16(1, 4, 7);
    }
    if (kLower) {
      TORPOR_TILE_LOAD(5, a1, stride);
      TORPOR_TILE_DOT_BF16(2, 5, 6);
    }
    if (kLower && kTwo) TORPOR_TILE_DOT_BF16(3, 5, 7);
  }

  // What was stored in c_, into the matrix.
  void StoreC(int64_t row, int64_t rows, int64_t group) const {
    const int64_t n = p_.b->n();
    const int64_t column = group * kGemmGroup;
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = c_ + r * kGemmGroup;
      float* c = p_.c + (row + r) * n + column;
      if (column + kGemmGroup <= n) {
        auto value = V::Load(from);
        if (p_.bias != nullptr)
          value = V::Add(value, V::Load(p_.bias + column));
        V::Store(value, c);
        continue;
      }
      for (int64_t i = 0; column + i < n; ++i) {
        c[i] = from[i] + (p_.bias != nullptr ? p_.bias[column + i] : 0.0f);
      }
    }
  }

  const GemmParams& p_;
  const int64_t k_;
  // Instructions over k without a remainder.
  const int64_t whole_;
  // Rows of the tiles as configured.
  int64_t upper_ = 0;
  int64_t lower_ = 0;
  alignas(64) float c_[kAmxRows * kGemmGroup];
  alignas(64) uint8_t a_tail_[2][kAmxTileBytes];
  alignas(64) uint8_t b_tail_[2][kAmxTileBytes];
};

// Column groups [group_begin, group_end) of every row; f32 has no tiles.
template <class V>
void GemmAmxCpu(const GemmParams& p, int64_t group_begin, int64_t group_end) {
  if (p.b->dtype() == DType::kF32) {
    GemmColumns<V, GemmStepF32<V>>(p, group_begin, group_end);
    return;
  }
  AmxGemm<V>(p).Run(group_begin, group_end);
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_GEMM_AMX_H_
