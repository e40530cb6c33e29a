// SPDX-License-Identifier: Apache-2.0
//
// From a sleeping session to its next token: an engine in this process, a
// torpord beside it, in every mode; with the page cache hot, with the daemon
// stopped and its pages dropped, and after kill -9. Exact, snapshot and cold
// must give the logits of the session that never slept, to the bit, before
// anything is timed.

#ifndef TORPOR_BENCH_RESUME_H_
#define TORPOR_BENCH_RESUME_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/engine_case.h"
#include "bench/load.h"

namespace torpor::bench {

struct ResumeOptions {
  EngineCases cases;
  uint64_t seed = 1;
  // "hot", "cold-cache" and "killed"; see ResumeResult.
  std::vector<std::string> variants = {"hot", "cold-cache", "killed"};
  // Tokens that both sessions are fed when their logits are compared.
  uint64_t fed_tokens = 8;
};

struct ResumeResult {
  replay::ModelLayout layout;
  std::string numerics_id;

  // Of the receipt, and of this process: filling tokens in after the receipt
  // (all of them when cold), and the step that gives the next token.
  static constexpr std::array kPhases = {"queue",   "index",  "read",
                                         "verify",  "replay", "transfer",
                                         "prefill", "decode"};

  struct Case {
    uint64_t n_tokens = 0;
    // How the daemon was before: it had served before (hot); stopped, its pages
    // dropped, started (cold-cache); killed with -9, started (killed).
    std::string variant;
    ModeCase mode;
    bool exact = false;
    std::string verdict;
    double max_layer_error = 0;
    uint64_t replayed_tokens = 0;
    uint64_t bytes_read = 0;
    // From the disk, by /proc/<pid>/io; of one wake.
    uint64_t disk_read = 0;
    Latencies to_next_token;
    // Medians, milliseconds, in the order of kPhases.
    std::array<double, kPhases.size()> phases{};
  };
  std::vector<Case> cases;

  // Cold against the others, hot.
  [[nodiscard]] std::vector<LimitRow> Limits() const;
};

// kDataLoss when a wake that must be exact is not;
// kFailedPrecondition when dropped pages were read from memory after all.
absl::StatusOr<ResumeResult> MeasureResume(const ResumeOptions& options,
                                           const Common& common);

RunBenchmark AddResumeCommand(CLI::App* app, const Common* common);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_RESUME_H_
