// SPDX-License-Identifier: Apache-2.0
//
// Plans whose windows are cut, worked out by hand: bounds, floors, two-way
// spans; and the modes that replay nothing.

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

using ::testing::ElementsAre;
using torpor::testing::HasCode;
using torpor::testing::HasStatus;

// ---- Bounded --------------------------------------------------------------

TEST(PlannerCutsTest, ABoundOfOneWindowCutsAllButTheLastLayers) {
  const ModelLayout layout = LayoutOf(Times(40, "s"), 128, 528, 1);
  for (const uint64_t tokens : {0, 128}) {
    const ReplayPlan plan = Plan(layout, Bounded(kCut, tokens));
    EXPECT_EQ(plan.replay_tokens(), 128);
    EXPECT_FALSE(plan.exact);
    EXPECT_EQ(InputRows(plan)[38], 128);
    EXPECT_EQ(InputRows(plan)[39], 127);
    EXPECT_EQ(RunRows(plan)[37], 128);
    EXPECT_EQ(RunRows(plan)[38], 127);
    EXPECT_EQ(RunRows(plan)[39], 0);
    EXPECT_EQ(plan.token_layers, 38 * 128 + 127);
    EXPECT_THAT(plan.floors,
                ElementsAre(FloorRange{kCut - 128, kCut, kCut - 128, 0}));
    EXPECT_EQ(plan.floor(), (Floor{kCut, kCut - 128, 0}));
  }
}

TEST(PlannerCutsTest, ABoundBetweenCutsTheLayersThatPassIt) {
  const ModelLayout layout = LayoutOf(Times(6, "s"), 8, 2, 1);
  const ReplayPlan plan = Plan(layout, Bounded(1000, 20));
  EXPECT_THAT(InputRows(plan), ElementsAre(20, 20, 20, 20, 14, 7));
  EXPECT_THAT(RunRows(plan), ElementsAre(20, 20, 20, 14, 7, 0));
  EXPECT_FALSE(plan.exact);
}

