// SPDX-License-Identifier: Apache-2.0
//
// Prefill, decode and replay are one computation (design D9): neither chunks
// nor threads nor what runs beside a row change a bit of it.

#include <algorithm>

#include "tests/replay/family_conformance.h"

namespace torpor::replay {
namespace {

// Windows, compact rows and logits of a run.
struct Outcome {
  WindowState window;
  std::map<uint32_t, std::vector<uint8_t>> rows;
  std::vector<float> logits;
};

::testing::AssertionResult Same(const Outcome& a, const Outcome& b) {
  if (a.window.slots != b.window.slots) {
    return ::testing::AssertionFailure() << "windows or open groups differ";
  }
  if (a.rows != b.rows) {
    return ::testing::AssertionFailure() << "compact rows differ";
  }
  return kernels::SameBits(a.logits, b.logits);
}

absl::StatusOr<Outcome> Prefill(Model* model, std::span<const uint32_t> ids,
                                uint64_t chunk) {
  Outcome out;
  TestSession session(model);
  TORPOR_ASSIGN_OR_RETURN(out.logits, session.Run(ids, ids.size(), chunk));
  TORPOR_ASSIGN_OR_RETURN(out.window, session.Window());
  TORPOR_ASSIGN_OR_RETURN(const MemoryRows rows, session.Compact());
  out.rows = rows.slots;
  return out;
}

// One sequence of a batch: rows [begin, end) of its ids, those before having
// run. With a plan, rows of a replay over stored rows.
struct Item {
  std::vector<uint32_t> ids;
  uint64_t begin = 0;
  uint64_t end = 0;
  const ReplayPlan* plan = nullptr;
  MemoryRows* rows = nullptr;
};

absl::StatusOr<std::unique_ptr<Sequence>> Prepare(Model* model,
                                                  const Item& item) {
  std::unique_ptr<Sequence> sequence = model->NewSequence();
  if (item.plan != nullptr) {
    TORPOR_RETURN_IF_ERROR(LoadCompactRows(model->layout(), item.end, item.rows,
                                           sequence.get(), nullptr)
                               .status());
  } else if (item.begin > 0) {
    TORPOR_RETURN_IF_ERROR(
        RunTokens(model, SegmentOf(sequence.get(), item.ids, 0, item.begin), 0,
                  {})
            .status());
  }
  return sequence;
}

// What each item gives in one forward of all of them, in the given order.
absl::StatusOr<std::vector<Outcome>> RunBatch(
    Model* model, const std::vector<const Item*>& items) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Segment> segments;
  for (const Item* item : items) {
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> sequence,
                            Prepare(model, *item));
    Segment segment =
        SegmentOf(sequence.get(), item->ids, item->begin, item->end);
    segment.plan = item->plan;
    if (item->plan == nullptr) segment.logits_begin = item->begin;
    segments.push_back(segment);
    sequences.push_back(std::move(sequence));
  }
  std::vector<std::vector<float>> logits;
  TORPOR_RETURN_IF_ERROR(model->Forward(segments, {}, &logits));
  std::vector<Outcome> outcomes(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    outcomes[i].logits = logits[i];
    TORPOR_ASSIGN_OR_RETURN(
        outcomes[i].window,
        ExportWindow(model->layout(), *sequences[i], items[i]->end));
    TORPOR_ASSIGN_OR_RETURN(
        const MemoryRows rows,
        CompactRowsOf(model->layout(), *sequences[i], items[i]->end));
    outcomes[i].rows = rows.slots;
  }
  return outcomes;
}

TEST_P(FamilyConformance, ChunksOfAnySizeGiveTheSameBits) {
  const uint64_t n = std::max(period_, window_) + period_ + window_ + 3;
  const std::vector<uint32_t> ids = Ids(n);
  ASSERT_OK_AND_ASSIGN(const Outcome whole, Prefill(model_.get(), ids, 0));
  for (uint64_t chunk = 1; chunk < n; ++chunk) {
    ASSERT_OK_AND_ASSIGN(const Outcome parts,
                         Prefill(model_.get(), ids, chunk));
    ASSERT_TRUE(Same(parts, whole)) << "chunks of " << chunk;
  }
}

