// SPDX-License-Identifier: Apache-2.0
//
// Rows travel while layers run: order, what is left out, and errors that come
// late.

#include "replay/compact_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::ElementsAre;
using testing::HasStatus;

constexpr uint64_t kCut = 3000;

// Takes every row and remembers nothing.
class NullSequence final : public Sequence {
 public:
  absl::Status ImportRows(uint32_t, uint64_t,
                          std::span<const uint8_t>) override {
    return absl::OkStatus();
  }
  absl::Status ExportRows(uint32_t, Rows, std::span<uint8_t>) const override {
    return absl::OkStatus();
  }
  uint64_t bytes() const override { return 0; }
};

// Slots are given out up to `open`, in the order asked; `bad` fails.
class GatedReader final : public CompactKvReader {
 public:
  absl::Status ReadRows(uint32_t slot, Rows rows, std::span<uint8_t>) override {
    while (slot > open.load()) std::this_thread::yield();
    if (slot == bad) return absl::DataLossError("slot is damaged");
    MutexLock lock(&mu_);
    if (rows.begin == 0) slots_.push_back(slot);
    rows_ += rows.size();
    return absl::OkStatus();
  }
  std::vector<uint32_t> slots() {
    MutexLock lock(&mu_);
    return slots_;
  }
  uint64_t rows() {
    MutexLock lock(&mu_);
    return rows_;
  }

  std::atomic<uint32_t> open{0};
  uint32_t bad = UINT32_MAX;

 private:
  Mutex mu_;
  std::vector<uint32_t> slots_ ABSL_GUARDED_BY(mu_);
  uint64_t rows_ ABSL_GUARDED_BY(mu_) = 0;
};

// Layers full, sliding, full, sliding, full: an exact replay without logits
// runs nothing in the last, whose rows nobody needs.
ModelLayout FiveLayers() {
  ModelLayout layout;
  layout.family = "test";
  layout.n_layers = 5;
  layout.vocab_size = 8;
  for (uint32_t l = 0; l < layout.n_layers; ++l) {
    Slot slot;
    slot.name = std::to_string(l);
    slot.owner_layer = l;
    slot.reader_layers = {l};
    slot.row_bytes = 4;
    slot.format = "f32";
    if (l % 2 == 1) {
      slot.kind = SlotKind::kSliding;
      slot.window = 8;
      slot.come_back = ComeBack::kReplay;
    }
    layout.slots.push_back(slot);
  }
  return layout;
}

class CompactLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(layout_.Validate());
    ASSERT_OK_AND_ASSIGN(
        plan_,
        PlanReplay(layout_, {.resume_at = kCut, .mode = ReplayMode::kExact}));
    sequences_.push_back(std::make_unique<NullSequence>());
    job_ = {.plan = &plan_, .reader = &reader_};
  }

  ModelLayout layout_ = FiveLayers();
  ReplayPlan plan_;
  GatedReader reader_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  ReplayJob job_;
  std::function<bool()> never_;
};

TEST_F(CompactLoaderTest, ALayerRunsWhileLaterRowsStillTravel) {
  CompactLoader loader(layout_, std::span(&job_, 1), sequences_, never_);
  // Slot 2 is shut; layers 0 and 1 have all they read.
  ASSERT_OK(loader.WaitFor(0));
  ASSERT_OK(loader.WaitFor(1));
  EXPECT_THAT(reader_.slots(), ElementsAre(0));
  reader_.open.store(2);
  ASSERT_OK(loader.WaitFor(4));
  EXPECT_THAT(reader_.slots(), ElementsAre(0, 2));
  EXPECT_EQ(reader_.rows(), 2 * kCut);
  EXPECT_EQ(loader.bytes(0), 2 * kCut * 4);
}

TEST_F(CompactLoaderTest, RowsOfALayerThatRunsNothingStay) {
  reader_.open.store(UINT32_MAX);
  CompactLoader loader(layout_, std::span(&job_, 1), sequences_, never_);
  ASSERT_OK(loader.WaitFor(4));
  EXPECT_THAT(reader_.slots(), ElementsAre(0, 2));

  // With logits the last layer runs one row, which reads all of them.
  ASSERT_OK_AND_ASSIGN(const ReplayPlan with_logits,
                       PlanReplay(layout_, {.resume_at = kCut,
                                            .mode = ReplayMode::kExact,
                                            .want_logits = true}));
  const ReplayJob job{.plan = &with_logits, .reader = &reader_};
  CompactLoader second(layout_, std::span(&job, 1), sequences_, never_);
  ASSERT_OK(second.WaitFor(4));
  EXPECT_THAT(reader_.slots(), ElementsAre(0, 2, 0, 2, 4));
}

TEST_F(CompactLoaderTest, ALateErrorStopsTheLayersThatNeedItAlone) {
  reader_.bad = 2;
  reader_.open.store(UINT32_MAX);
  CompactLoader loader(layout_, std::span(&job_, 1), sequences_, never_);
  ASSERT_OK(loader.WaitFor(1));
  EXPECT_THAT(loader.WaitFor(2),
              HasStatus(absl::StatusCode::kDataLoss, "damaged"));
  EXPECT_THAT(loader.WaitFor(4),
              HasStatus(absl::StatusCode::kDataLoss, "damaged"));
}

TEST_F(CompactLoaderTest, CancelledWhileItLoads) {
  std::atomic<bool> cancelled{false};
  const std::function<bool()> poll = [&] { return cancelled.load(); };
  CompactLoader loader(layout_, std::span(&job_, 1), sequences_, poll);
  ASSERT_OK(loader.WaitFor(1));
  cancelled.store(true);
  reader_.open.store(2);
  EXPECT_THAT(loader.WaitFor(4),
              HasStatus(absl::StatusCode::kCancelled, "cancelled"));
}

}  // namespace
}  // namespace torpor::replay