TEST(PlannerCutsTest, ABoundIsExactFromTheExactLengthOn) {
  const ModelLayout layout = LayoutOf(Times(40, "s"), 128, 528, 1);
  EXPECT_FALSE(Plan(layout, Bounded(kCut, 5'079)).exact);
  for (const uint64_t tokens : {5'080, 5'081, 300'000}) {
    const ReplayPlan plan = Plan(layout, Bounded(kCut, tokens));
    EXPECT_TRUE(plan.exact);
    EXPECT_EQ(plan.replay_tokens(), 5'080);
    EXPECT_EQ(plan.token_layers, 99'060);
    EXPECT_TRUE(plan.floors.empty());
  }
  PlanRequest logits = Bounded(kCut, 5'080);
  logits.want_logits = true;
  EXPECT_FALSE(Plan(layout, logits).exact);
}

TEST(PlannerCutsTest, ABoundBelowTheLargestWindowIsRefused) {
  const ModelLayout layout = LayoutOf("sss", 128, 2, 2);
  EXPECT_THAT(PlanReplay(layout, Bounded(kCut, 127)),
              HasStatus(absl::StatusCode::kInvalidArgument, "128"));
  // However short the session.
  EXPECT_THAT(PlanReplay(layout, Bounded(5, 127)),
              HasCode(absl::StatusCode::kInvalidArgument));
}

TEST(PlannerCutsTest, AnOpenGroupLongerThanTheBoundLowersTheStart) {
  ModelLayout layout = LayoutOf("sf", 4, 2, 2);
  layout.slots.push_back(PooledSlot("pooled", 1, 16, 2));
  layout.slots.push_back(OpenGroupSlot("open", 1, 16, 0, 2));
  // Row 16 must be rebuilt, so it is where window reads stop.
  const ReplayPlan plan = Plan(layout, Bounded(30, 4));
  EXPECT_FALSE(plan.exact);
  EXPECT_EQ(plan.floor(), (Floor{30, 16, 0}));
  EXPECT_THAT(InputRows(plan), ElementsAre(14, 14));
  EXPECT_THAT(plan.floors, ElementsAre(FloorRange{16, 30, 16, 0}));
}

// ---- Floors ---------------------------------------------------------------

// Four windows of 8, resumed at 100.
ReplayPlan PlanWithFloors(std::vector<Floor> floors) {
  PlanRequest request = Exact(100);
  request.floors = std::move(floors);
  return Plan(LayoutOf("ssss", 8, 2, 2), request);
}

TEST(PlannerCutsTest, AFloorStopsTheRowsOfItsWakeOnly) {
  EXPECT_THAT(InputRows(PlanWithFloors({})), ElementsAre(28, 21, 14, 7));
  // Layer 3 owes rows from 93. Row 93 of layer 2 reads from 86 by itself; of
  // layers 1 and 0, row 86 and then 85 stop at 85.
  const ReplayPlan plan = PlanWithFloors({{95, 85, 0}});
  EXPECT_THAT(InputRows(plan), ElementsAre(15, 15, 14, 7));
  EXPECT_EQ(plan.token_layers, 15 + 14 + 7);
  EXPECT_TRUE(plan.exact);
  EXPECT_THAT(plan.floors, ElementsAre(FloorRange{85, 95, 85, 0}));
  // The rows from 93 on came after the wake at 92: they read back without a
  // floor, and what they read had one.
  EXPECT_THAT(InputRows(PlanWithFloors({{92, 80, 0}})),
              ElementsAre(20, 20, 14, 7));
}

TEST(PlannerCutsTest, AFloorOfUpperLayersLeavesLowerOnesFree) {
  EXPECT_THAT(InputRows(PlanWithFloors({{95, 87, 0}})),
              ElementsAre(13, 13, 13, 7));
  EXPECT_THAT(InputRows(PlanWithFloors({{95, 87, 1}})),
              ElementsAre(20, 13, 13, 7));
  EXPECT_THAT(InputRows(PlanWithFloors({{95, 87, 2}})),
              ElementsAre(27, 20, 13, 7));
  EXPECT_THAT(InputRows(PlanWithFloors({{95, 87, 3}})),
              ElementsAre(28, 21, 14, 7));
}

TEST(PlannerCutsTest, OfSeveralFloorsTheLargestCounts) {
  EXPECT_THAT(InputRows(PlanWithFloors({{95, 87, 0}, {98, 88, 0}})),
              ElementsAre(12, 12, 12, 7));
  EXPECT_THAT(InputRows(PlanWithFloors({{98, 88, 2}, {95, 87, 0}})),
              ElementsAre(13, 13, 12, 7));
}

TEST(PlannerCutsTest, FloorsOfLaterWakesAreVoid) {
  EXPECT_THAT(InputRows(PlanWithFloors({{100, 92, 0}, {120, 95, 0}})),
              ElementsAre(28, 21, 14, 7));
  EXPECT_TRUE(PlanWithFloors({{100, 92, 0}}).floors.empty());
  EXPECT_THAT(InputRows(PlanWithFloors({{99, 91, 0}})),
              ElementsAre(9, 9, 9, 7));
}

TEST(PlannerCutsTest, ABoundAndAFloorApplyTogether) {
  PlanRequest request = Bounded(100, 10);
  request.floors = {{95, 85, 0}};
  const ModelLayout layout = LayoutOf("ssss", 8, 2, 2);
  const ReplayPlan cut = Plan(layout, request);
  EXPECT_FALSE(cut.exact);
  EXPECT_EQ(cut.floor(), (Floor{100, 90, 0}));
  // The old wake ends the dataflow where the bound would not.
  request.replay_tokens = 15;
  const ReplayPlan exact = Plan(layout, request);
  EXPECT_TRUE(exact.exact);
  EXPECT_EQ(exact.replay_tokens(), 15);
}

TEST(PlannerCutsTest, ATailOfUpperLayersIsReplayedAsItWas) {
  // Layers from 21 on ran the last 128 tokens of a prefill, then 50 more came.
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  PlanRequest request = Exact(kCut + 50);
  request.floors = {{kCut, kCut - 128, 21}};
  const ReplayPlan plan = Plan(layout, request);
  EXPECT_EQ(InputRows(plan)[39], 127);
  EXPECT_EQ(InputRows(plan)[38], 178);
  EXPECT_EQ(InputRows(plan)[21], 178);
  EXPECT_EQ(InputRows(plan)[20], 178 + 127);
  EXPECT_EQ(plan.replay_tokens(), 178 + 21 * 127);
}

TEST(PlannerCutsTest, FloorsThatAreNoneAreRefused) {
  const ModelLayout layout = LayoutOf("ssss", 8, 2, 2);
  for (const Floor& floor :
       {Floor{50, 50, 0}, Floor{50, 60, 0}, Floor{50, 40, 4}}) {
    PlanRequest request = Exact(100);
    request.floors = {floor};
    EXPECT_THAT(PlanReplay(layout, request),
                HasStatus(absl::StatusCode::kInvalidArgument, "floor at 50"));
  }
}

// ---- Two-way spans --------------------------------------------------------

TEST(PlannerCutsTest, ASpanIsReadToItsStartAndEntersWhole) {
  const ModelLayout layout = LayoutOf("ss", 4, 2, 2);
  PlanRequest request = Exact(20);
  request.spans = {{8, 16}};
  // Layer 1 owes rows from 17; row 17 of layer 0 reads from 14, and a replay
  // does not start inside the span.
  const ReplayPlan after = Plan(layout, request);
  EXPECT_EQ(after.write_begin[0], 14);
  EXPECT_EQ(after.replay_start, 8);
  // Layer 1 owes row 15 of the span, so the span runs, and its first row reads
  // from 5.
  request.resume_at = 18;
  const ReplayPlan inside = Plan(layout, request);
  EXPECT_EQ(inside.layers[0].run_begin, 8);
  EXPECT_EQ(inside.replay_start, 5);
}

TEST(PlannerCutsTest, ACutInsideASpanIsRefused) {
  PlanRequest request = Exact(10);
  request.spans = {{2, 4}, {8, 16}};
  const ModelLayout layout = LayoutOf("ss", 4, 2, 2);
  EXPECT_THAT(PlanReplay(layout, request),
              HasStatus(absl::StatusCode::kInvalidArgument, "[8, 16)"));
  for (const uint64_t cut : {8, 16, 30}) {
    request.resume_at = cut;
    EXPECT_OK(PlanReplay(layout, request));
  }
}

TEST(PlannerCutsTest, ABoundInsideASpanMovesToItsStart) {
  PlanRequest request = Bounded(20, 5);
  request.spans = {{8, 16}};
  const ReplayPlan plan = Plan(LayoutOf("sss", 4, 2, 2), request);
  EXPECT_EQ(plan.replay_start, 8);
  EXPECT_EQ(plan.floor(), (Floor{20, 8, 0}));
  EXPECT_FALSE(plan.exact);
}

// ---- Other modes ----------------------------------------------------------

TEST(PlannerCutsTest, ASnapshotRunsNothingAndAColdResumeUsesNothing) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  PlanRequest request = Exact(kCut + 1);
  request.mode = ReplayMode::kSnapshot;
  const ReplayPlan snapshot = Plan(layout, request);
  EXPECT_EQ(snapshot.replay_start, kCut + 1);
  EXPECT_EQ(snapshot.token_layers, 0);
  EXPECT_TRUE(snapshot.exact);
  EXPECT_EQ(Written(layout, snapshot, "layer2.open"), 0);
  request.mode = ReplayMode::kCold;
  const ReplayPlan cold = Plan(layout, request);
  EXPECT_EQ(cold.resume_at, 0);
  EXPECT_EQ(cold.token_layers, 0);
  request.mode = ReplayMode::kAuto;
  EXPECT_THAT(PlanReplay(layout, request),
              HasCode(absl::StatusCode::kInvalidArgument));
}

// The row H - 1 needs a row below those of a snapshot; where there is no
// window it needs none.
TEST(PlannerCutsTest, LogitsFromASnapshotNeedALayoutWithoutWindows) {
  PlanRequest request = Exact(kCut, /*want_logits=*/true);
  request.mode = ReplayMode::kSnapshot;
  EXPECT_THAT(PlanReplay(LayoutOf("sf", 8, 2, 2), request),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(RunRows(Plan(LayoutOf("ff", 8, 2, 2), request)),
              ElementsAre(1, 1));
}

}  // namespace
}  // namespace torpor::replay
