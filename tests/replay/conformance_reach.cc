// SPDX-License-Identifier: Apache-2.0
//
// What a replay depends on, shown by putting something else there: stored rows
// in and out of sight, and input rows at the edge of the plan.

#include <algorithm>

#include "tests/replay/family_conformance.h"

namespace torpor::replay {
namespace {

// Owed rows of a slot that differ.
std::vector<uint64_t> RowsThatDiffer(const Slot& slot, const SlotRows& a,
                                     const SlotRows& b) {
  std::vector<uint64_t> out;
  for (uint64_t row = a.first; row < a.end; ++row) {
    const auto at = static_cast<ptrdiff_t>((row - a.first) * slot.row_bytes);
    if (!std::equal(a.bytes.begin() + at, a.bytes.begin() + at + slot.row_bytes,
                    b.bytes.begin() + at)) {
      out.push_back(row);
    }
  }
  return out;
}

// Fails if a row of a window below token `first` differs: those that see the
// change stand at `first` or above.
void ExpectSameBelow(const ModelLayout& layout, uint64_t first,
                     const WindowState& got, const WindowState& wanted) {
  for (size_t i = 0; i < got.slots.size(); ++i) {
    const Slot& slot = layout.slots[got.slots[i].slot];
    for (const uint64_t row :
         RowsThatDiffer(slot, got.slots[i], wanted.slots[i])) {
      EXPECT_GE(row, first) << slot.name;
    }
  }
}

// Rows [first, end) in the opposite order.
void Reverse(std::vector<uint8_t>* bytes, size_t row_bytes, uint64_t first) {
  const uint64_t end = bytes->size() / row_bytes;
  for (uint64_t i = first, j = end; i + 1 < j; ++i) {
    --j;
    std::swap_ranges(
        bytes->begin() + static_cast<ptrdiff_t>(i * row_bytes),
        bytes->begin() + static_cast<ptrdiff_t>((i + 1) * row_bytes),
        bytes->begin() + static_cast<ptrdiff_t>(j * row_bytes));
  }
}

// Rows [first, end) become the one at `first`.
void MakeAlike(std::vector<uint8_t>* bytes, size_t row_bytes, uint64_t first) {
  for (size_t i = (first + 1) * row_bytes; i < bytes->size(); ++i) {
    (*bytes)[i] = (*bytes)[i - row_bytes];
  }
}

// A token sees a pooled row from the last token of its group on.
uint64_t FirstToSee(const Slot& slot, uint64_t row) {
  return (row + 1) * slot.tokens_per_row - 1;
}

// ---- stored rows ----------------------------------------------------------

TEST_P(FamilyConformance, EveryStoredRowInSightMatters) {
  const uint64_t cut = FarCuts().back();
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kExact));
  for (const auto& [index, stored] : truth.rows()->slots) {
    const Slot& slot = layout().slots[index];
    const uint64_t n = cut / slot.tokens_per_row;
    if (!IsRead(slot, plan) || traits().row_use(slot) != RowUse::kEvery) {
      continue;
    }
    for (uint64_t row = 0; row < n; ++row) {
      MemoryRows changed = *truth.rows();
      std::fill_n(changed.slots[index].begin() +
                      static_cast<ptrdiff_t>(row * slot.row_bytes),
                  slot.row_bytes, 0xff);
      ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                           Rebuild(model_.get(), plan, truth.ids(), &changed));
      EXPECT_NE(result.window.slots, truth.window(cut).slots)
          << slot.name << ", row " << row;
      ExpectSameBelow(layout(), FirstToSee(slot, row), result.window,
                      truth.window(cut));
    }
  }
}

// Where a layer picks rows, or picks by them, one alone may not count: all
// change places, or become alike.
TEST_P(FamilyConformance, StoredRowsThatArePickedMatterTogether) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    const WindowState& wanted = truth.window(cut);
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    for (const auto& [index, stored] : truth.rows()->slots) {
      const Slot& slot = layout().slots[index];
      if (!IsRead(slot, plan)) continue;
      const uint64_t n = cut / slot.tokens_per_row;
      const uint64_t recent = std::min(n, window_ / 2 / slot.tokens_per_row);
      for (const uint64_t first : {uint64_t{0}, n - recent}) {
        bool matters = false;
        for (const auto change : {Reverse, MakeAlike}) {
          MemoryRows changed = *truth.rows();
          change(&changed.slots[index], slot.row_bytes, first);
          ASSERT_OK_AND_ASSIGN(
              const ReplayResult result,
              Rebuild(model_.get(), plan, truth.ids(), &changed));
          matters = matters || result.window.slots != wanted.slots;
          ExpectSameBelow(layout(), FirstToSee(slot, first), result.window,
                          wanted);
        }
        if (first > 0 || n < 2) continue;
        EXPECT_EQ(matters, traits().row_use(slot) != RowUse::kNone)
            << slot.name << ", cut " << cut;
      }
    }
  }
}

