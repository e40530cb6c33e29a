// SPDX-License-Identifier: Apache-2.0
//
// Bounded replay cuts where its plan says and nowhere else, and a session that
// was woken by one wakes exactly to the bits it had (design D5).

#include <algorithm>
#include <map>

#include "replay/witness.h"
#include "tests/replay/family_conformance.h"

namespace torpor::replay {
namespace {

// Whether a row of [start, cut) enters a layer as it would without the floor at
// `start`: [layer][row - start].
std::vector<std::vector<bool>> UncutRows(const ModelLayout& layout,
                                         uint64_t start, uint64_t cut) {
  std::vector<std::vector<bool>> uncut(layout.n_layers + 1,
                                       std::vector<bool>(cut - start, true));
  for (uint32_t l = 0; l < layout.n_layers; ++l) {
    for (uint64_t row = start; row < cut; ++row) {
      bool whole = uncut[l][row - start];
      for (const Slot& slot : layout.slots) {
        if (!slot.is_window() || slot.come_back != ComeBack::kReplay ||
            !std::count(slot.reader_layers.begin(), slot.reader_layers.end(),
                        l)) {
          continue;
        }
        uint64_t first = row < slot.window ? 0 : row + 1 - slot.window;
        if (slot.kind == SlotKind::kChunked) {
          first = row / slot.chunk * slot.chunk;
        }
        whole = whole && first >= start;
        for (uint64_t seen = first; whole && seen <= row; ++seen) {
          whole = uncut[slot.owner_layer][seen - start];
        }
      }
      uncut[l + 1][row - start] = whole;
    }
  }
  return uncut;
}

TEST_P(FamilyConformance, BoundedIsRightWhereNoReadWasCut) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    for (const uint64_t r : {window_, window_ + 1, exact_ - 1}) {
      if (r < window_ || r >= exact_) continue;
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                           Plan(*model_, cut, ReplayMode::kBounded, r));
      if (plan.exact) continue;
      ASSERT_OK_AND_ASSIGN(
          const ReplayResult result,
          Rebuild(model_.get(), plan, truth.ids(), truth.rows()));
      const auto uncut = UncutRows(layout(), plan.replay_start, cut);
      uint64_t n_right = 0;
      for (const SlotRows& rows : result.window.slots) {
        const Slot& slot = layout().slots[rows.slot];
        const SlotRows& cold =
            truth.window(cut)
                .slots[static_cast<size_t>(&rows - result.window.slots.data())];
        for (uint64_t row = rows.first; row < rows.end; ++row) {
          if (!uncut[slot.owner_layer][row - plan.replay_start]) continue;
          ++n_right;
          const auto at =
              static_cast<ptrdiff_t>((row - rows.first) * slot.row_bytes);
          ASSERT_TRUE(std::equal(rows.bytes.begin() + at,
                                 rows.bytes.begin() + at + slot.row_bytes,
                                 cold.bytes.begin() + at))
              << slot.name << ", row " << row << " of " << cut << ", R " << r;
        }
      }
      EXPECT_GT(n_right, 0);
      // And not everywhere: bounded is an approximation.
      if (r == window_) {
        EXPECT_NE(result.window.slots, truth.window(cut).slots);
      }
    }
  }
}

TEST_P(FamilyConformance, ABoundedReplayThatReachesAsFarIsExact) {
  const uint64_t last = exact_ + window_ + period_;
  const uint64_t n = last + 2;
  NeverSlept truth(model_.get(), Ids(n), Cuts(1, n));
  for (uint64_t cut = 1; cut <= last; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan exact,
                         Plan(*model_, cut, ReplayMode::kExact));
    for (const uint64_t r : {window_, window_ + 2, exact_, exact_ + 5}) {
      if (r < window_) continue;
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                           Plan(*model_, cut, ReplayMode::kBounded, r));
      if (cut <= window_ || r >= exact.replay_tokens()) {
        EXPECT_TRUE(plan.exact) << "cut " << cut << ", R " << r;
      }
      if (plan.exact) ExpectGoesOn(&truth, plan, 2);
      if (HasFatalFailure()) return;
    }
  }
}

