// SPDX-License-Identifier: Apache-2.0

#include "replay/model_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "replay/planner.h"
#include "tests/replay/dependency_tracer.h"
#include "tests/replay/known_layouts.h"
#include "tests/replay/layout_builder.h"
#include "tests/replay/random_cases.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using torpor::testing::HasStatus;
using torpor::testing::Random;

constexpr uint64_t kTokens = 100'000;

// ---- Figures --------------------------------------------------------------

TEST(FiguresTest, V41FlashKeeps890BytesAToken) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  const LayoutFigures figures = FiguresOf(layout, kTokens);
  EXPECT_EQ(figures.compact_bytes_per_token, 890);
  EXPECT_EQ(figures.all_window_bytes_per_token, 22'010);
  EXPECT_THAT(figures.ratio, DoubleNear(24.73, 0.005));
  EXPECT_EQ(figures.snapshot_bytes, 40 * 127 * 528);
  EXPECT_EQ(figures.bounded_tokens, 128);
  EXPECT_EQ(figures.exact_tokens, 5'080);
  EXPECT_EQ(figures.exact_token_layers, 99'060);
  EXPECT_EQ(layout.CompactSlots().size(), 8);
  EXPECT_EQ(layout.LargestWindow(), 128);
}

TEST(FiguresTest, ASnapshotOfAShortSessionIsShort) {
  const ModelLayout layout = DeepSeekV41Flash(kV41Native);
  EXPECT_EQ(FiguresOf(layout, 0).snapshot_bytes, 0);
  EXPECT_EQ(FiguresOf(layout, 100).snapshot_bytes, 40 * 100 * 528);
  EXPECT_EQ(FiguresOf(layout, 127).snapshot_bytes, 40 * 127 * 528);
  EXPECT_EQ(FiguresOf(layout, 128).snapshot_bytes, 40 * 127 * 528);
  // The other figures do not depend on the tokens.
  EXPECT_EQ(FiguresOf(layout, 1).exact_tokens, 5'080);
  EXPECT_EQ(FiguresOf(layout, 1).bounded_tokens, 128);
}

TEST(FiguresTest, V4FlashKeeps3514AndAQuarterBytesAToken) {
  const LayoutFigures figures = FiguresOf(DeepSeekV4Flash(kV4Native), kTokens);
  EXPECT_EQ(figures.compact_bytes_per_token, 3'514.25);
  EXPECT_EQ(figures.all_window_bytes_per_token, 28'626.25);
  EXPECT_THAT(figures.ratio, DoubleNear(8.146, 0.0005));
  EXPECT_EQ(figures.exact_tokens, 5'461);
  EXPECT_EQ(figures.exact_token_layers, 114'681);
  EXPECT_EQ(figures.snapshot_bytes, 43 * 127 * 584);
}

// A row of configs/FIGURES.md: bf16, one sequence.
struct FigureRow {
  const char* name;
  uint32_t n_full;
  uint32_t n_sliding;
  uint32_t window;
  // KV heads x (K + V dims) x 2 bytes.
  uint32_t full_row_bytes;
  uint32_t sliding_row_bytes;
  double full_bytes_per_token;
  double all_bytes_per_token;
  uint64_t exact_tokens;
};

const FigureRow kFigureRows[] = {
    {"c4ai-command-r7b", 8, 24, 4096, 4096, 4096, 32768, 131072, 98280},
    {"DeepSeek-V3", 61, 0, 0, 1152, 0, 70272, 70272, 0},
    {"Devstral-2-123B", 88, 0, 0, 4096, 0, 360448, 360448, 0},
    {"EXAONE-4.0-32B", 16, 48, 4096, 4096, 4096, 65536, 262144, 196560},
    {"gemma-2-27b", 23, 23, 4096, 8192, 8192, 188416, 376832, 94185},
    {"gemma-2-2b", 13, 13, 4096, 4096, 4096, 53248, 106496, 53235},
    {"gemma-3-12b-it", 8, 40, 1024, 8192, 8192, 65536, 393216, 40920},
    {"gemma-3-270m", 3, 15, 512, 1024, 1024, 3072, 18432, 7665},
    {"gemma-3-4b-it", 5, 29, 1024, 4096, 4096, 20480, 139264, 29667},
    {"gemma-3n-E4B", 4, 16, 512, 2048, 2048, 8192, 40960, 8176},
    {"gemma-4-31B", 10, 50, 1024, 8192, 16384, 81920, 901120, 51150},
    {"gemma-4-E2B", 3, 12, 512, 2048, 1024, 6144, 18432, 6132},
    {"gpt-oss-20b", 12, 12, 128, 2048, 2048, 24576, 49152, 1524},
    {"Llama-3.3-70B", 80, 0, 0, 4096, 0, 327680, 327680, 0},
    {"MiMo-V2-Flash", 9, 39, 128, 2560, 5120, 23040, 222720, 4953},
    {"Ministral-3-3B-2512", 26, 0, 0, 4096, 0, 106496, 106496, 0},
    {"Mistral-7B-v0.1", 0, 32, 4096, 0, 4096, 0, 131072, 131040},
    {"Mistral-7B-v0.3", 32, 0, 0, 4096, 0, 131072, 131072, 0},
    {"Olmo-3-7B", 8, 24, 4096, 16384, 16384, 131072, 524288, 98280},
    {"Phi-3-mini-4k", 0, 32, 2047, 0, 12288, 0, 393216, 65472},
    {"Qwen2.5-7B", 28, 0, 0, 2048, 0, 57344, 57344, 0},
    {"Qwen3-8B", 36, 0, 0, 4096, 0, 147456, 147456, 0},
    {"SmolLM3-3B", 36, 0, 0, 2048, 0, 73728, 73728, 0},
    {"starcoder2-3b", 0, 30, 4096, 0, 1024, 0, 30720, 122850},
    {"Step-3.5-Flash", 12, 33, 512, 4096, 4096, 49152, 184320, 16863},
};

TEST(FiguresTest, ModelsWithWindowsHaveTheirPublishedFigures) {
  for (const FigureRow& row : kFigureRows) {
    SCOPED_TRACE(row.name);
    // Where the full layers lie moves no figure but the token-layers.
    for (const std::string& order :
         {Times(row.n_sliding, "s") + Times(row.n_full, "f"),
          Times(row.n_full, "f") + Times(row.n_sliding, "s")}) {
      const ModelLayout layout = LayoutOf(
          order, row.window, row.sliding_row_bytes, row.full_row_bytes);
      ASSERT_OK(layout.Validate());
      const LayoutFigures figures = FiguresOf(layout, kTokens);
      EXPECT_EQ(figures.compact_bytes_per_token, row.full_bytes_per_token);
      EXPECT_EQ(figures.all_window_bytes_per_token, row.all_bytes_per_token);
      EXPECT_EQ(figures.bounded_tokens, row.window);
      EXPECT_EQ(figures.exact_tokens, row.exact_tokens);
      EXPECT_EQ(
          figures.exact_token_layers,
          row.n_sliding == 0
              ? 0
              : (row.window - 1) *
                    (uint64_t{row.n_sliding} * (row.n_sliding - 1) / 2 +
                     (order[0] == 'f' ? uint64_t{row.n_full} * row.n_sliding
                                      : 0)));
      EXPECT_EQ(figures.ratio, row.n_full == 0 ? 0
                                               : row.all_bytes_per_token /
                                                     row.full_bytes_per_token);
    }
  }
}

TEST(FiguresTest, OtherModelsHaveTheirPublishedFigures) {
  const LayoutFigures v41 = FiguresOf(DeepSeekV41Flash(kDeepSeekBf16), kTokens);
  EXPECT_EQ(v41.compact_bytes_per_token, 3'200);
  EXPECT_EQ(v41.all_window_bytes_per_token, 44'160);
  const LayoutFigures v4 = FiguresOf(DeepSeekV4Flash(kDeepSeekBf16), kTokens);
  EXPECT_EQ(v4.compact_bytes_per_token, 6'880);
  EXPECT_EQ(v4.all_window_bytes_per_token, 50'912);
  const LayoutFigures scout = FiguresOf(Llama4Scout(), kTokens);
  EXPECT_EQ(scout.compact_bytes_per_token, 49'152);
  EXPECT_EQ(scout.all_window_bytes_per_token, 196'608);
  EXPECT_EQ(scout.bounded_tokens, 8'192);
  EXPECT_EQ(scout.exact_tokens, 8'191);
  EXPECT_EQ(scout.exact_token_layers, 46 * 8'191);
  const LayoutFigures gemma = FiguresOf(Gemma3With270M(), kTokens);
  EXPECT_EQ(gemma.ratio, 6);
  EXPECT_EQ(gemma.snapshot_bytes, 15 * 511 * 1024);
  EXPECT_EQ(gemma.exact_token_layers, 511 * 120);
  // Layers that share KV own no bytes.
  const LayoutFigures shared = FiguresOf(Gemma3nE4B(), kTokens);
  EXPECT_EQ(shared.all_window_bytes_per_token, 40'960);
  EXPECT_EQ(shared.exact_tokens, 8'176);
}

TEST(FiguresTest, AWindowAsLongAsTheModelCountsAsFull) {
  ModelLayout layout = LayoutOf(Times(36, "s"), 32'768, 4096, 1);
  for (Slot& slot : layout.slots) slot.come_back = ComeBack::kPersist;
  const LayoutFigures figures = FiguresOf(layout, kTokens);
  EXPECT_EQ(figures.compact_bytes_per_token, 147'456);
  EXPECT_EQ(figures.all_window_bytes_per_token, 147'456);
  EXPECT_EQ(figures.ratio, 1);
  EXPECT_EQ(figures.bounded_tokens, 0);
  EXPECT_EQ(figures.exact_tokens, 0);
  EXPECT_EQ(figures.snapshot_bytes, 0);
}

// The longest exact replay and the most token-layers over a run of cuts that
// covers every phase of chunks of 1 to 6 tokens, far from the start.
void ExpectLargestOverCuts(const ModelLayout& layout) {
  uint64_t tokens = 0;
  uint64_t token_layers = 0;
  for (uint64_t cut = 1'000; cut < 1'060; ++cut) {
    PlanRequest request;
    request.resume_at = cut;
    request.open_groups_stored = true;
    const auto plan = PlanReplay(layout, request);
    ASSERT_OK(plan);
    tokens = std::max(tokens, plan->replay_tokens());
    token_layers = std::max(token_layers, plan->token_layers);
  }
  const LayoutFigures figures = FiguresOf(layout, kTokens);
  EXPECT_EQ(figures.exact_tokens, tokens) << LayoutString(layout);
  EXPECT_EQ(figures.exact_token_layers, token_layers) << LayoutString(layout);
}

TEST(FiguresTest, ExactFiguresHoldAtEveryCutWithoutChunks) {
  for (uint64_t i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
    Random random(i);
    ModelLayout layout = RandomLayout(random, 6);
    std::erase_if(layout.slots, [](const Slot& slot) {
      return slot.kind == SlotKind::kChunked;
    });
    ExpectLargestOverCuts(layout);
  }
}

TEST(FiguresTest, ExactFiguresOfChunksAreTheLargestOverAllCuts) {
  // A window over a chunk owes most just behind the end of a chunk.
  ModelLayout layout = LayoutOf("cs", 6, 2, 2);
  layout.slots[1].window = 3;
  ExpectLargestOverCuts(layout);
  for (uint64_t i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
    Random random(i);
    ExpectLargestOverCuts(RandomLayout(random, 6));
  }
}

// ---- Slots by use ---------------------------------------------------------

TEST(ModelLayoutTest, SlotsAreListedByHowTheyComeBack) {
  ModelLayout layout = LayoutOf("fsc", 8, 2, 2);
  layout.slots.push_back(PooledSlot("pooled", 0, 2, 2));
  layout.slots.push_back(OpenGroupSlot("open", 0, 2, 0, 2));
  layout.slots.push_back(
      MakeSlot("state", SlotKind::kRecurrent, 2, 2, ComeBack::kSnapshot));
  layout.slots.push_back(SlidingSlot(2, 99, 2));
  layout.slots.back().come_back = ComeBack::kPersist;
  EXPECT_THAT(layout.CompactSlots(), ElementsAre(0, 3, 6));
  EXPECT_THAT(layout.ReplaySlots(), ElementsAre(1, 2, 4));
  EXPECT_THAT(layout.SnapshotSlots(), ElementsAre(1, 2, 4, 5));
  EXPECT_EQ(layout.LargestWindow(), 8);
}

// An open group's rows are of one token each, whatever its group is.
TEST(ModelLayoutTest, RowsStandForTokens) {
  const Slot open = OpenGroupSlot("open", 0, 4, 3, 2);
  const Slot pooled = PooledSlot("pooled", 0, 4, 2);
  const Slot state =
      MakeSlot("state", SlotKind::kRecurrent, 0, 2, ComeBack::kSnapshot);
  for (const Slot& slot :
       {FullSlot(0, 2), SlidingSlot(0, 8, 2), ChunkedSlot(0, 8, 2), open}) {
    EXPECT_EQ(RowsOf(slot, 5, 23), (Rows{5, 23})) << slot.name;
  }
  EXPECT_EQ(RowsOf(pooled, 5, 23), (Rows{1, 5}));
  EXPECT_EQ(RowsOf(pooled, 4, 24), (Rows{1, 6}));
  EXPECT_EQ(RowsOf(state, 5, 23).size(), 0);
}

TEST(ModelLayoutTest, ASnapshotCountsItsStates) {
  ModelLayout layout = LayoutOf("fs", 8, 4, 4);
  const uint64_t windows = FiguresOf(layout, 100).snapshot_bytes;
  EXPECT_EQ(windows, 7 * 4);
  layout.slots.push_back(
      MakeSlot("state", SlotKind::kRecurrent, 1, 300, ComeBack::kSnapshot));
  EXPECT_EQ(FiguresOf(layout, 100).snapshot_bytes, windows + 300);
}

// ---- Validate -------------------------------------------------------------

ModelLayout ValidLayout() {
  ModelLayout layout = LayoutOf("fsc", 8, 4, 4);
  layout.slots.push_back(PooledSlot("pooled", 1, 2, 4));
  layout.slots.push_back(OpenGroupSlot("open", 1, 2, 3, 4));
  return layout;
}

TEST(ModelLayoutTest, KnownLayoutsAreValid) {
  for (const ModelLayout& layout :
       {ValidLayout(), Gemma3With270M(), GptOssWith20B(), Nano(), Llama4Scout(),
        Mistral7B(), Gemma3nE4B(), DeepSeekV41Flash(kV41Native),
        DeepSeekV4Flash(kV4Native)}) {
    EXPECT_OK(layout.Validate());
  }
}

struct BadLayout {
  const char* what;
  // Part of the message.
  const char* names;
  std::function<void(ModelLayout&)> spoil;
};

void ExpectRefused(const std::vector<BadLayout>& bad, absl::StatusCode code) {
  for (const BadLayout& b : bad) {
    SCOPED_TRACE(b.what);
    ModelLayout layout = ValidLayout();
    b.spoil(layout);
    EXPECT_THAT(layout.Validate(), HasStatus(code, b.names));
  }
}

TEST(ModelLayoutTest, SlotsThatCannotBeAreRefusedByName) {
  ExpectRefused(
      {
          {"no layers", "0 layers", [](auto& l) { l.n_layers = 0; }},
          {"owner", "'layer1.window': owner layer 3",
           [](auto& l) { l.slots[1].owner_layer = 3; }},
          {"reader below its owner", "'layer1.window': reader layer 0",
           [](auto& l) {
             l.slots[1].reader_layers = {1, 0};
           }},
          {"reader", "'layer1.window': reader layer 3",
           [](auto& l) {
             l.slots[1].reader_layers = {1, 3};
           }},
          {"no window", "'layer1.window'",
           [](auto& l) { l.slots[1].window = 0; }},
          {"window of a full slot", "'layer0.full'",
           [](auto& l) { l.slots[0].window = 4; }},
          {"no chunk", "'layer2.chunk'", [](auto& l) { l.slots[2].chunk = 0; }},
          {"chunk of a window", "'layer1.window'",
           [](auto& l) { l.slots[1].chunk = 4; }},
          {"no tokens a row", "'pooled'",
           [](auto& l) { l.slots[3].tokens_per_row = 0; }},
          {"a window's tokens a row", "'layer1.window'",
           [](auto& l) { l.slots[1].tokens_per_row = 2; }},
          {"overlap of a pooled slot", "'pooled'",
           [](auto& l) { l.slots[3].overlap_tokens = 1; }},
          {"no bytes", "'layer0.full'",
           [](auto& l) { l.slots[0].row_bytes = 0; }},
          {"no heads", "'layer0.full'",
           [](auto& l) { l.slots[0].n_heads = 0; }},
          {"heads that do not divide a row", "'layer0.full'",
           [](auto& l) { l.slots[0].n_heads = 3; }},
          {"no name", "slot ''", [](auto& l) { l.slots[0].name = ""; }},
          {"a name twice", "'layer0.full'",
           [](auto& l) { l.slots[1].name = "layer0.full"; }},
          {"full slot that replays", "'layer0.full'",
           [](auto& l) { l.slots[0].come_back = ComeBack::kReplay; }},
          {"pooled slot that replays", "'pooled'",
           [](auto& l) { l.slots[3].come_back = ComeBack::kReplay; }},
          {"open group that persists", "'open'",
           [](auto& l) { l.slots[4].come_back = ComeBack::kPersist; }},
      },
      absl::StatusCode::kInvalidArgument);
}

TEST(ModelLayoutTest, RecurrentStatesThatReplayAreRefused) {
  for (const ComeBack come_back :
       {ComeBack::kReplay, ComeBack::kPersist, ComeBack::kDerive}) {
    ModelLayout layout = ValidLayout();
    layout.slots.push_back(
        MakeSlot("state", SlotKind::kRecurrent, 2, 4, come_back));
    EXPECT_THAT(layout.Validate(),
                HasStatus(absl::StatusCode::kFailedPrecondition, "'state'"));
  }
}

// "An impossible inventory is refused at registration, never discovered at
// resume": either that, or at least no plan is made.
bool IsRefused(const ModelLayout& layout, bool want_logits) {
  if (!layout.Validate().ok()) return true;
  PlanRequest request;
  request.resume_at = 100;
  request.want_logits = want_logits;
  return !PlanReplay(layout, request).ok();
}

// The snapshot holds the state at the cut; rows below it cannot run again.
TEST(ModelLayoutTest, AReplayThroughARecurrentLayerIsRefused) {
  ModelLayout layout = LayoutOf("fs", 8, 4, 4);
  layout.slots.push_back(
      MakeSlot("state", SlotKind::kRecurrent, 0, 4, ComeBack::kSnapshot));
  EXPECT_TRUE(IsRefused(layout, false));
  // Nothing runs through it here.
  ModelLayout above = LayoutOf("sf", 8, 4, 4);
  above.slots.push_back(
      MakeSlot("state", SlotKind::kRecurrent, 1, 4, ComeBack::kSnapshot));
  EXPECT_FALSE(IsRefused(above, false));
  EXPECT_TRUE(IsRefused(above, true));
}

// The snapshot holds the rows that later tokens see; replayed rows below the
// cut see older ones.
TEST(ModelLayoutTest, AReplayThroughAWindowOfASnapshotIsRefused) {
  ModelLayout layout = LayoutOf("ss", 8, 4, 4);
  layout.slots[0].come_back = ComeBack::kSnapshot;
  EXPECT_TRUE(IsRefused(layout, false));
  ModelLayout above = LayoutOf("ss", 8, 4, 4);
  above.slots[1].come_back = ComeBack::kSnapshot;
  EXPECT_FALSE(IsRefused(above, false));
}

TEST(ModelLayoutTest, ValuesThatNoEnumeratorHasAreRefused) {
  ExpectRefused(
      {
          {"kind", "'layer0.full'",
           [](auto& l) { l.slots[0].kind = static_cast<SlotKind>(99); }},
          {"come back", "'layer0.full'",
           [](auto& l) { l.slots[0].come_back = static_cast<ComeBack>(0); }},
          {"shard axis", "'layer0.full'",
           [](auto& l) { l.slots[0].shard_axis = static_cast<ShardAxis>(9); }},
      },
      absl::StatusCode::kInvalidArgument);
}

// ---- Block size -----------------------------------------------------------

double BytesPerToken(const ModelLayout& layout) {
  return FiguresOf(layout, kTokens).compact_bytes_per_token;
}

// A multiple of every group, at least 16; 1 MiB at most unless it is the least
// there is, 256 KiB at least if 1,024 tokens have that many.
void ExpectGoodBlockSize(const ModelLayout& layout) {
  SCOPED_TRACE(LayoutString(layout));
  const uint64_t tokens = ChooseBlockSize(layout);
  uint64_t least = 16;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back != ComeBack::kPersist) continue;
    EXPECT_EQ(tokens % slot.tokens_per_row, 0);
    least = std::lcm(least, uint64_t{slot.tokens_per_row});
  }
  EXPECT_GE(tokens, 16);
  const double bytes = BytesPerToken(layout) * static_cast<double>(tokens);
  if (tokens > least) {
    EXPECT_LE(bytes, 1024 * 1024);
  }
  const double next =
      bytes + BytesPerToken(layout) * static_cast<double>(least);
  if (next <= 1024 * 1024 && tokens < 1024) {
    EXPECT_GE(bytes, 256 * 1024 * 0.9);
  }
}

TEST(BlockSizeTest, KnownLayoutsHaveGoodBlocks) {
  for (const ModelLayout& layout :
       {Gemma3With270M(), GptOssWith20B(), Nano(), Llama4Scout(), Gemma3nE4B(),
        DeepSeekV41Flash(kV41Native), DeepSeekV4Flash(kV4Native),
        LayoutOf(Times(80, "f"), 0, 1, 4096)}) {
    ExpectGoodBlockSize(layout);
  }
  EXPECT_EQ(ChooseBlockSize(DeepSeekV4Flash(kV4Native)) % 128, 0);
}

TEST(BlockSizeTest, WhereOnlyTokensPersistABlockHolds1024) {
  EXPECT_EQ(ChooseBlockSize(Mistral7B()), 1024);
  EXPECT_EQ(ChooseBlockSize(LayoutOf("sss", 8, 2, 2)), 1024);
}

TEST(BlockSizeTest, RowsTooWideForABlockStandSixteenToOne) {
  EXPECT_EQ(ChooseBlockSize(LayoutOf(Times(80, "f"), 0, 1, 65'536)), 16);
}

TEST(BlockSizeTest, RandomLayoutsHaveGoodBlocks) {
  for (uint64_t i = 0; i < 500 && !::testing::Test::HasFailure(); ++i) {
    Random random(i);
    ModelLayout layout = RandomLayout(random, 6);
    for (Slot& slot : layout.slots) {
      slot.row_bytes =
          static_cast<uint32_t>(random.Between(1, random.OneIn(2) ? 64 : 9000));
      if (slot.kind == SlotKind::kPooled) {
        slot.tokens_per_row = static_cast<uint32_t>(random.Between(1, 12));
      }
    }
    ExpectGoodBlockSize(layout);
  }
}

// Numbers of a registration, whoever sends it: refused, or served rightly.
TEST(BlockSizeTest, GroupsWithoutACommonBlockAreRefused) {
  ModelLayout layout = LayoutOf("f", 0, 4, 4);
  // Primes: their least common multiple, with 16, is above 2^32.
  layout.slots.push_back(PooledSlot("a", 0, 65'537, 4));
  layout.slots.push_back(PooledSlot("b", 0, 65'539, 4));
  if (!layout.Validate().ok()) return;
  for (const Slot& slot : layout.slots) {
    EXPECT_EQ(ChooseBlockSize(layout) % slot.tokens_per_row, 0) << slot.name;
  }
}

}  // namespace
}  // namespace torpor::replay