TEST_P(FamilyConformance, ChunksOfChangingSizesGiveTheSameBits) {
  const uint64_t n = 2 * exact_ + period_ + 5;
  const std::vector<uint32_t> ids = Ids(n);
  ASSERT_OK_AND_ASSIGN(const Outcome whole, Prefill(model_.get(), ids, 0));
  for (int round = 0; round < 8; ++round) {
    TestSession session(model_.get());
    std::vector<float> logits;
    for (uint64_t at = 0; at < n;) {
      const uint64_t chunk =
          std::min(n - at, random_.Between(1, 2 * window_ + 1));
      ASSERT_OK_AND_ASSIGN(
          const std::vector<float> part,
          session.Run(std::span(ids).subspan(at, chunk), chunk));
      logits.insert(logits.end(), part.begin(), part.end());
      at += chunk;
    }
    ASSERT_TRUE(kernels::SameBits(logits, whole.logits));
    ASSERT_OK_AND_ASSIGN(const WindowState window, session.Window());
    ASSERT_EQ(window.slots, whole.window.slots);
    ASSERT_OK_AND_ASSIGN(const MemoryRows rows, session.Compact());
    ASSERT_EQ(rows.slots, whole.rows);
  }
}

// As many rows as a forward takes, on top of a window that has wrapped around
// whatever holds it; and a replay far from the start.
TEST_P(FamilyConformance, TheLargestForwardsGiveTheSameBits) {
  const uint64_t n = 2 * model_->max_rows() + window_ + period_ + 3;
  const std::vector<uint32_t> ids = Ids(n);
  ASSERT_OK_AND_ASSIGN(const Outcome small, Prefill(model_.get(), ids, 37));
  TestSession session(model_.get());
  Outcome large;
  for (uint64_t begin = 0; begin < n;) {
    // The first is one of some rows, so that the others begin anywhere.
    const uint64_t end =
        begin == 0 ? window_ + 3 : std::min(n, begin + model_->max_rows());
    ASSERT_OK_AND_ASSIGN(
        const std::vector<float> logits,
        session.Run(std::span(ids).subspan(begin, end - begin), end - begin));
    large.logits.insert(large.logits.end(), logits.begin(), logits.end());
    begin = end;
  }
  ASSERT_OK_AND_ASSIGN(large.window, session.Window());
  ASSERT_OK_AND_ASSIGN(MemoryRows rows, session.Compact());
  large.rows = rows.slots;
  ASSERT_TRUE(Same(large, small));
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, n, ReplayMode::kExact));
  ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                       Rebuild(model_.get(), plan, ids, &rows));
  EXPECT_EQ(result.window.slots, large.window.slots);
}

TEST_P(FamilyConformance, ThreadsChangeNothing) {
  const std::vector<uint32_t> ids = Ids(2 * exact_ + period_ + 40);
  ASSERT_OK_AND_ASSIGN(const Outcome one, Prefill(model_.get(), ids, 0));
  for (const int threads : {2, 3}) {
    const std::unique_ptr<Model> model = Load(threads);
    ASSERT_NE(model, nullptr);
    EXPECT_EQ(model->numerics_id(), model_->numerics_id());
    for (const uint64_t chunk : {0, 9, 64}) {
      ASSERT_OK_AND_ASSIGN(const Outcome more,
                           Prefill(model.get(), ids, chunk));
      ASSERT_TRUE(Same(more, one))
          << threads << " threads, chunks of " << chunk;
    }
  }
}