TEST_P(FamilyConformance, StoredRowsOutOfSightDoNotMatter) {
  for (const uint64_t cut : FarCuts()) {
    const uint64_t n = cut + 2 * period_ + 3;
    NeverSlept truth(model_.get(), Ids(n), {cut});
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    // Rows of slots that no running row reads, and those beyond the cut.
    MemoryRows poisoned = *truth.rows();
    for (auto& [index, bytes] : poisoned.slots) {
      const Slot& slot = layout().slots[index];
      const uint64_t held =
          IsRead(slot, plan) ? cut / slot.tokens_per_row * slot.row_bytes : 0;
      std::fill(bytes.begin() + static_cast<ptrdiff_t>(held), bytes.end(),
                0xff);
    }
    WatchedModel watched(model_.get());
    watched.on_new_sequence = [&](Sequence* sequence) {
      ASSERT_OK(
          LoadCompactRows(layout(), n, &poisoned, sequence, nullptr).status());
    };
    for (const uint64_t rows_max : {0, 3}) {
      watched.rows_max = rows_max;
      ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                           Rebuild(&watched, plan, truth.ids(), &poisoned));
      EXPECT_EQ(result.window.slots, truth.window(cut).slots) << "cut " << cut;
    }
  }
}

// ---- the edge of the plan -------------------------------------------------

// Owed rows, or the logits if the plan was made with them, that differ once row
// `position` of a layer's input is something else.
absl::StatusOr<bool> Reaches(Model* model, const ReplayPlan& plan,
                             NeverSlept* truth, const Poison& poison,
                             bool want_logits, const WindowState& clean) {
  WatchedModel watched(model);
  watched.poison = poison;
  const ReplayJob job{.plan = &plan,
                      .ids = std::span(truth->ids()).first(plan.resume_at),
                      .reader = truth->rows(),
                      .want_logits = want_logits};
  TORPOR_ASSIGN_OR_RETURN(const auto results, MakeReplayer(&watched)->Rebuild(
                                                  std::span(&job, 1), nullptr));
  EXPECT_EQ(watched.n_poisoned, 1)
      << "layer " << poison.layer << ", row " << poison.position;
  const WindowState& window = results[0].window;
  return window.slots != clean.slots ||
         !kernels::SameBits(window.logits, clean.logits);
}

// Nothing of a plan is wider than it must be.
TEST_P(FamilyConformance, TheFirstRowOfEachLayerReachesWhatIsOwed) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
      for (const bool want_logits : {false, true}) {
        ASSERT_OK_AND_ASSIGN(
            const ReplayPlan plan,
            PlanReplay(
                layout(),
                {.resume_at = cut, .mode = mode, .want_logits = want_logits}));
        ASSERT_OK_AND_ASSIGN(const ReplayResult clean,
                             Rebuild(model_.get(), plan, truth.ids(),
                                     truth.rows(), want_logits));
        for (uint32_t l = 0; l < layout().n_layers; ++l) {
          const uint64_t first = plan.layers[l].input_begin;
          if (first == cut) continue;
          ASSERT_OK_AND_ASSIGN(
              const bool reaches,
              Reaches(model_.get(), plan, &truth, {l, first, traits().poison},
                      want_logits, clean.window));
          EXPECT_TRUE(reaches) << std::string(ReplayModeName(mode)) << " at "
                               << cut << (want_logits ? " with logits" : "")
                               << ": row " << first << " of layer " << l;
        }
      }
    }
  }
}

// Nor narrower: a plan that is forced to begin one row early in every layer
// gives the same, whatever that row holds.
TEST_P(FamilyConformance, ARowBeforeTheFirstReachesNothing) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    ASSERT_OK_AND_ASSIGN(ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    if (plan.replay_tokens() == 0) GTEST_SKIP() << "nothing is replayed";
    ASSERT_GT(plan.replay_start, 0);
    --plan.replay_start;
    for (LayerRows& rows : plan.layers) {
      --rows.input_begin;
      --rows.run_begin;
    }
    for (const uint32_t index : layout().ReplaySlots()) {
      // A chunk and a group have no row before their first.
      if (layout().slots[index].kind == SlotKind::kSliding) {
        --plan.write_begin[index];
      }
    }
    for (uint32_t l = 0; l < layout().n_layers; ++l) {
      ASSERT_OK_AND_ASSIGN(
          const bool reaches,
          Reaches(model_.get(), plan, &truth,
                  {l, plan.layers[l].input_begin, traits().poison}, false,
                  truth.window(cut)));
      EXPECT_FALSE(reaches) << "cut " << cut << ", layer " << l;
    }
  }
}

}  // namespace
}  // namespace torpor::replay
