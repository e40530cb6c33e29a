// SPDX-License-Identifier: Apache-2.0
//
// Random small layouts and requests, and their printed form.

#ifndef TORPOR_TESTS_REPLAY_RANDOM_CASES_H_
#define TORPOR_TESTS_REPLAY_RANDOM_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "replay/model_layout.h"
#include "replay/planner.h"
#include "tests/testing/random.h"

namespace torpor::replay {

// Of 1 to `max_layers` layers: windows and chunks of 1 to 6 tokens, pooled
// slots of 1 to 4, some layers reading what a lower one owns. Valid.
ModelLayout RandomLayout(testing::Random& random, uint32_t max_layers);

// Up to three, between the tokens [0, end) and none around a row of `cuts`.
std::vector<TwoWaySpan> RandomSpans(testing::Random& random, uint64_t end,
                                    const std::vector<uint64_t>& cuts);

// Exact or bounded, at a cut of at most `max_tokens`; floors may overlap, bind
// some layers only, or be void, but are at least as long as the windows.
PlanRequest RandomRequest(testing::Random& random, const ModelLayout& layout,
                          uint64_t max_tokens);

// A floor that no wake can have left: rows after it see past its start.
Floor RandomShortFloor(testing::Random& random, const ModelLayout& layout,
                       uint64_t max_tokens);

std::string LayoutString(const ModelLayout& layout);
std::string RequestString(const PlanRequest& request);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_RANDOM_CASES_H_
