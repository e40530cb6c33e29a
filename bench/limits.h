// SPDX-License-Identifier: Apache-2.0
//
// Every number that must hold, in one run and one table: layouts, store, planes
// and memory always; wakes and the peer where a model is given.

#ifndef TORPOR_BENCH_LIMITS_H_
#define TORPOR_BENCH_LIMITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"
#include "bench/peer.h"

namespace torpor::bench {

struct LimitsOptions {
  // Config files of the models whose figures must hold.
  std::string configs_dir = "tests/oracles/configs";
  // Its `model_dir` is Gemma 3 270M; empty leaves wakes and peer out.
  PeerOptions peer;
  // Interleaved rounds of store and planes.
  int rounds = 9;
  // Of the session that wakes, and timed wakes of each mode.
  uint64_t wake_tokens = 32'768;
  int wake_repeats = 3;
};

// Bytes a token and replay lengths of each config, from its layout, against
// what the design states; a mismatch in either direction does not hold.
absl::StatusOr<std::vector<LimitRow>> MeasureLayouts(
    const LimitsOptions& options);

// Bounded and exact wakes against a cold prefill, and the share of checksums.
absl::StatusOr<std::vector<LimitRow>> MeasureWakes(const LimitsOptions& options,
                                                   const Common& common);

RunBenchmark AddLimitsCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_LIMITS_H_
