// SPDX-License-Identifier: Apache-2.0
//
// The random cases of the planner's property tests, and the loop over them.

#ifndef TORPOR_TESTS_REPLAY_PLANNER_CASES_H_
#define TORPOR_TESTS_REPLAY_PLANNER_CASES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "replay/model_layout.h"
#include "replay/planner.h"
#include "tests/replay/dependency_tracer.h"

namespace torpor::replay {

inline constexpr uint64_t kCases = 10'000;

struct Case {
  ModelLayout layout;
  PlanRequest request;

  [[nodiscard]] std::string String() const;
};

// Early cases are small, so that the first failure is.
Case RandomCase(uint64_t index);

// The request as the tracer takes it; a bounded one hides what is below its
// start.
struct Traced {
  TraceRequest exact;
  TraceRequest asked;
  // First row that may be re-run; 0 when exact.
  uint64_t start = 0;
};
Traced TracedOf(const Case& c);

// Bounded, and it owes rows of open groups (or the last row's logits) that lie
// below the bound.
bool OwesBelowBound(const Case& c);

// Plans the case. Returns why there is no such plan; empty when there is.
std::string Planned(const Case& c, ReplayPlan& plan);

// Calls `check(case)` until three have failed: what it returns is the failure.
template <typename Check>
void ForEachCase(Check check) {
  int n_failed = 0;
  for (uint64_t i = 0; i < kCases && n_failed < 3; ++i) {
    const Case c = RandomCase(i);
    const std::string failure = check(c);
    if (failure.empty()) continue;
    ++n_failed;
    ADD_FAILURE() << "case " << i << "\n" << c.String() << failure;
  }
}

// The same, without those that owe below their bound: they have a test of
// their own.
template <typename Check>
void ForEachUsualCase(Check check) {
  ForEachCase([&](const Case& c) {
    return OwesBelowBound(c) ? std::string() : std::string(check(c));
  });
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_PLANNER_CASES_H_
