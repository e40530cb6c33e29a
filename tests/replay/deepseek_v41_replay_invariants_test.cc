// SPDX-License-Identifier: Apache-2.0
//
// Invariants 4 to 7, 9, 10, 12 and 13 of the fact sheet (section 10, as section
// 12 corrects it): what a replay rebuilds, what it reads, and the decoder tail.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/replay/deepseek_v41_invariants.h"

namespace torpor::replay::deepseek_v41 {
namespace {

// ---- 4: what of a bounded replay is exact ----------------------------------

TEST_F(DeepSeekV41Invariants, Invariant04WhatABoundedReplayKeeps) {
  TestSession cold = Prefilled(kTokens);
  for (uint64_t cut = kWindow + 1; cut <= 60; ++cut) {
    SCOPED_TRACE(cut);
    const ReplayPlan plan = Bounded(cut);
    const uint64_t s = cut - kWindow;
    // An odd cut opens a pair at cut - 1, which lies above s.
    ASSERT_EQ(plan.replay_start, s);
    ASSERT_FALSE(plan.exact);
    MemoryRows rows = CompactAt(cut);
    const std::unique_ptr<Sequence> woken = Replayed(plan, &rows);
    const auto differing = [&](uint32_t layer, uint64_t begin) {
      return Differing(*woken, *cold.sequence(), WindowSlot(layer), begin, cut);
    };
    // All W rows of layer 0, of layer 1 the last row, of deeper layers none.
    EXPECT_TRUE(differing(0, s).empty());
    EXPECT_TRUE(differing(1, cut - 1).empty());
    EXPECT_EQ(differing(1, s).size(), kWindow - 1);
    for (uint32_t l = 2; l < kLayers; ++l) {
      EXPECT_EQ(differing(l, s + 1).size(), kWindow - 1) << "layer " << l;
    }
  }
  // Up to a whole window nothing is cut.
  for (uint64_t cut = 1; cut <= kWindow; ++cut) {
    const ReplayPlan plan = Bounded(cut);
    EXPECT_TRUE(plan.exact);
    EXPECT_EQ(plan.replay_start, 0);
    MemoryRows rows = CompactAt(cut);
    const std::unique_ptr<Sequence> woken = Replayed(plan, &rows);
    EXPECT_EQ(WindowOf(*woken, cut).slots,
              WindowOf(*Prefilled(cut).sequence(), cut).slots)
        << cut;
  }
  const ModelLayout release = ReleaseLayout();
  for (const uint64_t cut : {127, 128, 129, 130}) {
    ASSERT_OK_AND_ASSIGN(
        const ReplayPlan plan,
        PlanReplay(release, {.resume_at = cut, .mode = ReplayMode::kBounded}));
    EXPECT_EQ(plan.exact, cut <= kReleaseWindow);
    EXPECT_EQ(plan.replay_tokens(), std::min(cut, kReleaseWindow));
  }
}

// ---- 5: a cold run through the replay path ---------------------------------

TEST_F(DeepSeekV41Invariants, Invariant05AReplayOfEverythingIsThePrefill) {
  for (const uint64_t n : {uint64_t{60}, uint64_t{67}, kTokens}) {
    TestSession cold(model_.get());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> wanted,
                         cold.Run(std::span(ids_).first(n), n));
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, cold.Compact());
    // s = 0 and H = N: every row, window reads cut at 0.
    ReplayPlan plan;
    plan.mode = ReplayMode::kBounded;
    plan.resume_at = n;
    plan.layers.assign(kLayers, {0, 0});
    plan.floors = {{0, n, 0, 0}};
    plan.write_begin.assign(layout().slots.size(), n);
    for (uint32_t i = 0; i < layout().slots.size(); ++i) {
      const Slot& slot = layout().slots[i];
      if (slot.is_window()) plan.write_begin[i] = 0;
      if (slot.kind == SlotKind::kOpenGroup) {
        plan.write_begin[i] = FirstRowOwed(slot, n);
      }
    }
    const std::unique_ptr<Sequence> sequence = Loaded(n, &rows);
    const std::vector<float> got =
        Replay(model_.get(), plan, ids_, sequence.get(), 0);
    EXPECT_TRUE(kernels::SameBits(got, wanted));
    for (const uint32_t slot : WindowSlots()) {
      EXPECT_TRUE(Differing(*sequence, *cold.sequence(), slot, 0, n).empty());
    }
    EXPECT_EQ(WindowOf(*sequence, n).slots,
              WindowOf(*cold.sequence(), n).slots);
  }
}

