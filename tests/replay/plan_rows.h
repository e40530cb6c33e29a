// SPDX-License-Identifier: Apache-2.0
//
// Requests in one call and plans as distances from the cut, for tests that work
// plans out by hand.

#ifndef TORPOR_TESTS_REPLAY_PLAN_ROWS_H_
#define TORPOR_TESTS_REPLAY_PLAN_ROWS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "replay/planner.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {

// Far enough from the start of a session that nothing is clamped.
inline constexpr uint64_t kCut = 200'000;

inline PlanRequest Exact(uint64_t cut, bool want_logits = false) {
  PlanRequest request;
  request.resume_at = cut;
  request.mode = ReplayMode::kExact;
  request.want_logits = want_logits;
  return request;
}

inline PlanRequest Bounded(uint64_t cut, uint64_t replay_tokens) {
  PlanRequest request;
  request.resume_at = cut;
  request.mode = ReplayMode::kBounded;
  request.replay_tokens = replay_tokens;
  return request;
}

// The plan, or an empty one and a failure.
inline ReplayPlan Plan(const ModelLayout& layout, const PlanRequest& request) {
  absl::StatusOr<ReplayPlan> plan = PlanReplay(layout, request);
  EXPECT_OK(plan.status());
  return plan.ok() ? *std::move(plan) : ReplayPlan();
}

// By layer: rows that enter it.
inline std::vector<uint64_t> InputRows(const ReplayPlan& plan) {
  std::vector<uint64_t> rows;
  for (const LayerRows& layer : plan.layers) {
    rows.push_back(plan.resume_at - layer.input_begin);
  }
  return rows;
}

// By layer: rows that run.
inline std::vector<uint64_t> RunRows(const ReplayPlan& plan) {
  std::vector<uint64_t> rows;
  for (const LayerRows& layer : plan.layers) {
    rows.push_back(plan.resume_at - layer.run_begin);
  }
  return rows;
}

// By slot: rows that are written.
inline std::vector<uint64_t> WrittenRows(const ReplayPlan& plan) {
  std::vector<uint64_t> rows;
  for (const uint64_t begin : plan.write_begin) {
    rows.push_back(plan.resume_at - begin);
  }
  return rows;
}

inline uint64_t Written(const ModelLayout& layout, const ReplayPlan& plan,
                        const std::string& slot) {
  for (size_t s = 0; s < layout.slots.size(); ++s) {
    if (layout.slots[s].name == slot) {
      return plan.resume_at - plan.write_begin[s];
    }
  }
  ADD_FAILURE() << "no slot " << slot;
  return 0;
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_PLAN_ROWS_H_
