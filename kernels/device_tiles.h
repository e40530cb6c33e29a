// SPDX-License-Identifier: Apache-2.0
//
// Tiles of ragged groups of rows (segments of a batch, experts of a layer)
// whose sizes lie in device memory: a grid has room for every tile that there
// may be, and each block finds its own.

#ifndef TORPOR_KERNELS_DEVICE_TILES_H_
#define TORPOR_KERNELS_DEVICE_TILES_H_

#include <cstdint>

#include "kernels/cuda_simt.h"

// Of helpers that hold arrays in registers: a call would put them into memory.
#define TORPOR_INLINE __attribute__((always_inline)) inline
// Before a loop that indexes such an array, and before one that is to be
// unrolled `n` times, no more: registers are few.
#ifdef __CUDACC__
#define TORPOR_PRAGMA(text) _Pragma(#text)
#define TORPOR_UNROLL TORPOR_PRAGMA(unroll)
#define TORPOR_UNROLL_BY(n) TORPOR_PRAGMA(unroll n)
#else
#define TORPOR_UNROLL
#define TORPOR_UNROLL_BY(n)
#endif

namespace torpor::kernels::device {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// Enough tiles for n_groups groups of n_rows rows together: each group has at
// most one that is not full.
inline int64_t TilesAtMost(int64_t n_rows, int64_t n_groups,
                           int64_t tile_rows) {
  const int64_t ragged = n_groups < n_rows ? n_groups : n_rows;
  return n_rows / tile_rows + ragged;
}

struct RowTile {
  int64_t group = -1;
  // Rows [row, row + n_rows) of the group.
  int64_t row = 0;
  int n_rows = 0;
};

// Tile number `target`, groups in ascending order, rows_of(group) being each
// one's rows; group -1 beyond the last. All 32 lanes of a warp call together
// and get the same.
template <typename RowsOf>
TORPOR_DEVICE_ONLY RowTile FindTile(int64_t n_groups, int tile_rows,
                                    int64_t target, RowsOf rows_of) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int64_t before = 0;
  for (int64_t base = 0; base < n_groups; base += 32) {
    const int64_t rows = base + lane < n_groups ? rows_of(base + lane) : 0;
    const auto tiles = static_cast<int>((rows + tile_rows - 1) / tile_rows);
    int through = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int below =
          __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(step));
      if (lane >= step) through += below;
    }
    const unsigned beyond =
        __ballot_sync(kAllLanes, before + through > target ? 1 : 0);
    if (beyond != 0) {
      const int owner = __ffs(static_cast<int>(beyond)) - 1;
      const int first = __shfl_sync(kAllLanes, through - tiles, owner);
      const int64_t row = (target - before - first) * tile_rows;
      const int64_t left = __shfl_sync(kAllLanes, rows, owner) - row;
      return {base + owner, row,
              static_cast<int>(left < tile_rows ? left : tile_rows)};
    }
    before += __shfl_sync(kAllLanes, through, 31);
  }
  return {};
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_TILES_H_
