// SPDX-License-Identifier: Apache-2.0
//
// Rows between a client and the daemon, over gRPC and through shared memory,
// against what the kernel does with as many bytes.

#ifndef TORPOR_BENCH_PLANE_LIMITS_H_
#define TORPOR_BENCH_PLANE_LIMITS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"

namespace torpor::bench {

struct PlaneOptions {
  // Interleaved rounds; medians are given.
  int rounds = 9;
  // Of the session that is read, at 890 B a token.
  uint64_t n_tokens = 100'000;
  // Of the session whose transfer's memory is watched.
  uint64_t memory_tokens = 600'000;
};

// Durable suspends end to end, hot reads over both planes, the daemon's memory
// meanwhile. Every row verifies before it times: kDataLoss when what comes back
// is not what went in, kFailedPrecondition when shared memory is not served.
absl::StatusOr<std::vector<LimitRow>> MeasurePlanes(const PlaneOptions& options,
                                                    const Common& common);

RunBenchmark AddPlaneCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_PLANE_LIMITS_H_
