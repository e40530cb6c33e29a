// SPDX-License-Identifier: Apache-2.0
//
// Exact replay gives the bits that the session held, at every cut; stored rows
// are read and never written.

#include <algorithm>
#include <map>

#include "tests/replay/family_conformance.h"

namespace torpor::replay {
namespace {

TEST_P(FamilyConformance, EveryCutWakesExact) {
  const uint64_t last = 2 * exact_ + std::max<uint64_t>(period_, 16) + 1;
  const uint64_t n = last + 8;
  NeverSlept truth(model_.get(), Ids(n), Cuts(1, n));
  for (uint64_t cut = 1; cut <= last; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    EXPECT_TRUE(plan.exact);
    EXPECT_LE(plan.replay_tokens(), exact_);
    ExpectGoesOn(&truth, plan, 8);
    if (HasFatalFailure()) return;
  }
}

TEST_P(FamilyConformance, ReplaysInChunksGiveTheSameBits) {
  const uint64_t last = FarCuts().back() + 2;
  NeverSlept truth(model_.get(), Ids(last), Cuts(1, last));
  WatchedModel watched(model_.get());
  for (uint64_t cut = 1; cut <= last; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    // 1, 2, 3 and some larger sizes take turns.
    watched.rows_max = cut % 4 == 0 ? window_ + cut % 5 : cut % 4;
    watched.n_forwards = 0;
    ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                         Rebuild(&watched, plan, truth.ids(), truth.rows()));
    ASSERT_EQ(result.window.slots, truth.window(cut).slots)
        << "cut " << cut << ", chunks of " << watched.rows_max;
    EXPECT_GE(watched.n_forwards * watched.max_rows(), plan.replay_tokens());
  }
}

TEST_P(FamilyConformance, RaggedBatchesRebuildWhatEachAloneDoes) {
  std::vector<uint64_t> cuts = FarCuts();
  for (const uint64_t cut : {uint64_t{1}, window_ + 1, exact_ + 3}) {
    cuts.push_back(cut);
  }
  std::vector<std::unique_ptr<NeverSlept>> truths;
  std::vector<ReplayPlan> plans(cuts.size());
  std::vector<ReplayJob> jobs;
  for (size_t i = 0; i < cuts.size(); ++i) {
    truths.push_back(std::make_unique<NeverSlept>(
        model_.get(), Ids(cuts[i]), std::vector<uint64_t>{cuts[i]}));
    ASSERT_OK_AND_ASSIGN(plans[i], Plan(*model_, cuts[i], ReplayMode::kExact));
    jobs.push_back({.plan = &plans[i],
                    .ids = truths[i]->ids(),
                    .reader = truths[i]->rows()});
  }
  const std::unique_ptr<Model> two_threads = Load(2);
  ASSERT_NE(two_threads, nullptr);
  for (Model* model : {model_.get(), two_threads.get()}) {
    WatchedModel watched(model);
    for (const uint64_t rows_max : {uint64_t{0}, window_ + 2}) {
      watched.rows_max = rows_max;
      ASSERT_OK_AND_ASSIGN(const auto results,
                           MakeReplayer(&watched)->Rebuild(jobs, nullptr));
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_EQ(results[i].window.slots, truths[i]->window(cuts[i]).slots)
            << "session of " << cuts[i] << " tokens";
      }
    }
  }
}

TEST_P(FamilyConformance, LogitsOfTheLastRowComeFromTheReplay) {
  const uint64_t last = FarCuts().back();
  NeverSlept truth(model_.get(), Ids(last), Cuts(1, last));
  for (uint64_t cut = 1; cut <= last; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         PlanReplay(layout(), {.resume_at = cut,
                                               .mode = ReplayMode::kExact,
                                               .want_logits = true}));
    ASSERT_OK_AND_ASSIGN(
        const ReplayResult result,
        Rebuild(model_.get(), plan, truth.ids(), truth.rows(), true));
    ASSERT_TRUE(
        kernels::SameBits(result.window.logits, truth.logits(cut - 1, cut)))
        << "cut " << cut;
    ASSERT_EQ(result.window.slots, truth.window(cut).slots);
  }
}

// A snapshot is the window itself: it goes out and comes back at every cut.
TEST_P(FamilyConformance, SnapshotsComeBack) {
  const uint64_t last = 2 * window_ + 2 * period_ + 1;
  const uint64_t n = last + window_ + period_;
  NeverSlept truth(model_.get(), Ids(n), Cuts(1, n));
  for (uint64_t cut = 1; cut <= last; ++cut) {
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    ASSERT_OK(
        LoadCompactRows(layout(), cut, truth.rows(), sequence.get(), nullptr)
            .status());
    ASSERT_OK(ImportWindow(truth.window(cut), sequence.get()));
    ASSERT_OK_AND_ASSIGN(const WindowState again,
                         ExportWindow(layout(), *sequence, cut));
    ASSERT_EQ(again.slots, truth.window(cut).slots) << "cut " << cut;
    Segment segment = SegmentOf(sequence.get(), truth.ids(), cut, n);
    segment.logits_begin = cut;
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                         RunTokens(model_.get(), segment, 1 + cut % 3, {}));
    ASSERT_TRUE(kernels::SameBits(logits, truth.logits(cut, n)))
        << "cut " << cut;
    ASSERT_OK_AND_ASSIGN(const WindowState later,
                         ExportWindow(layout(), *sequence, n));
    ASSERT_EQ(later.slots, truth.window(n).slots) << "cut " << cut;
  }
}

