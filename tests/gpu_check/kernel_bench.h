// SPDX-License-Identifier: Apache-2.0
//
// Every launcher of kernels/*_cuda.h in shapes of Gemma 3 270M and DeepSeek
// V4.1, verified and then timed against its floor: the bytes and operations
// that its header states, at the rates that this device was measured to reach
// (ceilings.h). Caches are flushed before each launch; medians are told.

#ifndef TORPOR_TESTS_GPU_CHECK_KERNEL_BENCH_H_
#define TORPOR_TESTS_GPU_CHECK_KERNEL_BENCH_H_

#include "tests/gpu_check/bench_options.h"

namespace torpor::gpu_check {

// Tells `ceiling` and `kernel` lines; false when a kernel gave wrong results.
bool BenchKernels(const BenchOptions& options);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_KERNEL_BENCH_H_
