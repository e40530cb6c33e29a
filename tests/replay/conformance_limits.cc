// SPDX-License-Identifier: Apache-2.0
//
// What sequences and forwards refuse, how they stop, and the memory they say
// they take.

#include <atomic>

#include "tests/replay/family_conformance.h"

namespace torpor::replay {
namespace {

using testing::HasCode;

TEST_P(FamilyConformance, ACancelledForwardStopsAndHarmsNothing) {
  const std::vector<uint32_t> ids = Ids(window_ + period_ + 3);
  NeverSlept truth(model_.get(), ids, {ids.size()});
  int n_stopped = 0;
  for (int stop_at = 0;; ++stop_at) {
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    const Segment segment = SegmentOf(sequence.get(), ids, 0, ids.size());
    std::vector<std::vector<float>> logits;
    int polls = 0;
    const absl::Status status = model_->Forward(
        std::span(&segment, 1),
        {.cancelled = [&] { return polls++ >= stop_at; }}, &logits);
    if (status.ok()) break;
    ASSERT_THAT(status, HasCode(absl::StatusCode::kCancelled));
    ++n_stopped;
    ASSERT_LE(stop_at, 1'000'000);
  }
  EXPECT_GE(n_stopped, layout().n_layers);
  TestSession session(model_.get());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                       session.Run(ids, ids.size()));
  EXPECT_TRUE(kernels::SameBits(logits, truth.logits(0, ids.size())));
}

TEST_P(FamilyConformance, AnErrorBeforeALayerStopsAForward) {
  const std::vector<uint32_t> ids = Ids(3);
  for (uint32_t at = 0; at < layout().n_layers; ++at) {
    TestSession session(model_.get());
    uint32_t next = 0;
    ForwardOptions options;
    options.before_layer = [&](uint32_t layer) {
      EXPECT_EQ(layer, next++);
      return layer == at ? absl::DataLossError("a row") : absl::OkStatus();
    };
    EXPECT_THAT(session.Run(ids, 0, 0, options),
                testing::HasStatus(absl::StatusCode::kDataLoss, "a row"));
  }
}

TEST_P(FamilyConformance, ACancelledReplayStops) {
  const uint64_t cut = FarCuts().front();
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kExact));
  if (plan.replay_tokens() == 0) GTEST_SKIP() << "nothing is replayed";
  const ReplayJob job{
      .plan = &plan, .ids = truth.ids(), .reader = truth.rows()};
  std::atomic<int> polls = 0;
  EXPECT_THAT(MakeReplayer(model_.get())
                  ->Rebuild(std::span(&job, 1), [&] { return ++polls > 3; }),
              HasCode(absl::StatusCode::kCancelled));
  ExpectGoesOn(&truth, plan, 0);
}

