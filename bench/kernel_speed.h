// SPDX-License-Identifier: Apache-2.0
//
// Row codecs alone, on one thread and batches that lie in the second-level
// cache, against memcpy of the same rows unpacked.

#ifndef TORPOR_BENCH_KERNEL_SPEED_H_
#define TORPOR_BENCH_KERNEL_SPEED_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"

namespace torpor::bench {

struct KernelSpeedOptions {
  // Interleaved rounds; medians are given.
  int rounds = 51;
  int attention_rounds = 11;
  // Of the batch's f32 rows.
  int64_t batch_kib = 512;
  uint64_t seed = 1;
};

// GB/s of unpacked rows: of every format and path, encoding f32, decoding to
// f32 and to bf16. kDataLoss when a path's bytes are not the reference's.
absl::StatusOr<std::vector<LimitRow>> MeasureCodecs(
    const KernelSpeedOptions& options);

RunBenchmark AddKernelsCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_KERNEL_SPEED_H_
