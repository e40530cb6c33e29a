// SPDX-License-Identifier: Apache-2.0
//
// rms_norm.h on a GPU. A block of 256 threads takes a row, or eight rows of up
// to 1,024 lanes (norms over heads), a warp each.
// Order: thread t of a row's n sums the squares of lanes 4t..4t+3, then of
// those 4n on, by fused multiply-adds in ascending order; the threads' sums are
// folded by halves, in warps and then across them. So a row's bits depend on
// that row and dim alone, whatever its alignment; they are not those of the CPU
// paths.
// Floor: reads and writes each row once; a second read is of L1 or L2.

#ifndef TORPOR_KERNELS_RMS_NORM_CUDA_H_
#define TORPOR_KERNELS_RMS_NORM_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/rms_norm.h"

namespace torpor::kernels {

// Pointers of `params` are device pointers. Out may be x. Returns 0 when
// launched (also when there are no rows), else CUDA's error number; never
// waits. REQUIRES: dim > 0; n_rows < 2^31.
int RmsNormCuda(const RmsNormParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RMS_NORM_CUDA_H_
