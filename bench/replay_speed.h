// SPDX-License-Identifier: Apache-2.0
//
// Replay alone, in this process: what rebuilding the window KV takes against
// computing everything again, without a daemon, a disk or a socket.

#ifndef TORPOR_BENCH_REPLAY_SPEED_H_
#define TORPOR_BENCH_REPLAY_SPEED_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/engine_case.h"

namespace torpor::bench {

struct ReplaySpeedOptions {
  EngineCases cases;
  uint64_t seed = 1;
};

struct ReplaySpeedResult {
  replay::ModelLayout layout;
  std::string numerics_id;
  struct Case {
    uint64_t n_tokens = 0;
    ModeCase mode;
    // The plan's: what it runs, and whether it cuts nothing.
    uint64_t replay_tokens = 0;
    uint64_t token_layers = 0;
    bool exact = false;
    // Of the rebuilt window rows against those never dropped; 0 when exact.
    double rows_different = 0;
    // Medians, milliseconds: of all, of it compact rows into the sequence, of
    // it rows that run. For cold, the prefill.
    double ms = 0;
    double read_ms = 0;
    double run_ms = 0;
  };
  // For each length: prefill first (mode cold), then the others.
  std::vector<Case> cases;

  [[nodiscard]] std::vector<LimitRow> Limits() const;
};

// kDataLoss when a plan that says exact does not rebuild the window that a
// sequence held, to the bit.
absl::StatusOr<ReplaySpeedResult> MeasureReplay(
    const ReplaySpeedOptions& options, const Common& common);

RunBenchmark AddReplayCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_REPLAY_SPEED_H_
