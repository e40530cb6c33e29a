// SPDX-License-Identifier: Apache-2.0
//
// The three parts of the error study (bench/error_study.h) and what they share.

#ifndef TORPOR_BENCH_ERROR_PARTS_H_
#define TORPOR_BENCH_ERROR_PARTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/command.h"
#include "bench/divergence.h"
#include "bench/error_study.h"
#include "bench/lab_session.h"
#include "bench/study_text.h"
#include "replay/model.h"

namespace torpor::bench {

struct StudyContext {
  replay::Model* model = nullptr;
  const ErrorStudyOptions* options = nullptr;
  const Common* common = nullptr;
  StudyText text;
  // Sample sizes, resolved.
  uint64_t n_cuts = 0;
  uint64_t n_needles = 0;
  uint64_t n_chains = 0;
  uint64_t window = 0;
  uint64_t exact_tokens = 0;
  // Cuts are multiples of it: no pooled group is open.
  uint64_t group = 1;

  [[nodiscard]] uint64_t CutMin() const;
  [[nodiscard]] uint64_t CutMax() const;
  [[nodiscard]] uint64_t DrawCut(std::mt19937_64* random) const;
  [[nodiscard]] uint64_t LongestSession() const;
  // Tokens rounded up to whole groups.
  [[nodiscard]] uint64_t WholeGroups(uint64_t n) const {
    return (n + group - 1) / group * group;
  }
  absl::StatusOr<replay::ReplayPlan> Bounded(
      uint64_t cut, uint64_t replay_tokens,
      std::vector<replay::Floor> floors = {}) const;
  absl::StatusOr<replay::ReplayPlan> Exact(
      uint64_t cut, std::vector<replay::Floor> floors = {}) const;
  // The distributions after each of text[cut, cut + n), by a session that
  // wakes with text[0, cut), these rows and this window.
  absl::StatusOr<NextTokens> Feed(KeptRows* rows,
                                  const replay::WindowState& window,
                                  std::span<const uint32_t> text,
                                  uint64_t n) const;
};

// kDataLoss that names `what` unless both windows hold the same bits.
absl::Status SameWindow(const replay::WindowState& got,
                        const replay::WindowState& wanted,
                        const std::string& what);

// The R of the study, ascending: the window times 1, 1.5, 2, 3, 4, 6, 8, 12 ...
// below the exact length.
std::vector<uint64_t> ReplayGrid(uint64_t window, uint64_t exact_tokens);

// Each adds to result->n_verified.
absl::Status StudyCuts(const StudyContext& study, ErrorStudyResult* result);
absl::Status StudyNeedles(const StudyContext& study, ErrorStudyResult* result);
absl::Status StudyChains(const StudyContext& study, ErrorStudyResult* result);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_ERROR_PARTS_H_
