// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's latent attention and index scores alone, on one thread and in
// the release's shapes, against the f32 GEMM of the same path and run.

#ifndef TORPOR_BENCH_ATTENTION_SPEED_H_
#define TORPOR_BENCH_ATTENTION_SPEED_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/limit_row.h"

namespace torpor::bench {

struct AttentionSpeedOptions {
  // Interleaved rounds; medians are given.
  int rounds = 11;
  uint64_t seed = 1;
};

struct AttentionSpeed {
  // GFLOP/s against the GEMM's.
  LimitRow row;
  // Query rows, of one layer.
  double tokens_per_second = 0;
};

// Of every path. kDataLoss when one does not give the reference's results.
absl::StatusOr<std::vector<AttentionSpeed>> MeasureAttention(
    const AttentionSpeedOptions& options);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_ATTENTION_SPEED_H_
