// SPDX-License-Identifier: Apache-2.0
//
// The tensor cores' mma.sync of 16 x 8 x 16 bf16 with f32 sums. It has never
// yet run: the emulator computes what PTX says of it, and rounds once a step.

#ifndef TORPOR_KERNELS_MMA_CUDA_H_
#define TORPOR_KERNELS_MMA_CUDA_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda_simt.h"
#include "kernels/device_quads.h"
#include "kernels/device_tiles.h"

namespace torpor::kernels::device {

// c += a b: 16 rows x 16 k, 16 k x 8 columns, laid over the warp as PTX says
// (m16n8k16): with g = lane / 4 and t = lane % 4, registers hold pairs of
//   a: rows g, g + 8, g, g + 8 of k 2t, 2t, 2t + 8, 2t + 8
//   b: column g of k 2t, 2t + 8
//   c: row g of columns 2t, 2t + 1, then row g + 8 of them
#ifdef __CUDACC__
TORPOR_DEVICE_ONLY TORPOR_INLINE void Mma(const uint32_t (&a)[4], uint32_t b0,
                                          uint32_t b1, float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
inline void Mma(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                float (&c)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto both = [](uint32_t low, uint32_t high) {
    return uint64_t{high} << 32 | low;
  };
  const auto dot = [](uint64_t x, uint64_t y) {
    double sum = 0;
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<double>(LowBf16(static_cast<uint32_t>(x >> 16 * i))) *
             LowBf16(static_cast<uint32_t>(y >> 16 * i));
    }
    return sum;
  };
  double sums[4] = {c[0], c[1], c[2], c[3]};
  // Each of four neighbours owns four k of a row, and of a column.
  for (int t = 0; t < 4; ++t) {
    const uint64_t rows[2] = {
        __shfl_sync(kAllLanes, both(a[0], a[2]), lane / 4 * 4 + t),
        __shfl_sync(kAllLanes, both(a[1], a[3]), lane / 4 * 4 + t)};
    for (int column = 0; column < 2; ++column) {
      const uint64_t bs =
          __shfl_sync(kAllLanes, both(b0, b1), (lane % 4 * 2 + column) * 4 + t);
      for (int row = 0; row < 2; ++row) {
        sums[2 * row + column] += dot(rows[row], bs);
      }
    }
  }
  for (int e = 0; e < 4; ++e) c[e] = static_cast<float>(sums[e]);
}
#endif

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_MMA_CUDA_H_