// A cold run through the replay path: every row, floors at 0.
TEST_P(FamilyConformance, AReplayOfEverythingIsPrefill) {
  for (uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    ReplayPlan plan;
    plan.mode = ReplayMode::kBounded;
    plan.resume_at = cut;
    plan.layers.assign(layout().n_layers, {0, 0});
    plan.floors = {{0, cut, 0, 0}};
    plan.write_begin.assign(layout().slots.size(), cut);
    for (const uint32_t index : layout().ReplaySlots()) {
      const Slot& slot = layout().slots[index];
      plan.write_begin[index] = slot.is_window() ? 0 : FirstRowOwed(slot, cut);
    }
    for (const uint64_t chunk : {uint64_t{0}, uint64_t{1}, window_ + 3}) {
      const std::unique_ptr<Sequence> sequence = model_->NewSequence();
      ASSERT_OK(
          LoadCompactRows(layout(), cut, truth.rows(), sequence.get(), nullptr)
              .status());
      Segment segment = SegmentOf(sequence.get(), truth.ids(), 0, cut);
      segment.plan = &plan;
      segment.logits_begin = 0;
      ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                           RunTokens(model_.get(), segment, chunk, {}));
      EXPECT_TRUE(kernels::SameBits(logits, truth.logits(0, cut)));
      ASSERT_OK_AND_ASSIGN(const WindowState window,
                           ExportWindow(layout(), *sequence, cut));
      EXPECT_EQ(window.slots, truth.window(cut).slots);
    }
  }
}

// Window rows below the replay start may be anything.
TEST_P(FamilyConformance, NothingBelowTheFloorLeaks) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         PlanReplay(layout(), {.resume_at = cut,
                                               .mode = ReplayMode::kBounded,
                                               .want_logits = true}));
    ASSERT_OK_AND_ASSIGN(
        const ReplayResult clean,
        Rebuild(model_.get(), plan, truth.ids(), truth.rows(), true));
    WatchedModel watched(model_.get());
    watched.on_new_sequence = [&](Sequence* sequence) {
      for (const uint32_t index : layout().ReplaySlots()) {
        const Slot& slot = layout().slots[index];
        if (!slot.is_window()) continue;
        const uint64_t n = std::min(slot.reach(), plan.replay_start);
        // NaN in every format that has one.
        const std::vector<uint8_t> nan(n * slot.row_bytes, 0xff);
        ASSERT_OK(sequence->ImportRows(index, plan.replay_start - n, nan));
      }
    };
    for (const uint64_t rows_max : {0, 1, 4}) {
      watched.rows_max = rows_max;
      ASSERT_OK_AND_ASSIGN(
          const ReplayResult poisoned,
          Rebuild(&watched, plan, truth.ids(), truth.rows(), true));
      EXPECT_EQ(poisoned.window.slots, clean.window.slots) << "cut " << cut;
      EXPECT_TRUE(
          kernels::SameBits(poisoned.window.logits, clean.window.logits));
    }
  }
}

// ---- exact after bounded --------------------------------------------------

// A session that sleeps and wakes: what it held at each cut is kept.
class Sleeper {
 public:
  Sleeper(Model* model, std::vector<uint32_t> ids)
      : model_(model), session_(std::make_unique<TestSession>(model)) {
    Run(std::move(ids));
  }

  void Run(std::vector<uint32_t> ids) {
    EXPECT_OK(session_->Run(ids, 0).status());
    // At a cut where it only slept, what was first computed there stays.
    auto window = session_->Window();
    EXPECT_OK(window.status());
    held_.emplace(n_tokens(), *std::move(window));
  }
  void WakeBounded(uint64_t replay_tokens) {
    auto rows = session_->Compact();
    ASSERT_OK(rows.status());
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, n_tokens(), ReplayMode::kBounded,
                              replay_tokens, floors_));
    if (!plan.exact) floors_.push_back(plan.floor());
    const std::vector<uint32_t> ids = session_->ids();
    ASSERT_OK_AND_ASSIGN(TestSession woken,
                         TestSession::Wake(model_, ids, plan, &*rows));
    session_ = std::make_unique<TestSession>(std::move(woken));
  }
  // Wakes a copy exactly at `cut`, and lets it go on as this session does.
  void ExpectWakesAsItWas(uint64_t cut) {
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, session_->Compact());
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact, 0, floors_));
    const std::vector<uint32_t> ids = session_->ids();
    ASSERT_OK_AND_ASSIGN(TestSession woken,
                         TestSession::Wake(model_, ids, plan, &rows));
    ASSERT_OK_AND_ASSIGN(const WindowState rebuilt, woken.Window());
    ASSERT_EQ(rebuilt.slots, held_.at(cut).slots)
        << "at " << cut << " of " << n_tokens();
  }
  void ExpectWakesAsItWas() {
    for (const auto& [cut, window] : held_) ExpectWakesAsItWas(cut);
  }
  // Logits of the next tokens, by this session and by one woken exactly.
  void ExpectGoesOnAsItDoes(std::span<const uint32_t> more) {
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, session_->Compact());
    ASSERT_OK_AND_ASSIGN(
        const ReplayPlan plan,
        Plan(*model_, n_tokens(), ReplayMode::kExact, 0, floors_));
    const std::vector<uint32_t> ids = session_->ids();
    ASSERT_OK_AND_ASSIGN(TestSession woken,
                         TestSession::Wake(model_, ids, plan, &rows));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> theirs,
                         woken.Run(more, more.size()));
    ASSERT_OK_AND_ASSIGN(const std::vector<float> ours,
                         session_->Run(more, more.size()));
    ASSERT_TRUE(kernels::SameBits(theirs, ours));
    ASSERT_OK_AND_ASSIGN(const MemoryRows our_rows, session_->Compact());
    ASSERT_OK_AND_ASSIGN(const MemoryRows their_rows, woken.Compact());
    ASSERT_EQ(their_rows.slots, our_rows.slots);
  }

  uint64_t n_tokens() const { return session_->ids().size(); }
  const std::vector<Floor>& floors() const { return floors_; }

 private:
  Model* model_;
  std::unique_ptr<TestSession> session_;
  std::vector<Floor> floors_;
  std::map<uint64_t, WindowState> held_;
};

