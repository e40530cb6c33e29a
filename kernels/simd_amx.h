// SPDX-License-Identifier: Apache-2.0
//
// kernels/simd_avx512bf16.h and the tiles of AMX: eight of 16 rows of 64 bytes.
// TDPBF16PS adds to a row of C the products of a row of A with B: pairs of k in
// ascending order, each row by itself, so that its bits depend on neither its
// neighbours nor their number. It reads denormals as zero and flushes results,
// which is part of this path's numerics. Included only by files that are
// compiled for that path.

#ifndef TORPOR_KERNELS_SIMD_AMX_H_
#define TORPOR_KERNELS_SIMD_AMX_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/simd_avx512bf16.h"

namespace torpor::kernels {

// A name of its own, so that no instantiation is another path's.
struct AmxSimd : Avx512Bf16Simd {
  static constexpr int kTileRows = 16;
  static constexpr int kTileRowBytes = 64;
  static constexpr int kTileBytes = kTileRows * kTileRowBytes;

  // The shapes of all tiles, as LDTILECFG wants them (palette 1).
  struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(TileShapes) == 64);

  static void ConfigureTiles(const TileShapes& shapes) {
    _tile_loadconfig(&shapes);
  }
  // Tiles hold nothing afterwards, and cost a thread's switch nothing.
  static void ReleaseTiles() { _tile_release(); }
};

// Macros, since the instructions have their tiles in their encoding.
#define TORPOR_TILE_ZERO(tile) _tile_zero(tile)
#define TORPOR_TILE_LOAD(tile, from, stride) _tile_loadd(tile, from, stride)
#define TORPOR_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
// c[m, n] += sum over 32 k of a[m, k] * b[k, n], in f32.
#define TORPOR_TILE_DOT_BF16(c, a, b) _tile_dpbf16ps(c, a, b)

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_SIMD_AMX_H_