// ---- 6: exact replay -------------------------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant06ExactTakesItsTriangleAndNoMore) {
  // Of 40 layers: 5,080 tokens; rows that run 99,060; window rows 104,140.
  const ModelLayout release = ReleaseLayout();
  const uint64_t cut = 100'000;
  ASSERT_OK_AND_ASSIGN(
      const ReplayPlan big,
      PlanReplay(release, {.resume_at = cut, .mode = ReplayMode::kExact}));
  EXPECT_EQ(big.replay_tokens(), 5'080);
  EXPECT_EQ(big.token_layers, 99'060);
  uint64_t kv_rows = 0;
  for (size_t i = 0; i < release.slots.size(); ++i) {
    const Slot& slot = release.slots[i];
    if (!slot.is_window()) continue;
    kv_rows += cut - big.write_begin[i];
    EXPECT_EQ(cut - big.write_begin[i],
              (kReleaseLayers - slot.owner_layer) * 127);
  }
  EXPECT_EQ(kv_rows, 104'140);

  for (uint64_t n = kLayers * (kWindow - 1) + 2; n <= kTokens; n += 3) {
    SCOPED_TRACE(n);
    const ReplayPlan plan = Exact(n);
    ASSERT_EQ(plan.replay_tokens(), kLayers * (kWindow - 1));
    TestSession cold = Prefilled(n);
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, cold.Compact());
    // With NaN wherever the plan writes nothing.
    std::unique_ptr<Sequence> woken = Loaded(n, &rows);
    PoisonWindows(0, 0, n, woken.get());
    Replay(model_.get(), plan, ids_, woken.get(), n);
    EXPECT_EQ(WindowOf(*woken, n).slots, WindowOf(*cold.sequence(), n).slots);

    // One token fewer at the start: the missing row is read, and what it
    // spoils is the oldest row of the last layer.
    ReplayPlan narrow = plan;
    ++narrow.replay_start;
    ++narrow.layers[0].input_begin;
    ++narrow.write_begin[WindowSlot(0)];
    woken = Loaded(n, &rows);
    PoisonWindows(0, 0, n, woken.get());
    Replay(model_.get(), narrow, ids_, woken.get(), n);
    const uint64_t oldest = n - (kWindow - 1);
    EXPECT_EQ(
        Differing(*woken, *cold.sequence(), WindowSlot(kLayers - 1), oldest, n),
        std::vector<uint64_t>{oldest});
  }
}

// ---- 7: what a replay reads ------------------------------------------------

// Remembers what the layers of one KV source picked; may be asked again.
class PicksTap final : public Tap {
 public:
  explicit PicksTap(std::map<uint32_t, uint32_t> source_of)
      : source_of_(std::move(source_of)) {}

  void OnRows(std::string_view, uint32_t, std::span<const RowRun>,
              std::span<float>) override {}
  void OnRecord(uint32_t, uint64_t, std::span<uint8_t>) override {}
  void OnChoice(std::string_view name, uint32_t layer, uint64_t position,
                std::vector<int32_t>* ids) override {
    if (name != "picks") return;
    picked_[source_of_.at(layer)].insert(ids->begin(), ids->end());
    choices_[{layer, position}] = *ids;
  }

  // By KV source; and by layer and position.
  std::map<uint32_t, std::set<int32_t>> picked_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<int32_t>> choices_;

 private:
  const std::map<uint32_t, uint32_t> source_of_;
};

std::map<uint32_t, uint32_t> SourcesOfIndexLayers() {
  return {{2, 2}, {5, 5}, {7, 7}, {9, 7}};
}

TEST_F(DeepSeekV41Invariants, Invariant07PickedEntriesAreRead) {
  for (const uint64_t cut : {64, 79}) {
    SCOPED_TRACE(cut);
    MemoryRows rows = CompactAt(cut);
    const ReplayPlan plan = Bounded(cut);
    PicksTap tap(SourcesOfIndexLayers());
    model_->set_tap(&tap);
    const WindowState clean = WindowOf(*Replayed(plan, &rows), cut);
    model_->set_tap(nullptr);
    for (const uint32_t source : {2, 5, 7}) {
      const std::string name = "layer." + std::to_string(source) + ".main";
      const uint32_t slot = SlotNamed(name);
      const size_t row_bytes = layout().slots[slot].row_bytes;
      const uint64_t n = cut / layout().slots[slot].tokens_per_row;
      const std::set<int32_t>& picked = tap.picked_.at(source);
      ASSERT_FALSE(picked.empty());
      ASSERT_LT(picked.size(), n) << "some entry is not picked";
      for (uint64_t g = 0; g < n; ++g) {
        // NaN, put there by the reader.
        MemoryRows changed = rows;
        std::fill_n(
            changed.slots[slot].begin() + static_cast<ptrdiff_t>(g * row_bytes),
            row_bytes, 0xff);
        const WindowState got = WindowOf(*Replayed(plan, &changed), cut);
        EXPECT_EQ(got.slots != clean.slots,
                  picked.contains(static_cast<int32_t>(g)))
            << name << ", entry " << g;
      }
    }
  }
}

TEST_F(DeepSeekV41Invariants, Invariant07VisibleKeysAreRead) {
  const uint64_t cut = 64;
  MemoryRows rows = CompactAt(cut);
  const ReplayPlan plan = Bounded(cut);
  PicksTap tap(SourcesOfIndexLayers());
  model_->set_tap(&tap);
  const WindowState clean = WindowOf(*Replayed(plan, &rows), cut);
  for (const uint32_t source : {2, 5, 7}) {
    const std::string name = "layer." + std::to_string(source) + ".index";
    const uint32_t slot = SlotNamed(name);
    const size_t row_bytes = layout().slots[slot].row_bytes;
    const uint64_t ratio = layout().slots[slot].tokens_per_row;
    int n_unpicked = 0;
    for (uint64_t g = 0; g < cut / ratio; ++g) {
      const auto id = static_cast<int32_t>(g);
      // A row of the source sees the key and passes it over.
      bool unpicked = false;
      for (uint64_t row = plan.replay_start; row < cut; ++row) {
        const auto& picks = tap.choices_.at({source, row});
        unpicked = unpicked || (g < (row + 1) / ratio &&
                                !std::count(picks.begin(), picks.end(), id));
      }
      if (!unpicked) continue;
      ++n_unpicked;
      MemoryRows changed = rows;
      std::fill_n(
          changed.slots[slot].begin() + static_cast<ptrdiff_t>(g * row_bytes),
          row_bytes, 0xff);
      PicksTap again(SourcesOfIndexLayers());
      model_->set_tap(&again);
      const WindowState got = WindowOf(*Replayed(plan, &changed), cut);
      // A NaN counts as the best: all rows that see the key pick it now.
      for (uint64_t row = plan.replay_start; row < cut; ++row) {
        const auto& picks = again.choices_.at({source, row});
        EXPECT_EQ(std::count(picks.begin(), picks.end(), id),
                  g < (row + 1) / ratio ? 1 : 0);
      }
      EXPECT_NE(got.slots, clean.slots) << name << ", key " << g;
    }
    EXPECT_GT(n_unpicked, 0);
  }
  model_->set_tap(nullptr);
}

TEST_F(DeepSeekV41Invariants, Invariant07WindowRowsBelowTheStartAreNot) {
  for (const uint64_t cut : {uint64_t{9}, uint64_t{64}, uint64_t{79}}) {
    MemoryRows rows = CompactAt(cut);
    const ReplayPlan plan = Bounded(cut, true);
    const std::unique_ptr<Sequence> clean = Loaded(cut, &rows);
    const std::vector<float> wanted =
        Replay(model_.get(), plan, ids_, clean.get(), cut - 1);
    const std::unique_ptr<Sequence> poisoned = Loaded(cut, &rows);
    PoisonWindows(0, 0, plan.replay_start, poisoned.get());
    const std::vector<float> got =
        Replay(model_.get(), plan, ids_, poisoned.get(), cut - 1);
    EXPECT_EQ(WindowOf(*poisoned, cut).slots, WindowOf(*clean, cut).slots);
    EXPECT_TRUE(kernels::SameBits(got, wanted));
  }
}

// ---- 9 and 10: chunks and batches ------------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant09ChunksChangeNothing) {
  for (const uint64_t cut : {64, 67, 90}) {
    MemoryRows rows = CompactAt(cut);
    for (const ReplayPlan& plan : {Bounded(cut, true), Exact(cut, true)}) {
      const std::unique_ptr<Sequence> whole = Loaded(cut, &rows);
      const std::vector<float> wanted =
          Replay(model_.get(), plan, ids_, whole.get(), cut - 1);
      for (uint64_t chunk = 1; chunk <= 2 * kWindow + 1; ++chunk) {
        const std::unique_ptr<Sequence> split = Loaded(cut, &rows);
        const std::vector<float> got =
            Replay(model_.get(), plan, ids_, split.get(), cut - 1, chunk);
        EXPECT_EQ(WindowOf(*split, cut).slots, WindowOf(*whole, cut).slots)
            << "cut " << cut << ", chunks of " << chunk;
        EXPECT_TRUE(kernels::SameBits(got, wanted));
      }
    }
  }
}

