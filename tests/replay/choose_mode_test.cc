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

// Each kind with the rows of a session of 50 tokens.
TEST(ChooseModeTest, RowsThatASessionHoldsAreThoseOfItsCut) {
  Slot pooled = PooledSlot("pooled", 0, 4, 2);
  const Slot state =
      MakeSlot("state", SlotKind::kRecurrent, 0, 2, ComeBack::kSnapshot);
  for (const bool stored : {false, true}) {
    pooled.come_back = stored ? ComeBack::kSnapshot : ComeBack::kPersist;
    EXPECT_EQ(RowsHeldAt(pooled, 50), (Rows{0, 12}));
    Slot full = FullSlot(0, 2);
    full.come_back = pooled.come_back;
    EXPECT_EQ(RowsHeldAt(full, 50), (Rows{0, 50}));
    const ComeBack window = stored ? ComeBack::kSnapshot : ComeBack::kReplay;
    Slot sliding = SlidingSlot(0, 8, 2);
    Slot chunked = ChunkedSlot(0, 16, 2);
    Slot open = OpenGroupSlot("open", 0, 4, 2, 2);
    sliding.come_back = chunked.come_back = open.come_back = window;
    EXPECT_EQ(RowsHeldAt(sliding, 50), (Rows{43, 50}));
    EXPECT_EQ(RowsHeldAt(chunked, 50), (Rows{48, 50}));
    EXPECT_EQ(RowsHeldAt(open, 50), (Rows{46, 50}));
  }
  Slot persists = SlidingSlot(0, 8, 2);
  persists.come_back = ComeBack::kPersist;
  EXPECT_EQ(RowsHeldAt(persists, 50), (Rows{0, 50}));
  EXPECT_EQ(RowsHeldAt(state, 50), (Rows{0, 1}));
}

// No replay brings a state back, so none is chosen without a snapshot.
TEST(ChooseModeTest, AStateWithoutASnapshotLeavesCold) {
  ModelLayout layout = LayoutOf("fs", 8, 4, 4);
  layout.slots.push_back(
      MakeSlot("state", SlotKind::kRecurrent, 1, 4, ComeBack::kSnapshot));
  ASSERT_EQ(SlotOwedBySnapshot(layout, 50), &layout.slots.back());
  const auto refused = ChooseMode(layout, Exact(50), {});
  EXPECT_THAT(refused, HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("'state'"), HasSubstr("cold")));
  EXPECT_EQ(*ChooseMode(layout, Exact(50), {.allow_cold = true}),
            ReplayMode::kCold);
  EXPECT_EQ(*ChooseMode(layout, Exact(50), {.has_snapshot = true}),
            ReplayMode::kSnapshot);
}

TEST(ChooseModeTest, ABoundBelowTheLargestWindowIsRefused) {
  EXPECT_THAT(ChooseMode(DeepSeekV41Flash(kV41Native), Bounded(kCut, 100), {}),
              HasCode(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace torpor::replay
