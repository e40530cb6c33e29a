// SPDX-License-Identifier: Apache-2.0
//
// What a resume must come to, by definition: rows looked at one by one, tokens
// compared one by one. Slow, and it shares nothing with what it judges but the
// types.

#ifndef TORPOR_TESTS_SERVICE_RESUME_ORACLE_H_
#define TORPOR_TESTS_SERVICE_RESUME_ORACLE_H_

#include <cstdint>
#include <vector>

#include "replay/model_layout.h"
#include "replay/planner.h"
#include "store/types.h"

namespace torpor::service {

struct ExpectedPlan {
  bool exact = true;
  uint64_t replay_start = 0;
  std::vector<replay::LayerRows> layers;
  uint64_t token_layers = 0;
};

// Modes exact and bounded; `floors` is all that the session ever logged and has
// not voided.
ExpectedPlan ExpectPlan(const replay::ModelLayout& layout,
                        const replay::PlanRequest& request);

// Tokens that both begin with, extra keys and two-way spans included.
uint64_t ExpectCommon(const store::TokenRun& stored,
                      const store::TokenRun& prompt);

// `at`, or the start of the two-way span that it would cut.
uint64_t LegalCut(const store::TokenRun& tokens, uint64_t at);

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_RESUME_ORACLE_H_
