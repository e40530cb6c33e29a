// SPDX-License-Identifier: Apache-2.0
//
// Sessions of any layout that sleep and wake at once, without weights: what a
// suspend and a resume take while others go on, what is written and synced for
// them, and what memory it costs. Every byte that comes back is verified; at
// the end the daemon is killed while suspends are on their way, and every
// acknowledged version must be there.

#ifndef TORPOR_BENCH_RIG_H_
#define TORPOR_BENCH_RIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"
#include "bench/load.h"
#include "replay/model_layout.h"

namespace torpor::bench {

struct RigOptions {
  replay::ModelLayout layout;
  // 0 = chosen from the row sizes.
  uint32_t block_size = 0;
  uint64_t n_sessions = 32;
  // Of a session at its first suspend, and new ones a turn.
  uint64_t n_tokens = 4096;
  uint64_t n_new_tokens = 256;
  // Each is a resume and a suspend of the new tokens.
  uint64_t n_turns = 4;
  int n_clients = 8;
  ThinkTime think;
  // Sessions whose rows are all read after the crash; 0 = every one. Versions
  // and lengths are always asked of every one.
  uint64_t n_verified = 0;
  // "unix:///path" of a daemon that runs; empty = one of its own. It is not
  // killed, and the sessions are deleted at the end.
  std::string server;
  // For tests; see SyntheticOptions.
  std::optional<uint64_t> wrong_session;
};

struct RigResult {
  std::string layout;
  double compact_bytes_per_token = 0;
  uint32_t block_size = 0;

  Latencies first_suspend;
  Latencies resume;
  Latencies delta_suspend;
  // How long due sessions waited for a client.
  Latencies late;

  // Of all first suspends, of all turns.
  struct Phase {
    double seconds = 0;
    // New rows, and rows that a new tail took over from the old one.
    uint64_t row_bytes_received = 0;
    uint64_t row_bytes_copied = 0;
    uint64_t token_bytes = 0;
    // Compact rows that came back.
    uint64_t row_bytes_sent = 0;
    // From /proc/<pid>/io.
    uint64_t written = 0;
    uint64_t disk_read = 0;
    uint64_t commits = 0;
  };
  Phase first;
  Phase turns;

  // RssAnon + RssShmem of the daemon.
  uint64_t idle_bytes = 0;
  uint64_t busy_bytes = 0;

  struct Crash {
    uint64_t acknowledged = 0;
    // Suspends that were on their way, and of those the ones that had become
    // durable though nobody was told.
    uint64_t on_their_way = 0;
    uint64_t durable_unheard = 0;
    uint64_t sessions_read = 0;
    double restart_ms = 0;
  };
  // None for a daemon that runs already.
  std::optional<Crash> crash;

  [[nodiscard]] std::vector<LimitRow> Limits() const;
};

// kDataLoss when anything comes back that is not what was acknowledged.
absl::StatusOr<RigResult> RunRig(const RigOptions& options,
                                 const Common& common);

RunBenchmark AddRigCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_RIG_H_
