// SPDX-License-Identifier: Apache-2.0

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "replay/planner.h"
#include "tests/replay/known_layouts.h"
#include "tests/replay/layout_builder.h"
#include "tests/replay/plan_rows.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torpor::testing::HasCode;

TEST(ChooseModeTest, ASnapshotComesFirst) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), {.has_snapshot = true}),
            ReplayMode::kSnapshot);
}

TEST(ChooseModeTest, TheModeThatRunsFewestRowsIsChosen) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), {}), ReplayMode::kBounded);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), {.allow_cold = true}),
            ReplayMode::kBounded);
}

TEST(ChooseModeTest, AnErrorLimitNeedsAWitnessOrAnExactReplay) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), {.max_error = 0.1}),
            ReplayMode::kExact);
  EXPECT_EQ(
      *ChooseMode(layout, Exact(kCut), {.max_error = 0.1, .has_witness = true}),
      ReplayMode::kBounded);
}

TEST(ChooseModeTest, ATokenLimitRulesOutWhatPassesIt) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), {.max_replay_tokens = 128}),
            ReplayMode::kBounded);
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut),
                        {.max_replay_tokens = 5'080, .max_error = 0.1}),
            ReplayMode::kExact);
}

TEST(ChooseModeTest, WithoutAModeEachReasonIsNamed) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  const AutoLimits limits = {.max_replay_tokens = 5'079, .max_error = 0.1};
  const auto refused = ChooseMode(layout, Exact(kCut), limits);
  EXPECT_THAT(refused, HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("exact"), HasSubstr("5080"), HasSubstr("5079"),
                    HasSubstr("witness"), HasSubstr("cold")));
  AutoLimits cold = limits;
  cold.allow_cold = true;
  EXPECT_EQ(*ChooseMode(layout, Exact(kCut), cold), ReplayMode::kCold);
}

TEST(ChooseModeTest, ABoundThatIsExactNeedsNoWitness) {
  // Sessions up to the window: every replay is exact.
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_OK(ChooseMode(layout, Exact(100),
                       {.max_replay_tokens = 100, .max_error = 0.1}));
}

// What is chosen can be planned.
TEST(ChooseModeTest, ASnapshotIsNotChosenForLogitsThatItCannotGive) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  PlanRequest request = Exact(kCut, /*want_logits=*/true);
  const auto mode = ChooseMode(layout, request, {.has_snapshot = true});
  ASSERT_OK(mode);
  request.mode = *mode;
  EXPECT_OK(PlanReplay(layout, request));
}

TEST(ChooseModeTest, ABoundBelowTheLargestWindowIsRefused) {
  EXPECT_THAT(ChooseMode(DeepSeekV41Flash(kV41Native), Bounded(kCut, 100), {}),
              HasCode(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace torpor::replay
