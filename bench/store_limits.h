// SPDX-License-Identifier: Apache-2.0
//
// The store against the disk and memory below it.

#ifndef TORPOR_BENCH_STORE_LIMITS_H_
#define TORPOR_BENCH_STORE_LIMITS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"

namespace torpor::bench {

struct StoreLimitsOptions {
  // An empty directory on the disk to measure.
  std::string directory;
  // Interleaved rounds; medians are given.
  int rounds = 9;
};

// Page overhead, bytes of a delta suspend, durable suspends against write +
// fdatasync, hot reads against memcpy. Every row verifies before it times:
// kDataLoss when what comes back is not what went in.
absl::StatusOr<std::vector<LimitRow>> MeasureStore(
    const StoreLimitsOptions& options);

RunBenchmark AddStoreCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_STORE_LIMITS_H_