// Rows are changed on their way in, so that one which the replay wrote anew
// would show.
TEST_P(FamilyConformance, StoredRowsAreReadOnceAndNeverWritten) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    for (auto& [slot, bytes] : truth.rows()->slots) {
      for (uint8_t& byte : bytes) byte ^= 1;
    }
    const auto before = truth.rows()->slots;
    for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, Plan(*model_, cut, mode));
      WatchedModel watched(model_.get());
      for (const uint64_t rows_max : {uint64_t{0}, uint64_t{3}}) {
        watched.rows_max = rows_max;
        truth.rows()->log.clear();
        watched.after_forward = [&](std::span<const Segment> segments) {
          for (const auto& [index, bytes] : before) {
            const Slot& slot = layout().slots[index];
            if (!IsRead(slot, plan)) continue;
            const uint64_t n = cut / slot.tokens_per_row;
            std::vector<uint8_t> inside(n * slot.row_bytes);
            ASSERT_OK(segments[0].sequence->ExportRows(index, {0, n}, inside));
            EXPECT_EQ(inside, bytes) << slot.name;
            // Nor is there a row more.
            inside.resize(slot.row_bytes);
            EXPECT_THAT(
                segments[0].sequence->ExportRows(index, {n, n + 1}, inside),
                testing::HasCode(absl::StatusCode::kOutOfRange))
                << slot.name;
          }
        };
        ASSERT_OK(Rebuild(&watched, plan, truth.ids(), truth.rows()).status());
        EXPECT_EQ(truth.rows()->slots, before);
        std::map<uint32_t, uint64_t> n_read;
        for (const auto& [slot, rows] : truth.rows()->log) {
          EXPECT_EQ(rows.begin, n_read[slot]) << layout().slots[slot].name;
          n_read[slot] = rows.end;
        }
        for (const auto& [index, bytes] : before) {
          const Slot& slot = layout().slots[index];
          EXPECT_EQ(n_read[index],
                    IsRead(slot, plan) ? cut / slot.tokens_per_row : 0)
              << slot.name;
        }
      }
    }
  }
}

// ---- token ids ------------------------------------------------------------

TEST_P(FamilyConformance, IdsBelowTheLookbackMatterNot) {
  for (const uint64_t cut : FarCuts()) {
    NeverSlept truth(model_.get(), Ids(cut), {cut});
    for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, Plan(*model_, cut, mode));
      ASSERT_GE(plan.replay_start, traits().id_lookback);
      const uint64_t first = plan.replay_start - traits().id_lookback;
      std::vector<uint32_t> others = truth.ids();
      const std::vector<uint32_t> junk = Ids(first);
      std::copy(junk.begin(), junk.end(), others.begin());
      ASSERT_OK_AND_ASSIGN(
          const ReplayResult as_it_was,
          Rebuild(model_.get(), plan, truth.ids(), truth.rows()));
      ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                           Rebuild(model_.get(), plan, others, truth.rows()));
      EXPECT_EQ(result.window.slots, as_it_was.window.slots)
          << std::string(ReplayModeName(mode)) << ", cut " << cut;
    }
  }
}

// ... and each of those within it does, in a bounded replay, whose rows run
// through all layers from the start on. Several ids are tried: some may mean
// the same to a family.
TEST_P(FamilyConformance, IdsWithinTheLookbackMatter) {
  const uint64_t cut = FarCuts().front();
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kBounded));
  ASSERT_OK_AND_ASSIGN(const ReplayResult as_it_was,
                       Rebuild(model_.get(), plan, truth.ids(), truth.rows()));
  for (uint64_t back = 1; back <= traits().id_lookback; ++back) {
    bool changed = false;
    for (int i = 0; i < 16 && !changed; ++i) {
      std::vector<uint32_t> others = truth.ids();
      others[plan.replay_start - back] = Ids(1)[0];
      ASSERT_OK_AND_ASSIGN(const ReplayResult result,
                           Rebuild(model_.get(), plan, others, truth.rows()));
      changed = result.window.slots != as_it_was.window.slots;
    }
    EXPECT_TRUE(changed) << "the id " << back << " before the replay";
  }
}

}  // namespace
}  // namespace torpor::replay