TEST_F(DeepSeekV41Invariants, Invariant10NeighboursChangeNothing) {
  // Two sessions share a prefix and its stored rows, the third its last cut.
  const std::vector<uint64_t> cuts = {64, 79, 64};
  const std::vector<ReplayPlan> plans = {Bounded(64, true), Exact(79, true),
                                         Exact(64, true)};
  MemoryRows rows = CompactAt(79);
  std::vector<WindowState> alone;
  std::vector<std::vector<float>> logits_alone;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const std::unique_ptr<Sequence> sequence = Loaded(cuts[i], &rows);
    logits_alone.push_back(
        Replay(model_.get(), plans[i], ids_, sequence.get(), cuts[i] - 1));
    alone.push_back(WindowOf(*sequence, cuts[i]));
  }
  for (std::vector<size_t> order = {0, 1, 2};;) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Segment> segments;
    for (const size_t i : order) {
      sequences.push_back(Loaded(cuts[i], &rows));
      segments.push_back(SegmentOf(sequences.back().get(), ids_,
                                   plans[i].replay_start, cuts[i]));
      segments.back().plan = &plans[i];
      segments.back().logits_begin = cuts[i] - 1;
    }
    std::vector<std::vector<float>> logits;
    ASSERT_OK(model_->Forward(segments, {}, &logits));
    for (size_t at = 0; at < order.size(); ++at) {
      const size_t i = order[at];
      EXPECT_EQ(WindowOf(*sequences[at], cuts[i]).slots, alone[i].slots);
      EXPECT_TRUE(kernels::SameBits(logits[at], logits_alone[i]));
    }
    if (!std::next_permutation(order.begin(), order.end())) break;
  }
}

