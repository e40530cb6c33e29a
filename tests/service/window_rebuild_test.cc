// SPDX-License-Identifier: Apache-2.0
//
// Windows of which a part is replayed and a part was stored, over a replayer
// and a store that make rows up.

#include "service/window_rebuild.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "service/convert.h"
#include "tests/replay/layout_builder.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using replay::ComeBack;
using replay::SlotKind;
using torpor::testing::HasCode;

constexpr uint64_t kCut = 50;
// What rows are made of, by who gives them.
constexpr uint8_t kReplayed = 1;
constexpr uint8_t kStored = 2;

replay::SlotRows RowsOfSlot(const replay::ModelLayout& layout, uint32_t slot,
                            uint64_t first, uint64_t end, uint8_t value) {
  return {slot, first, end,
          std::vector<uint8_t>((end - first) * layout.slots[slot].row_bytes,
                               value)};
}

class FakeReplayer final : public replay::Replayer {
 public:
  explicit FakeReplayer(const replay::ModelLayout* layout) : layout_(*layout) {}

  absl::StatusOr<std::vector<replay::ReplayResult>> Rebuild(
      std::span<const replay::ReplayJob> jobs,
      const std::function<bool()>&) override {
    std::vector<replay::ReplayResult> results(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      results[i].window.resume_at = jobs[i].plan->resume_at;
      for (const uint32_t slot : layout_.ReplaySlots()) {
        results[i].window.slots.push_back(RowsOfSlot(
            layout_, slot,
            replay::FirstRowOwed(layout_.slots[slot], jobs[i].plan->resume_at),
            jobs[i].plan->resume_at, kReplayed));
      }
      results[i].times.bytes_read = 1000;
    }
    return results;
  }
  uint64_t MemoryFor(const replay::ReplayPlan&) const override { return 0; }

 private:
  const replay::ModelLayout& layout_;
};

// A session of kCut tokens whose snapshot is all kStored.
class FakeLease final : public store::SessionLease {
 public:
  FakeLease() {
    info_.kv_len = info_.n_tokens = kCut;
    info_.snapshot_bytes = 1;
  }
  const store::SessionInfo& info() const override { return info_; }
  const store::RecordLayout& layout() const override { return layout_; }
  std::vector<store::Operation> operations() const override { return {}; }
  absl::StatusOr<std::vector<store::SnapshotSlot>> SnapshotSlots() override {
    return absl::UnimplementedError("not asked here");
  }
  absl::Status ReadSnapshot(uint32_t, store::RowRange rows,
                            std::span<uint8_t> out) override {
    if (damaged) return absl::DataLossError("damaged snapshot");
    EXPECT_GT(rows.size(), 0);
    std::fill(out.begin(), out.end(), kStored);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<store::AttachmentSection>> ReadAttachment(
      store::AttachmentKind) override {
    return std::vector<store::AttachmentSection>{{0, witness}};
  }
  absl::StatusOr<store::TokenRun> ReadTokens(uint64_t, uint64_t) override {
    return absl::UnimplementedError("not read here");
  }
  absl::Status ReadRows(uint32_t, store::RowRange,
                        std::span<uint8_t>) override {
    return absl::UnimplementedError("not read here");
  }
  absl::StatusOr<std::vector<store::Floor>> Floors(uint64_t,
                                                   uint64_t) override {
    return std::vector<store::Floor>();
  }

  void SetWitness(const v1::Witness& proto) {
    const std::string text = proto.SerializeAsString();
    witness = {text.begin(), text.end()};
    info_.witness_bytes = witness.size();
  }

  bool damaged = false;
  std::vector<uint8_t> witness;

 private:
  const store::RecordLayout layout_;
  store::SessionInfo info_;
};

class WindowRebuildTest : public ::testing::Test {
 protected:
  // Two windows that replay rebuilds, with a stored state and a stored window
  // around the upper one in layout order.
  WindowRebuildTest() {
    replay::ModelLayout& layout = model_->layout;
    layout.n_layers = 3;
    layout.slots = {replay::FullSlot(0, 8), replay::SlidingSlot(0, 8, 4),
                    replay::MakeSlot("state", SlotKind::kRecurrent, 2, 12,
                                     ComeBack::kSnapshot),
                    replay::SlidingSlot(1, 4, 4), replay::SlidingSlot(2, 6, 4)};
    layout.slots[4].come_back = ComeBack::kSnapshot;
    EXPECT_OK(layout.Validate());
    model_->replayer = std::make_unique<FakeReplayer>(&layout);
  }

