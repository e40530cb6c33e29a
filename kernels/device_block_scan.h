// SPDX-License-Identifier: Apache-2.0
//
// Counts over the threads of a block in the order of their ids, for kernels
// that write lists whose order no schedule may change.

#ifndef TORPOR_KERNELS_DEVICE_BLOCK_SCAN_H_
#define TORPOR_KERNELS_DEVICE_BLOCK_SCAN_H_

#include <cstdint>

#include "kernels/cuda_simt.h"

namespace torpor::kernels::device {

// The sum of v over the threads before this one, and over all. `sums` has room
// for one of each of the kThreads / 32 warps. Called by the whole block.
template <int kThreads>
TORPOR_DEVICE_ONLY inline uint32_t SumBefore(uint32_t v, uint32_t* sums,
                                             uint32_t* total) {
  constexpr unsigned kAllLanes = 0xffffffffu;
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  uint32_t inclusive = v;
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += below;
  }
  // The sums of the call before may still be read.
  __syncthreads();
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  uint32_t before = 0;
  *total = 0;
  for (unsigned w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += sums[w];
    *total += sums[w];
  }
  return before + inclusive - v;
}

}  // namespace torpor::kernels::device

#endif  // TORPOR_KERNELS_DEVICE_BLOCK_SCAN_H_