// ---- 12 and 13: the decoder tail -------------------------------------------

TEST_F(DeepSeekV41Invariants, Invariant12TheTailKeepsWhatIsStored) {
  const ModelLayout release = ReleaseLayout();
  const auto big = PlanTailPrefill(release, 0, 10'000);
  ASSERT_TRUE(big.has_value());
  // 20 layers run every row; layer 20 takes every row in and runs 128.
  EXPECT_EQ(big->plan.token_layers, 20 * 10'000 + 20 * 128);
  for (uint32_t l = 0; l < kReleaseLayers; ++l) {
    EXPECT_EQ(big->plan.layers[l].input_begin, l <= 20 ? 0 : 10'000 - 128);
    EXPECT_EQ(big->plan.layers[l].run_begin, l < 20 ? 0 : 10'000 - 128);
  }
  for (const uint64_t n : {uint64_t{9}, uint64_t{57}, kTokens}) {
    for (const uint64_t chunk : {0, 7}) {
      const std::unique_ptr<Sequence> tailed = model_->NewSequence();
      const auto tail = PlanTailPrefill(layout(), 0, n);
      ASSERT_TRUE(tail.has_value());
      Replay(model_.get(), tail->plan, ids_, tailed.get(), n, chunk);
      ASSERT_OK_AND_ASSIGN(const MemoryRows got,
                           CompactRowsOf(layout(), *tailed, n));
      EXPECT_EQ(got.slots, CompactAt(n).slots) << n;
    }
  }
}

class TailInvariants : public DeepSeekV41Invariants {
 protected:
  // A prefill of all ids whose layers above the last source run the last `rows`
  // rows alone, without a floor: NaN stands in windows below them.
  std::unique_ptr<Sequence> PrefilledWithTail(uint64_t rows) {
    auto tail = PlanTailPrefill(layout(), 0, kTokens);
    EXPECT_TRUE(tail.has_value());
    ReplayPlan plan = tail->plan;
    plan.floors.clear();
    for (uint32_t l = kLastSource; l < kLayers; ++l) {
      plan.layers[l].run_begin = kTokens - rows;
      if (l > kLastSource) plan.layers[l].input_begin = kTokens - rows;
      if (l > kLastSource) plan.write_begin[WindowSlot(l)] = kTokens - rows;
    }
    std::unique_ptr<Sequence> sequence = model_->NewSequence();
    PoisonWindows(kLastSource + 1, 0, kTokens, sequence.get());
    Replay(model_.get(), plan, ids_, sequence.get(), kTokens);
    return sequence;
  }
};

TEST_F(TailInvariants, Invariant13RowsThatMakeATailExact) {
  // 19 layers above the source: W + 18 (W - 1) rows for W rows of the last.
  ASSERT_OK_AND_ASSIGN(const ReplayPlan big,
                       PlanReplay(ReleaseLayout(), {.resume_at = 100'000,
                                                    .mode = ReplayMode::kExact,
                                                    .want_logits = true}));
  EXPECT_EQ(100'000 - big.layers[21].input_begin, 2'414);
  EXPECT_EQ(kReleaseWindow + 18 * (kReleaseWindow - 1), 2'414);

  TestSession cold = Prefilled(kTokens);
  const uint64_t rows = kWindow + 2 * (kWindow - 1);
  const uint64_t last_rows = kTokens - kWindow;
  const auto exact = PrefilledWithTail(rows);
  EXPECT_TRUE(Differing(*exact, *cold.sequence(), WindowSlot(kLayers - 1),
                        last_rows, kTokens)
                  .empty());
  // One row fewer, and the oldest of them has read a row that is not there.
  const auto narrow = PrefilledWithTail(rows - 1);
  EXPECT_EQ(Differing(*narrow, *cold.sequence(), WindowSlot(kLayers - 1),
                      last_rows, kTokens),
            std::vector<uint64_t>{last_rows});
}

TEST_F(TailInvariants, Invariant13WhatATailOfOneWindowKeeps) {
  TestSession cold = Prefilled(kTokens);
  const auto tail = PlanTailPrefill(layout(), 0, kTokens);
  ASSERT_TRUE(tail.has_value());
  const std::unique_ptr<Sequence> tailed = model_->NewSequence();
  Replay(model_.get(), tail->plan, ids_, tailed.get(), kTokens);
  const uint64_t first = kTokens - kWindow;
  const auto differing = [&](uint32_t layer) {
    return Differing(*tailed, *cold.sequence(), WindowSlot(layer), first,
                     kTokens)
        .size();
  };
  // The source's rows and those of the layer above it, of the next only the
  // last, deeper ones nowhere.
  for (uint32_t l = 0; l <= kLastSource + 1; ++l) EXPECT_EQ(differing(l), 0);
  EXPECT_EQ(differing(kLastSource + 2), kWindow - 1);
  EXPECT_TRUE(SameRow(*tailed, *cold.sequence(), WindowSlot(kLastSource + 2),
                      kTokens - 1));
  EXPECT_EQ(differing(kLastSource + 3), kWindow);
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
