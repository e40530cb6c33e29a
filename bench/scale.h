// SPDX-License-Identifier: Apache-2.0
//
// Whether anything grows with the number of sleeping sessions: suspend, lookup,
// list, describe and resume of one session among few and among many, start-up,
// and memory of an idle session. A daemon with few sessions stands beside the
// one that grows, and both are asked in turn, so that a ratio compares calls of
// the same moment.

#ifndef TORPOR_BENCH_SCALE_H_
#define TORPOR_BENCH_SCALE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/limit_row.h"
#include "bench/load.h"

namespace torpor::bench {

struct ScaleOptions {
  // Ascending; the first is that of the daemon that does not grow.
  std::vector<uint64_t> populations = {100, 1'000, 10'000, 100'000};
  // That create sessions at once, so that they share commits.
  int n_clients = 64;
  // Calls of each kind at each population, at each daemon.
  uint64_t n_samples = 500;
  // One full block of 16 tokens and a tail: two records a session.
  uint64_t n_tokens = 24;
  uint32_t block_size = 16;
  // 0 = sessions without one; with it the daemon keeps their order in memory.
  int64_t ttl_seconds = 0;
  // For tests; see SyntheticOptions.
  std::optional<uint64_t> wrong_session;
};

struct ScaleResult {
  // Kinds of calls, in the order they are shown.
  static const std::vector<std::string>& Kinds();

  struct Step {
    uint64_t population = 0;
    // To create the sessions that were new, and how many those were.
    double create_seconds = 0;
    uint64_t created = 0;
    uint64_t commits = 0;
    // By kind, at the daemon of this population and at the small one.
    std::map<std::string, Latencies> here;
    std::map<std::string, Latencies> small;
    // Until it serves: pages of its data dropped, and in the page cache.
    double start_cold_ms = 0;
    double start_hot_ms = 0;
    // RssAnon + RssShmem of the process just started.
    uint64_t idle_bytes = 0;

    // Of the quantile, population against few.
    [[nodiscard]] double Ratio(const std::string& kind, double share) const;
  };
  std::vector<Step> steps;
  // Of a process just started over few sessions.
  uint64_t small_idle_bytes = 0;

  [[nodiscard]] double IdleBytesPerSession() const;
  [[nodiscard]] std::vector<LimitRow> Limits() const;
};

// kDataLoss when a call does not answer what it must.
absl::StatusOr<ScaleResult> RunScale(const ScaleOptions& options,
                                     const Common& common);

RunBenchmark AddScaleCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_SCALE_H_
