// SPDX-License-Identifier: Apache-2.0
//
// Kernels that do nothing but multiply, in registers: what a device's f32 units
// and its tensor cores reach. Tensor cores by mma.sync: on sm_90 and later
// wgmma and tcgen05 reach more, which none of our kernels uses.

#ifndef TORPOR_TESTS_GPU_CHECK_CEILINGS_H_
#define TORPOR_TESTS_GPU_CHECK_CEILINGS_H_

#include <cstdint>

#include "kernels/cuda_stream.h"

namespace torpor::gpu_check {

inline constexpr int kCeilingThreads = 256;

struct CeilingParams {
  int n_blocks = 1;
  // Steps of each chain.
  int n_steps = 1;
  // [n_blocks * kCeilingThreads] f32, written: see below. A device pointer.
  float* out = nullptr;
};

// Operations of one launch.
double FmaCeilingOperations(const CeilingParams& params);
double MmaCeilingOperations(const CeilingParams& params);

// Eight chains x = 1 * x + 1 from 0 a thread; out is their sum, 8 * n_steps.
int FmaCeilingCuda(const CeilingParams& params, kernels::CudaStream stream);
// Eight tiles of sums a warp, of ones; out is the sum of a thread's 32 values,
// each 16 * n_steps.
int MmaCeilingCuda(const CeilingParams& params, kernels::CudaStream stream);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_CEILINGS_H_