// A window holds what decoding needs at every length, and the rows of a cut are
// those that a prefill of that many tokens writes.
TEST_P(FamilyConformance, DecodeIsPrefill) {
  const uint64_t n = exact_ + period_ + 2 * window_;
  NeverSlept decoded(model_.get(), Ids(n), Cuts(1, n));
  for (uint64_t cut = 1; cut <= n; ++cut) {
    ASSERT_OK_AND_ASSIGN(
        const Outcome prefilled,
        Prefill(model_.get(), std::span(decoded.ids()).first(cut), 0));
    ASSERT_EQ(prefilled.window.slots, decoded.window(cut).slots)
        << "cut " << cut;
    ASSERT_TRUE(kernels::SameBits(prefilled.logits, decoded.logits(0, cut)))
        << "cut " << cut;
    for (const auto& [slot, bytes] : prefilled.rows) {
      const std::vector<uint8_t>& wanted = decoded.rows()->slots.at(slot);
      ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), wanted.begin()))
          << layout().slots[slot].name << ", cut " << cut;
    }
  }
}

// Prefill, a later chunk, decode and replay beside each other, in any order.
TEST_P(FamilyConformance, ABatchGivesWhatEachAloneGives) {
  const uint64_t cut = exact_ + period_ + window_ + 1;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan exact,
                       Plan(*model_, cut, ReplayMode::kExact));
  ASSERT_OK_AND_ASSIGN(const ReplayPlan bounded,
                       Plan(*model_, cut, ReplayMode::kBounded));
  std::vector<Item> items;
  for (const uint64_t n : {uint64_t{1}, window_ + period_}) {
    items.push_back({.ids = Ids(n), .end = n});
  }
  for (uint64_t before = window_ + 1; before <= window_ + period_ + 1;
       ++before) {
    items.push_back(
        {.ids = Ids(before + 1), .begin = before, .end = before + 1});
  }
  items.push_back({.ids = Ids(window_ + 9), .begin = 4, .end = window_ + 9});
  for (const ReplayPlan* plan : {&exact, &bounded}) {
    items.push_back({.ids = truth.ids(),
                     .begin = plan->replay_start,
                     .end = cut,
                     .plan = plan,
                     .rows = truth.rows()});
  }
  std::vector<const Item*> order;
  std::vector<Outcome> alone;
  for (const Item& item : items) {
    // No row runs where no slot comes back.
    if (item.begin == item.end) continue;
    order.push_back(&item);
    ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> one,
                         RunBatch(model_.get(), {&item}));
    alone.push_back(one[0]);
  }
  for (size_t turn = 0; turn < order.size(); ++turn) {
    // As many as one forward takes.
    std::vector<const Item*> batch;
    uint64_t room = model_->max_rows();
    for (const Item* item : order) {
      if (item->end - item->begin > room) break;
      room -= item->end - item->begin;
      batch.push_back(item);
    }
    ASSERT_GT(batch.size(), 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> together,
                         RunBatch(model_.get(), batch));
    for (size_t i = 0; i < batch.size(); ++i) {
      ASSERT_TRUE(Same(together[i], alone[i])) << "segment " << i;
    }
    std::rotate(order.begin(), order.begin() + 1, order.end());
    std::rotate(alone.begin(), alone.begin() + 1, alone.end());
  }
}

TEST_P(FamilyConformance, ARowOfAGroupStandsWhenTheGroupCloses) {
  const std::vector<uint32_t> ids = Ids(2 * period_ + 3);
  TestSession session(model_.get());
  for (uint64_t n = 1; n <= ids.size(); ++n) {
    ASSERT_OK(session.Run(std::span(ids).subspan(n - 1, 1), 0).status());
    ASSERT_OK(session.Compact().status());
    for (const uint32_t index : layout().CompactSlots()) {
      const Slot& slot = layout().slots[index];
      const uint64_t next = n / slot.tokens_per_row;
      std::vector<uint8_t> row(slot.row_bytes);
      EXPECT_THAT(session.sequence()->ExportRows(index, {next, next + 1}, row),
                  testing::HasCode(absl::StatusCode::kOutOfRange))
          << slot.name << ", " << n << " tokens";
    }
  }
}

}  // namespace
}  // namespace torpor::replay