TEST_P(FamilyConformance, BadTokensAreRefused) {
  TestSession session(model_.get());
  const std::vector<uint32_t> ids = {1, model_->vocab_size(), 2};
  EXPECT_THAT(
      session.Run(ids, 0),
      testing::HasStatus(absl::StatusCode::kInvalidArgument, "position 1"));

  const std::unique_ptr<Sequence> sequence = model_->NewSequence();
  std::vector<std::vector<float>> logits;
  const std::vector<uint32_t> many = Ids(model_->max_rows() + 1);
  Segment segment = SegmentOf(sequence.get(), many, 0, many.size());
  EXPECT_THAT(model_->Forward(std::span(&segment, 1), {}, &logits),
              HasCode(absl::StatusCode::kInvalidArgument));
  segment = SegmentOf(sequence.get(), many, 0, 0);
  EXPECT_THAT(model_->Forward(std::span(&segment, 1), {}, &logits),
              HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(model_->Forward({}, {}, &logits),
              HasCode(absl::StatusCode::kInvalidArgument));
}

TEST_P(FamilyConformance, BadRowsAreRefused) {
  const std::unique_ptr<Sequence> sequence = model_->NewSequence();
  const auto n_slots = static_cast<uint32_t>(layout().slots.size());
  EXPECT_THAT(sequence->ImportRows(n_slots, 0, {}),
              HasCode(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(sequence->ExportRows(n_slots, {0, 0}, {}),
              HasCode(absl::StatusCode::kInvalidArgument));
  for (uint32_t index = 0; index < n_slots; ++index) {
    const Slot& slot = layout().slots[index];
    std::vector<uint8_t> row(slot.row_bytes);
    if (slot.row_bytes > 1) {
      EXPECT_THAT(
          sequence->ImportRows(index, 0, std::span(row).first(row.size() - 1)),
          HasCode(absl::StatusCode::kInvalidArgument))
          << slot.name;
    }
    EXPECT_THAT(sequence->ExportRows(index, {0, 1}, row),
                HasCode(absl::StatusCode::kOutOfRange))
        << slot.name;
    if (!slot.is_window()) continue;
    // More bytes than the whole sequence takes.
    const uint64_t n = model_->SequenceBytes(1) / slot.row_bytes + 1;
    const std::vector<uint8_t> many(n * slot.row_bytes);
    if (slot.come_back == ComeBack::kReplay) {
      EXPECT_THAT(sequence->ImportRows(index, 0, many),
                  HasCode(absl::StatusCode::kOutOfRange))
          << slot.name;
    }
  }
}

TEST_P(FamilyConformance, RowsThatAreNotHeldAreRefused) {
  const uint64_t n = 2 * window_ + 2 * period_;
  const std::vector<uint32_t> ids = Ids(n);
  TestSession session(model_.get());
  ASSERT_OK(session.Run(ids, 0).status());
  for (uint32_t index = 0; index < layout().slots.size(); ++index) {
    const Slot& slot = layout().slots[index];
    const bool persists = slot.come_back == ComeBack::kPersist;
    if (!persists && slot.come_back != ComeBack::kReplay) continue;
    const uint64_t end = persists ? n / slot.tokens_per_row : n;
    const uint64_t begin = persists ? 0 : FirstRowOwed(slot, n);
    std::vector<uint8_t> out((end - begin + 1) * slot.row_bytes);
    EXPECT_THAT(session.sequence()->ExportRows(index, {begin, end + 1}, out),
                HasCode(absl::StatusCode::kOutOfRange))
        << slot.name;
    EXPECT_THAT(session.sequence()->ExportRows(index, {begin, end}, out),
                HasCode(absl::StatusCode::kInvalidArgument))
        << slot.name;
    EXPECT_THAT(session.sequence()->ExportRows(index, {end, end - 1}, {}),
                HasCode(absl::StatusCode::kOutOfRange))
        << slot.name;
  }
}

TEST_P(FamilyConformance, SequencesTakeNoMoreThanTheySay) {
  const uint64_t n = 2 * exact_ + period_ + 40;
  const std::vector<uint32_t> ids = Ids(n);
  TestSession decoded(model_.get());
  EXPECT_LE(decoded.sequence()->bytes(), model_->SequenceBytes(0));
  for (uint64_t at = 0; at < n; ++at) {
    ASSERT_OK(decoded.Run(std::span(ids).subspan(at, 1), 0).status());
    EXPECT_LE(decoded.sequence()->bytes(), model_->SequenceBytes(at + 1));
    EXPECT_LE(model_->SequenceBytes(at), model_->SequenceBytes(at + 1));
  }
  TestSession prefilled(model_.get());
  ASSERT_OK(prefilled.Run(ids, 0).status());
  EXPECT_LE(prefilled.sequence()->bytes(), model_->SequenceBytes(n));

  ASSERT_OK_AND_ASSIGN(MemoryRows rows, decoded.Compact());
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, n, ReplayMode::kExact));
  WatchedModel watched(model_.get());
  const uint64_t admitted = MakeReplayer(&watched)->MemoryFor(plan);
  EXPECT_GE(admitted, model_->SequenceBytes(n) + model_->WorkBytes());
  watched.after_forward = [&](std::span<const Segment> segments) {
    EXPECT_LE(segments[0].sequence->bytes(), model_->SequenceBytes(n));
  };
  ASSERT_OK(Rebuild(&watched, plan, ids, &rows).status());
}

}  // namespace
}  // namespace torpor::replay