  Rebuilt Run(replay::ReplayMode mode) {
    const RebuildInputs inputs{.model = model_,
                               .stored = lease_,
                               .header = header_,
                               .cut = kCut,
                               .ids = ids_,
                               .spans = spans_,
                               .floors = floors_};
    const auto plan = PlanCut(inputs, mode, 0);
    EXPECT_OK(plan);
    return RebuildWindow(inputs, *plan, &executor_, nullptr);
  }
  std::vector<replay::SlotRows> Wanted(uint8_t windows) const {
    const replay::ModelLayout& layout = model_->layout;
    return {RowsOfSlot(layout, 1, 43, 50, windows),
            RowsOfSlot(layout, 2, 0, 1, kStored),
            RowsOfSlot(layout, 3, 47, 50, windows),
            RowsOfSlot(layout, 4, 45, 50, kStored)};
  }

  const std::shared_ptr<RegisteredModel> model_ =
      std::make_shared<RegisteredModel>();
  const std::shared_ptr<FakeLease> lease_ = std::make_shared<FakeLease>();
  const std::shared_ptr<const std::vector<uint32_t>> ids_ =
      std::make_shared<std::vector<uint32_t>>(kCut);
  const std::vector<replay::TwoWaySpan> spans_;
  const std::vector<replay::Floor> floors_;
  v1::BeginResumeHeader header_;
  ReplayExecutor executor_{ReplayExecutorOptions()};
};

// Bytes of the rows that Wanted names, of slots that only a snapshot has.
constexpr uint64_t kStoredBytes = 12 + 5 * 4;
constexpr uint64_t kWindowBytes = 7 * 4 + 3 * 4;

TEST_F(WindowRebuildTest, WhatReplayDoesNotBringComesFromTheSnapshot) {
  for (const replay::ReplayMode mode :
       {replay::ReplayMode::kExact, replay::ReplayMode::kBounded}) {
    const Rebuilt rebuilt = Run(mode);
    ASSERT_OK(rebuilt.status);
    EXPECT_EQ(rebuilt.window.slots, Wanted(kReplayed));
    EXPECT_EQ(rebuilt.window.resume_at, kCut);
    EXPECT_EQ(rebuilt.bytes_read, 1000 + kStoredBytes);
  }
  const Rebuilt snapshot = Run(replay::ReplayMode::kSnapshot);
  ASSERT_OK(snapshot.status);
  EXPECT_EQ(snapshot.window.slots, Wanted(kStored));
  EXPECT_EQ(snapshot.bytes_read, kStoredBytes + kWindowBytes);
  EXPECT_TRUE(Run(replay::ReplayMode::kCold).window.slots.empty());
}

TEST_F(WindowRebuildTest, TheWitnessCoversBothParts) {
  replay::WindowState window;
  window.resume_at = kCut;
  window.slots = Wanted(kReplayed);
  lease_->SetWitness(
      ToProto(replay::MakeWitness(model_->layout, "numerics", window)));
  const Rebuilt exact = Run(replay::ReplayMode::kExact);
  ASSERT_OK(exact.status);
  EXPECT_EQ(exact.report.verdict, replay::Verdict::kExact);
  EXPECT_EQ(exact.report.layers.size(), 3);
  // The snapshot's windows are others than the witness saw.
  EXPECT_THAT(Run(replay::ReplayMode::kSnapshot).status,
              HasCode(StatusCode::kDataLoss));
}

TEST_F(WindowRebuildTest, ADamagedSnapshotFailsEveryWakeThatNeedsIt) {
  lease_->damaged = true;
  for (const replay::ReplayMode mode :
       {replay::ReplayMode::kExact, replay::ReplayMode::kBounded,
        replay::ReplayMode::kSnapshot}) {
    EXPECT_THAT(Run(mode).status, HasCode(StatusCode::kDataLoss));
  }
  // Nothing of it is needed where replay rebuilds all that is held.
  model_->layout.slots.pop_back();
  model_->layout.slots.erase(model_->layout.slots.begin() + 2);
  EXPECT_OK(Run(replay::ReplayMode::kExact).status);
}

}  // namespace
}  // namespace torpor::service
