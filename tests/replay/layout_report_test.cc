// SPDX-License-Identifier: Apache-2.0

#include "replay/layout_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/replay/known_layouts.h"
#include "tests/replay/layout_builder.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using torpor::testing::HasCode;

TEST(LayoutReportTest, LayersAreShownAsRanges) {
  EXPECT_EQ(LayerRanges({}), "");
  EXPECT_EQ(LayerRanges({7}), "7");
  EXPECT_EQ(LayerRanges({0, 1}), "0-1");
  EXPECT_EQ(LayerRanges({0, 2}), "0, 2");
  EXPECT_EQ(LayerRanges({0, 2, 4}), "0-4 by 2");
  EXPECT_EQ(LayerRanges({5, 11, 17}), "5-17 by 6");
  EXPECT_EQ(LayerRanges({0, 1, 2, 4, 5, 6, 8}), "0-2, 4-6, 8");
  EXPECT_EQ(LayerRanges({2, 4, 5, 6}), "2, 4-6");
}

TEST(LayoutReportTest, SlotsThatDifferInTheirLayerAloneAreOneGroup) {
  ModelLayout layout = LayoutOf("sfsf", 8, 100, 60);
  for (Slot& slot : layout.slots) {
    slot.name = "layer." + std::to_string(slot.owner_layer) + ".k";
  }
  layout.slots.push_back(layout.slots[0]);
  layout.slots.back().name = "layer.0.v";
  std::vector<SlotGroup> groups = GroupSlots(layout);
  ASSERT_EQ(groups.size(), 3);
  EXPECT_EQ(groups[0].name, "layer.N.k");
  EXPECT_EQ(groups[0].layers, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(groups[0].bytes_per_token, 200);
  EXPECT_EQ(groups[1].layers, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(groups[1].bytes_per_token, 120);
  EXPECT_EQ(groups[2].name, "layer.N.v");
  // Readers of their own set a slot apart.
  layout.slots[0].reader_layers = {0, 2};
  groups = GroupSlots(layout);
  ASSERT_EQ(groups.size(), 4);
  EXPECT_EQ(groups[0].layers, std::vector<uint32_t>{0});
}

TEST(LayoutReportTest, EveryByteOfALayoutIsInOneGroup) {
  for (const ModelLayout& layout :
       {Gemma3With270M(), Gemma3nE4B(), DeepSeekV4Flash(kV4Native)}) {
    double of_groups = 0;
    size_t n = 0;
    for (const SlotGroup& group : GroupSlots(layout)) {
      if (group.slot.kind != SlotKind::kOpenGroup) {
        of_groups += group.bytes_per_token;
      }
      n += group.layers.size();
    }
    EXPECT_EQ(n, layout.slots.size());
    EXPECT_DOUBLE_EQ(of_groups,
                     FiguresOf(layout, 1).all_window_bytes_per_token);
  }
}

// Five turns of 20 tokens: windows of 7 rows are full from the first on.
TEST(LayoutReportTest, AFleetUnderEachBaseline) {
  const ModelLayout layout = LayoutOf("ssf", 8, 10, 3);
  ASSERT_OK_AND_ASSIGN(
      const FleetFigures got,
      FleetFiguresOf(layout, {.n_sessions = 7, .n_tokens = 100, .n_turns = 5}));
  EXPECT_EQ(got.every_window_row.ssd_bytes, 7 * 100 * (2 * 10 + 3));
  EXPECT_EQ(got.every_window_row.memory_bytes, 7 * 100 * (2 * 10 + 3));
  EXPECT_EQ(got.snapshot_per_turn.ssd_bytes, 7 * (300 + 5 * 2 * 7 * 10));
  EXPECT_EQ(got.snapshot_per_session.ssd_bytes, 7 * (300 + 2 * 7 * 10));
  EXPECT_EQ(got.torpor.ssd_bytes, 7 * 300);
  EXPECT_EQ(got.torpor.memory_bytes, 7 * (300 + 2 * 7 * 10));
  EXPECT_EQ(got.token_id_bytes, 7 * 400);
}

TEST(LayoutReportTest, SnapshotsOfTurnsCountTheRowsOfTheirCut) {
  for (const uint64_t reach : {1, 2, 8, 64, 1000}) {
    for (const uint64_t tokens : {0, 1, 5, 63, 64, 100, 9'999}) {
      for (const uint64_t turns : {1, 2, 3, 7, 64}) {
        const ModelLayout layout =
            LayoutOf("s", static_cast<uint32_t>(reach), 10, 1);
        uint64_t rows = 0;
        for (uint64_t i = 1; i <= turns; ++i) {
          rows += std::min(reach - 1, tokens * i / turns);
        }
        ASSERT_OK_AND_ASSIGN(const FleetFigures got,
                             FleetFiguresOf(layout, {.n_sessions = 1,
                                                     .n_tokens = tokens,
                                                     .n_turns = turns}));
        EXPECT_EQ(got.snapshot_per_turn.ssd_bytes, 10 * rows)
            << reach << ' ' << tokens << ' ' << turns;
      }
    }
  }
}

TEST(LayoutReportTest, OnlyWholeGroupsAreStored) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  const auto ssd = [&](uint64_t tokens) {
    const auto got =
        FleetFiguresOf(layout, {.n_sessions = 1, .n_tokens = tokens});
    return got.ok() ? got->torpor.ssd_bytes : 0;
  };
  EXPECT_EQ(ssd(1000), 890'000);
  EXPECT_EQ(ssd(1001), 890'000 + 356);
}

TEST(LayoutReportTest, DraftWindowsAreCountedApart) {
  ModelLayout layout = LayoutOf("sf", 8, 10, 3);
  Slot draft = SlidingSlot(1, 8, 50);
  draft.name = "draft.0.window";
  draft.reader_layers.clear();
  const LayoutFigures before = FiguresOf(layout, 100);
  layout.slots.push_back(draft);
  ASSERT_OK(layout.Validate());
  const LayoutFigures after = FiguresOf(layout, 100);
  EXPECT_EQ(after.draft_bytes_per_token, 50);
  EXPECT_EQ(after.all_window_bytes_per_token,
            before.all_window_bytes_per_token);
  EXPECT_EQ(after.snapshot_bytes, before.snapshot_bytes);
  ASSERT_OK_AND_ASSIGN(const FleetFigures got,
                       FleetFiguresOf(layout, {.n_tokens = 100}));
  EXPECT_EQ(got.every_window_row.ssd_bytes, 1300);
}

TEST(LayoutReportTest, FleetsBeyondMeaningAreRefused) {
  const ModelLayout layout = Mistral7B();
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr uint64_t kHuge = ~uint64_t{0};
  for (const FleetRequest& request :
       {FleetRequest{kHuge, 1, 1}, FleetRequest{1, kHuge, 1},
        FleetRequest{1, 1, kHuge}, FleetRequest{1, 1, 0},
        FleetRequest{uint64_t{1} << 40, uint64_t{1} << 40, 1}}) {
    EXPECT_THAT(FleetFiguresOf(layout, request).status(), HasCode(kInvalid));
  }
  EXPECT_OK(FleetFiguresOf(layout, {0, 0, 1}).status());
}

}  // namespace
}  // namespace torpor::replay
