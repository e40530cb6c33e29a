// SPDX-License-Identifier: Apache-2.0
//
// Exact plans worked out by hand. Rows are written as their distance from the
// cut.

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

// ---- Uniform windows ------------------------------------------------------

TEST(PlannerGoldenTest, UniformWindowsMakeATriangle) {
  const ModelLayout layout = LayoutOf(Times(40, "s"), 128, 528, 1);
  const ReplayPlan plan = Plan(layout, Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 5'080);
  EXPECT_EQ(plan.token_layers, 99'060);
  EXPECT_TRUE(plan.exact);
  EXPECT_TRUE(plan.floors.empty());
  for (uint32_t layer = 0; layer < 40; ++layer) {
    EXPECT_EQ(kCut - plan.layers[layer].input_begin, 127 * (40 - layer));
    EXPECT_EQ(kCut - plan.layers[layer].run_begin, 127 * (39 - layer));
    EXPECT_EQ(kCut - plan.write_begin[layer], 127 * (40 - layer));
  }
}

TEST(PlannerGoldenTest, LogitsAddOneRowToEveryLayerOfATriangle) {
  const ModelLayout layout = LayoutOf(Times(40, "s"), 128, 528, 1);
  const ReplayPlan plan = Plan(layout, Exact(kCut, true));
  EXPECT_EQ(plan.replay_tokens(), 5'081);
  EXPECT_EQ(plan.token_layers, 99'100);
  for (uint32_t layer = 0; layer < 40; ++layer) {
    EXPECT_EQ(kCut - plan.layers[layer].input_begin, 127 * (40 - layer) + 1);
    EXPECT_EQ(kCut - plan.layers[layer].run_begin, 127 * (39 - layer) + 1);
  }
}

TEST(PlannerGoldenTest, ThirtyTwoWindowsOf4096Take131040Tokens) {
  const ReplayPlan plan = Plan(Mistral7B(), Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 131'040);
  // 4,095 x (31 + 30 + ... + 0).
  EXPECT_EQ(plan.token_layers, 2'031'120);
}

TEST(PlannerGoldenTest, WindowsOfDifferentLengthsAddUp) {
  ModelLayout layout = LayoutOf("sssf", 4, 2, 2);
  layout.slots[0].window = 10;
  layout.slots[2].window = 3;
  const ReplayPlan plan = Plan(layout, Exact(100));
  EXPECT_THAT(InputRows(plan), ElementsAre(14, 5, 2, 0));
  EXPECT_THAT(RunRows(plan), ElementsAre(5, 2, 0, 0));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(14, 5, 2, 0));
  EXPECT_EQ(plan.token_layers, 7);
}

TEST(PlannerGoldenTest, AWindowOfOneTokenOwesNothing) {
  const ModelLayout layout = LayoutOf("sss", 1, 2, 2);
  const ReplayPlan plan = Plan(layout, Exact(100));
  EXPECT_EQ(plan.replay_start, 100);
  EXPECT_EQ(plan.token_layers, 0);
  const ReplayPlan logits = Plan(layout, Exact(100, true));
  EXPECT_THAT(RunRows(logits), ElementsAre(1, 1, 1));
  EXPECT_THAT(WrittenRows(logits), ElementsAre(1, 1, 1));
}

TEST(PlannerGoldenTest, TwoSlotsOfALayerAreWrittenAsFarAsEachIsRead) {
  ModelLayout layout = LayoutOf("ss", 4, 2, 2);
  layout.slots.push_back(SlidingSlot(0, 9, 2));
  layout.slots.back().name = "layer0.draft";
  const ReplayPlan plan = Plan(layout, Exact(100));
  EXPECT_THAT(InputRows(plan), ElementsAre(11, 3));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(6, 3, 11));
}

TEST(PlannerGoldenTest, AWindowThatNoLayerReadsIsOwedToADraft) {
  ModelLayout layout = LayoutOf("ssf", 4, 2, 2);
  layout.slots.push_back(SlidingSlot(2, 6, 2));
  layout.slots.back().reader_layers.clear();
  const ReplayPlan plan = Plan(layout, Exact(100));
  EXPECT_THAT(InputRows(plan), ElementsAre(11, 8, 5));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(11, 8, 0, 5));
  // Logits do not run the draft.
  EXPECT_THAT(WrittenRows(Plan(layout, Exact(100, true))),
              ElementsAre(11, 8, 0, 5));
}

// ---- Short sessions -------------------------------------------------------

TEST(PlannerGoldenTest, ShortSessionsAreClampedAtTheirStart) {
  const ModelLayout layout = LayoutOf("sss", 8, 2, 2);
  struct Row {
    uint64_t cut;
    std::vector<uint64_t> inputs;
    uint64_t token_layers;
  };
  for (const Row& row : std::vector<Row>{{0, {0, 0, 0}, 0},
                                         {1, {1, 1, 1}, 2},
                                         {7, {7, 7, 7}, 14},
                                         {8, {8, 8, 7}, 15},
                                         {9, {9, 9, 7}, 16},
                                         {14, {14, 14, 7}, 21},
                                         {15, {15, 14, 7}, 21},
                                         {21, {21, 14, 7}, 21},
                                         {22, {21, 14, 7}, 21}}) {
    SCOPED_TRACE(row.cut);
    const ReplayPlan plan = Plan(layout, Exact(row.cut));
    EXPECT_EQ(InputRows(plan), row.inputs);
    EXPECT_EQ(plan.token_layers, row.token_layers);
    EXPECT_EQ(plan.resume_at, row.cut);
    EXPECT_EQ(plan.replay_start, row.cut - row.inputs[0]);
  }
}

TEST(PlannerGoldenTest, AnEmptySessionHasNoRowForLogits) {
  const ReplayPlan plan =
      Plan(LayoutOf("ss", 8, 2, 2), Exact(0, /*want_logits=*/true));
  EXPECT_EQ(plan.token_layers, 0);
  EXPECT_EQ(plan.replay_start, 0);
}

TEST(PlannerGoldenTest, ABoundIsExactUpToTheLargestWindow) {
  const ModelLayout layout = LayoutOf("sss", 8, 2, 2);
  for (const uint64_t cut : {0, 1, 7, 8}) {
    const ReplayPlan plan = Plan(layout, Bounded(cut, 0));
    EXPECT_TRUE(plan.exact) << cut;
    EXPECT_EQ(plan.replay_tokens(), cut);
    EXPECT_EQ(plan.mode, ReplayMode::kBounded);
  }
  EXPECT_FALSE(Plan(layout, Bounded(9, 0)).exact);
}

// ---- Full layers in between -----------------------------------------------

TEST(PlannerGoldenTest, Gemma3With270MTakes7665Tokens) {
  const ReplayPlan plan = Plan(Gemma3With270M(), Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 7'665);
  // Sliding layers above each layer: a full layer runs what the next one needs
  // and adds nothing.
  const std::vector<uint64_t> above = {14, 13, 12, 11, 10, 10, 9, 8, 7,
                                       6,  5,  5,  4,  3,  2,  1, 0, 0};
  const std::vector<uint64_t> from = {15, 14, 13, 12, 11, 10, 10, 9, 8,
                                      7,  6,  5,  5,  4,  3,  2,  1, 0};
  for (uint32_t layer = 0; layer < 18; ++layer) {
    EXPECT_EQ(RunRows(plan)[layer], 511 * above[layer]) << layer;
    EXPECT_EQ(InputRows(plan)[layer], 511 * from[layer]) << layer;
    const bool full = layer % 6 == 5;
    EXPECT_EQ(WrittenRows(plan)[layer], full ? 0 : 511 * from[layer]) << layer;
  }
  EXPECT_EQ(plan.token_layers, 120 * 511);
  const ReplayPlan logits = Plan(Gemma3With270M(), Exact(kCut, true));
  EXPECT_EQ(logits.replay_tokens(), 7'666);
  EXPECT_EQ(logits.token_layers, 120 * 511 + 18);
}

TEST(PlannerGoldenTest, GptOssWith20BTakes1524Tokens) {
  const ReplayPlan plan = Plan(GptOssWith20B(), Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 1'524);
  // 127 x 2 x (11 + 10 + ... + 0).
  EXPECT_EQ(plan.token_layers, 16'764);
  EXPECT_EQ(Plan(GptOssWith20B(), Exact(kCut, true)).replay_tokens(), 1'525);
}

TEST(PlannerGoldenTest, TheNanoModelTakes1778Tokens) {
  const ReplayPlan plan = Plan(Nano(), Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 1'778);
  // 127 x ((13 + ... + 7) + 7 + (6 + ... + 0)).
  EXPECT_EQ(plan.token_layers, 127 * 98);
}

TEST(PlannerGoldenTest, WithoutWindowsNothingRuns) {
  const ModelLayout layout = LayoutOf(Times(36, "f"), 0, 4096, 4096);
  const ReplayPlan plan = Plan(layout, Exact(kCut));
  EXPECT_EQ(plan.replay_start, kCut);
  EXPECT_EQ(plan.token_layers, 0);
  EXPECT_TRUE(plan.exact);
  const ReplayPlan logits = Plan(layout, Exact(kCut, true));
  EXPECT_EQ(logits.replay_tokens(), 1);
  EXPECT_EQ(logits.token_layers, 36);
}

TEST(PlannerGoldenTest, AWindowThatPersistsAddsNothing) {
  ModelLayout layout = LayoutOf("ssss", 8, 2, 2);
  layout.slots[1].come_back = ComeBack::kPersist;
  const ReplayPlan plan = Plan(layout, Exact(100));
  EXPECT_THAT(InputRows(plan), ElementsAre(21, 14, 14, 7));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(21, 0, 14, 7));
}

TEST(PlannerGoldenTest, LayersThatShareKvWriteNone) {
  const ModelLayout layout = Gemma3nE4B();
  const ReplayPlan plan = Plan(layout, Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 8'176);
  // Sliding layers above each of the 20 that own: 66 + 46 + 26 + 6.
  EXPECT_EQ(plan.token_layers, 511 * 144);
  for (uint32_t layer = 19; layer < 35; ++layer) {
    EXPECT_EQ(InputRows(plan)[layer], 0) << layer;
  }
  const ReplayPlan logits = Plan(layout, Exact(kCut, true));
  EXPECT_EQ(logits.replay_tokens(), 8'177);
  EXPECT_EQ(logits.token_layers, 511 * 144 + 35);
  EXPECT_EQ(RunRows(logits)[34], 1);
  EXPECT_EQ(Written(layout, logits, "layer18.window"), 512);
}

TEST(PlannerGoldenTest, AnOwnerServesTheReaderThatLooksFurthest) {
  // Layer 2 reads what layer 0 owns; its window counts at layer 0.
  ModelLayout layout = LayoutOf("sss", 6, 2, 2);
  layout.slots[0].reader_layers = {0, 2};
  layout.slots[0].window = 20;
  const ReplayPlan plan = Plan(layout, Exact(100, true));
  // Row -1 of layer 2 reads its own 6 rows, so layer 1 runs 6 and reads 11.
  // Layer 0 runs 11: its reads go back 11 + 19; those of layer 2 only 20.
  EXPECT_THAT(RunRows(plan), ElementsAre(11, 6, 1));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(30, 11, 6));
}

// ---- Chunks ---------------------------------------------------------------

TEST(PlannerGoldenTest, ChunksGoBackToTheirStart) {
  const ModelLayout layout = Llama4Scout();
  struct Row {
    uint64_t cut;
    uint64_t tokens;
  };
  for (const Row& row : std::vector<Row>{{16'383, 8'191},
                                         {16'384, 0},
                                         {16'385, 1},
                                         {20'000, 3'616},
                                         {8'191, 8'191},
                                         {100, 100}}) {
    SCOPED_TRACE(row.cut);
    const ReplayPlan plan = Plan(layout, Exact(row.cut));
    EXPECT_EQ(plan.replay_tokens(), row.tokens);
    // Layer 47 is full, layer 46 the last chunked one.
    EXPECT_EQ(plan.token_layers, 46 * row.tokens);
    EXPECT_TRUE(Plan(layout, Bounded(row.cut, 0)).exact);
  }
}

TEST(PlannerGoldenTest, LogitsBehindAWholeChunkNeedAllOfIt) {
  const ReplayPlan plan = Plan(Llama4Scout(), Exact(16'384, true));
  EXPECT_EQ(plan.replay_tokens(), 8'192);
  EXPECT_EQ(plan.token_layers, 46 * 8'192 + 2);
  EXPECT_EQ(Plan(Llama4Scout(), Exact(20'000, true)).token_layers,
            46 * 3'616 + 2);
}

TEST(PlannerGoldenTest, AWindowAboveAChunkReachesTheChunkBefore) {
  ModelLayout layout = LayoutOf("cs", 8, 2, 2);
  layout.slots[1].window = 3;
  // Layer 1 owes rows 15 and 16, layer 0 reads from 8 for row 15.
  EXPECT_EQ(Plan(layout, Exact(17)).replay_start, 8);
  EXPECT_EQ(Plan(layout, Exact(18)).replay_start, 16);
}

// ---- DeepSeek -------------------------------------------------------------

TEST(PlannerGoldenTest, V41FlashTakes5080Tokens) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  ASSERT_OK(layout.Validate());
  const ReplayPlan plan = Plan(layout, Exact(kCut));
  EXPECT_EQ(plan.replay_tokens(), 5'080);
  EXPECT_EQ(plan.token_layers, 99'060);
  const ReplayPlan logits = Plan(layout, Exact(kCut, true));
  EXPECT_EQ(logits.replay_tokens(), 5'081);
  EXPECT_EQ(logits.token_layers, 99'100);
  const ReplayPlan bounded = Plan(layout, Bounded(kCut, 0));
  EXPECT_EQ(bounded.replay_tokens(), 128);
  EXPECT_FALSE(bounded.exact);
}

TEST(PlannerGoldenTest, AnOddCutOwesTheOpenPair) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  const ReplayPlan even = Plan(layout, Exact(kCut));
  PlanRequest request = Exact(kCut + 1);
  const ReplayPlan odd = Plan(layout, request);
  request.open_groups_stored = true;
  const ReplayPlan stored = Plan(layout, request);
  for (const char* slot : {"layer2.open", "layer8.open", "layer14.open"}) {
    EXPECT_EQ(Written(layout, even, slot), 0);
    EXPECT_EQ(Written(layout, odd, slot), 1);
    EXPECT_EQ(Written(layout, stored, slot), 0);
  }
  // The row is one that the windows above want anyway.
  EXPECT_EQ(odd.replay_tokens(), 5'080);
  EXPECT_EQ(odd.token_layers, 99'060);
  // Closed rows are never written.
  for (const char* slot : {"layer2.main", "layer20.main", "layer20.index"}) {
    EXPECT_EQ(Written(layout, odd, slot), 0);
  }
}

TEST(PlannerGoldenTest, V4FlashTakes5461TokensAndItsOverlap) {
  const ModelLayout layout = DeepSeekV4Flash(kV4Native);
  ASSERT_OK(layout.Validate());
  // 128-aligned: pooling by 4 still reads the 4 tokens before.
  const ReplayPlan aligned = Plan(layout, Exact(1024 * 100));
  EXPECT_EQ(aligned.replay_tokens(), 5'461);
  // 127 x (42 + 41 + ... + 0).
  EXPECT_EQ(aligned.token_layers, 114'681);
  EXPECT_EQ(Written(layout, aligned, "layer2.open"), 4);
  EXPECT_EQ(Written(layout, aligned, "layer3.open"), 0);
  const ReplayPlan last = Plan(layout, Exact(1024 * 100 + 127));
  EXPECT_EQ(last.replay_tokens(), 5'461);
  EXPECT_EQ(Written(layout, last, "layer42.open"), 4 + 3);
  EXPECT_EQ(Written(layout, last, "layer41.open"), 127);
}

TEST(PlannerGoldenTest, AnOpenGroupAloneMakesAReplay) {
  ModelLayout layout = LayoutOf("sf", 4, 2, 2);
  layout.slots.push_back(PooledSlot("pooled", 1, 16, 2));
  layout.slots.push_back(OpenGroupSlot("open", 1, 16, 0, 2));
  // Rows 16 to 29 enter layer 1; row 16 of layer 0 reads from 13.
  PlanRequest request = Exact(30);
  const ReplayPlan plan = Plan(layout, request);
  EXPECT_THAT(InputRows(plan), ElementsAre(17, 14));
  EXPECT_THAT(RunRows(plan), ElementsAre(14, 0));
  EXPECT_THAT(WrittenRows(plan), ElementsAre(17, 0, 0, 14));
  request.open_groups_stored = true;
  EXPECT_THAT(InputRows(Plan(layout, request)), ElementsAre(3, 0));
  // Nothing is open at a whole group.
  EXPECT_THAT(InputRows(Plan(layout, Exact(32))), ElementsAre(3, 0));
}

}  // namespace
}  // namespace torpor::replay
