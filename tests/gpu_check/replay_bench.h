// SPDX-License-Identifier: Apache-2.0
//
// Microseconds of replays on the device, for batches of 1 to 256 sessions, on a
// model of Gemma 3 270M's shape that is made here of random weights; with and
// without the tensor cores.

#ifndef TORPOR_TESTS_GPU_CHECK_REPLAY_BENCH_H_
#define TORPOR_TESTS_GPU_CHECK_REPLAY_BENCH_H_

#include "tests/gpu_check/bench_options.h"

namespace torpor::gpu_check {

// Tells `replay` lines; false when a replay gave wrong windows.
bool BenchReplays(const BenchOptions& options);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_REPLAY_BENCH_H_