TEST_P(FamilyConformance, ASessionThatWasWokenBoundedWakesToItsBits) {
  for (const uint64_t cut : FarCuts()) {
    for (const uint64_t k :
         {uint64_t{0}, uint64_t{1}, window_ - 1, window_, window_ + 1,
          window_ + period_, exact_, exact_ + window_}) {
      if (k > exact_ + window_) continue;
      Sleeper session(model_.get(), Ids(cut));
      session.WakeBounded(window_);
      if (k > 0) session.Run(Ids(k));
      session.ExpectWakesAsItWas();
      // A floor at the cut itself is void: no later row saw what it cut.
      if (k > 0) session.ExpectGoesOnAsItDoes(Ids(8));
      if (HasFatalFailure()) FAIL() << "cut " << cut << ", " << k << " more";
    }
  }
}

TEST_P(FamilyConformance, ManyBoundedWakesInARowWakeToTheirBits) {
  if (exact_ <= window_) GTEST_SKIP() << "bounded is exact";
  for (int round = 0; round < 4; ++round) {
    Sleeper session(model_.get(),
                    Ids(random_.Between(exact_ + 1, 2 * exact_ + period_)));
    for (int wake = 0; wake < 5; ++wake) {
      session.ExpectWakesAsItWas();
      session.WakeBounded(random_.Between(window_, exact_));
      session.Run(
          Ids(wake % 2 == 0 ? exact_ + 3 : random_.Between(1, window_)));
      if (HasFatalFailure()) return;
    }
    session.ExpectWakesAsItWas();
    session.ExpectGoesOnAsItDoes(Ids(8));
    EXPECT_FALSE(session.floors().empty());
  }
}

// ---- witness --------------------------------------------------------------

TEST_P(FamilyConformance, TheWitnessTellsExactFromBounded) {
  const uint64_t cut = FarCuts().front();
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  const Witness witness =
      MakeWitness(layout(), model_->numerics_id(), truth.window(cut));
  ASSERT_OK_AND_ASSIGN(
      const WitnessReport same,
      CompareWithWitness(layout(), truth.window(cut), witness));
  EXPECT_EQ(same.verdict, Verdict::kExact);
  EXPECT_EQ(same.max_error(), 0);

  // One bit anywhere shows, and another cut is not compared.
  for (size_t i = 0; i < truth.window(cut).slots.size(); ++i) {
    WindowState flipped = truth.window(cut);
    if (!layout().slots[flipped.slots[i].slot].is_window()) continue;
    std::vector<uint8_t>& bytes = flipped.slots[i].bytes;
    if (bytes.empty()) continue;
    bytes[random_.Between(0, bytes.size() - 1)] ^= 1;
    ASSERT_OK_AND_ASSIGN(const WitnessReport seen,
                         CompareWithWitness(layout(), flipped, witness));
    EXPECT_EQ(seen.verdict, Verdict::kMeasured);
  }
  WindowState other = truth.window(cut);
  other.resume_at = cut - 1;
  EXPECT_THAT(CompareWithWitness(layout(), other, witness),
              testing::HasCode(absl::StatusCode::kInvalidArgument));

  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kBounded));
  if (plan.exact) GTEST_SKIP() << "bounded is exact";
  ASSERT_OK_AND_ASSIGN(const ReplayResult bounded,
                       Rebuild(model_.get(), plan, truth.ids(), truth.rows()));
  ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                       CompareWithWitness(layout(), bounded.window, witness));
  EXPECT_EQ(report.verdict, Verdict::kMeasured);
  EXPECT_GT(report.max_error(), 1e-3);
}

}  // namespace
}  // namespace torpor::replay
