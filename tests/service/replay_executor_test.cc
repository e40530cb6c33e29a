// SPDX-License-Identifier: Apache-2.0
//
// Admission and batching, over a replayer that only waits and keeps a record.

#include "service/replay_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;
using ::torpor::testing::IsOk;

constexpr std::chrono::seconds kPatience{60};

// Jobs are told apart by their cut.
class GatedReplayer final : public replay::Replayer {
 public:
  absl::StatusOr<std::vector<replay::ReplayResult>> Rebuild(
      std::span<const replay::ReplayJob> jobs,
      const std::function<bool()>& cancelled) override {
    std::vector<uint64_t> cuts;
    for (const replay::ReplayJob& job : jobs) {
      cuts.push_back(job.plan->resume_at);
    }
    {
      MutexLock lock(&mu_);
      batches_.push_back(cuts);
    }
    while (!open_.load()) {
      if (cancelled()) return absl::CancelledError("gave up");
      std::this_thread::yield();
    }
    std::vector<replay::ReplayResult> results;
    for (const uint64_t cut : cuts) {
      if (cut == kDamaged) return absl::DataLossError("damaged rows");
      results.emplace_back().window.resume_at = cut;
    }
    return results;
  }
  uint64_t MemoryFor(const replay::ReplayPlan& plan) const override {
    return plan.replay_start;
  }

  std::vector<std::vector<uint64_t>> batches() {
    MutexLock lock(&mu_);
    return batches_;
  }
  void Open() { open_.store(true); }

  static constexpr uint64_t kDamaged = 666;

 private:
  Mutex mu_;
  std::vector<std::vector<uint64_t>> batches_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> open_{false};
};

// A caller on a thread of its own.
class Caller {
 public:
  Caller(ReplayExecutor* executor, std::shared_ptr<const RegisteredModel> model,
         uint64_t cut, uint64_t memory)
      : thread_([=, this] {
          replay::ReplayPlan plan;
          plan.resume_at = cut;
          // The fake's measure of memory.
          plan.replay_start = memory;
          outcome_ = executor->Run(
              {.model = model,
               .plan = plan,
               .ids = std::make_shared<const std::vector<uint32_t>>()},
              [this] { return cancelled_.load(); });
          done_.store(true);
        }) {}
  ~Caller() {
    if (thread_.joinable()) thread_.join();
  }
  void Cancel() { cancelled_.store(true); }
  [[nodiscard]] bool done() const { return done_.load(); }
  const absl::StatusOr<ReplayOutcome>& outcome() {
    if (thread_.joinable()) thread_.join();
    return outcome_;
  }

 private:
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> done_{false};
  absl::StatusOr<ReplayOutcome> outcome_ = absl::UnknownError("");
  std::thread thread_;
};

class ReplayExecutorTest : public ::testing::Test {
 protected:
  std::shared_ptr<const RegisteredModel> NewModel(GatedReplayer** replayer) {
    auto model = std::make_shared<RegisteredModel>();
    auto gated = std::make_unique<GatedReplayer>();
    *replayer = gated.get();
    model->replayer = std::move(gated);
    return model;
  }
  void SetUp() override {
    model_ = NewModel(&replayer_);
    other_ = NewModel(&other_replayer_);
  }
  std::unique_ptr<Caller> Call(uint64_t cut, uint64_t memory = 1) {
    return std::make_unique<Caller>(&executor_, model_, cut, memory);
  }
  void Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
  // One job runs and holds the executor; `n` more wait.
  void AwaitQueue(size_t n) {
    Await([&] {
      return !replayer_->batches().empty() && executor_.waiting() == n;
    });
  }

  GatedReplayer* replayer_ = nullptr;
  GatedReplayer* other_replayer_ = nullptr;
  std::shared_ptr<const RegisteredModel> model_;
  std::shared_ptr<const RegisteredModel> other_;
  ReplayExecutor executor_{{.memory_bytes = 100, .max_batch = 3}};
};

TEST_F(ReplayExecutorTest, AJobAboveTheMemoryIsRefusedAtOnce) {
  const auto fits = Call(1, 100);
  const auto does_not = Call(2, 101);
  EXPECT_THAT(does_not->outcome(),
              HasStatus(StatusCode::kResourceExhausted, "101"));
  replayer_->Open();
  ASSERT_OK(fits->outcome());
  EXPECT_EQ(fits->outcome()->result.window.resume_at, 1);
  EXPECT_EQ(executor_.waiting(), 0);
}

TEST_F(ReplayExecutorTest, WhatWaitsTogetherRunsTogether) {
  std::vector<std::unique_ptr<Caller>> callers;
  callers.push_back(Call(1));
  AwaitQueue(0);
  for (uint64_t i = 2; i <= 5; ++i) {
    callers.push_back(Call(i));
    AwaitQueue(i - 1);
  }
  replayer_->Open();
  for (size_t i = 0; i < callers.size(); ++i) {
    ASSERT_OK(callers[i]->outcome());
    EXPECT_EQ(callers[i]->outcome()->result.window.resume_at, i + 1);
  }
  EXPECT_THAT(
      replayer_->batches(),
      ElementsAre(ElementsAre(1), ElementsAre(2, 3, 4), ElementsAre(5)));
  EXPECT_EQ(callers[0]->outcome()->batch, 1);
  EXPECT_EQ(callers[2]->outcome()->batch, 3);
}

TEST_F(ReplayExecutorTest, ABatchStaysWithinTheMemory) {
  std::vector<std::unique_ptr<Caller>> callers;
  callers.push_back(Call(1, 100));
  AwaitQueue(0);
  size_t waiting = 0;
  for (const uint64_t memory : {60, 50, 40}) {
    callers.push_back(Call(memory, memory));
    AwaitQueue(++waiting);
  }
  replayer_->Open();
  for (const auto& caller : callers) ASSERT_OK(caller->outcome());
  // 40 beside 60: 50 is passed over, and not forgotten.
  EXPECT_THAT(
      replayer_->batches(),
      ElementsAre(ElementsAre(1), ElementsAre(60, 40), ElementsAre(50)));
}

TEST_F(ReplayExecutorTest, ModelsNeverShareABatch) {
  const auto first = Call(1);
  AwaitQueue(0);
  Caller b(&executor_, other_, 2, 1);
  AwaitQueue(1);
  const auto c = Call(3);
  AwaitQueue(2);
  replayer_->Open();
  other_replayer_->Open();
  ASSERT_OK(first->outcome());
  ASSERT_OK(b.outcome());
  ASSERT_OK(c->outcome());
  EXPECT_THAT(replayer_->batches(),
              ElementsAre(ElementsAre(1), ElementsAre(3)));
  EXPECT_THAT(other_replayer_->batches(), ElementsAre(ElementsAre(2)));
}

TEST_F(ReplayExecutorTest, CancelledWhileItWaits) {
  const auto running = Call(1);
  AwaitQueue(0);
  const auto waits = Call(2);
  AwaitQueue(1);
  waits->Cancel();
  EXPECT_THAT(waits->outcome(), HasCode(StatusCode::kCancelled));
  EXPECT_EQ(executor_.waiting(), 0);
  replayer_->Open();
  ASSERT_OK(running->outcome());
  EXPECT_THAT(replayer_->batches(), ElementsAre(ElementsAre(1)));
}

TEST_F(ReplayExecutorTest, CancelledWhileItRuns) {
  const auto running = Call(1);
  AwaitQueue(0);
  const auto waits = Call(2);
  AwaitQueue(1);
  // Its replay stops, and the next one begins behind a closed gate.
  running->Cancel();
  EXPECT_THAT(running->outcome(), HasCode(StatusCode::kCancelled));
  Await([&] { return replayer_->batches().size() == 2; });
  EXPECT_FALSE(waits->done());
  replayer_->Open();
  EXPECT_THAT(waits->outcome(), IsOk());
}

TEST_F(ReplayExecutorTest, OneJobsDamageIsNotItsNeighbours) {
  const auto first = Call(1);
  AwaitQueue(0);
  const auto a = Call(2);
  AwaitQueue(1);
  const auto damaged = Call(GatedReplayer::kDamaged);
  AwaitQueue(2);
  const auto b = Call(3);
  AwaitQueue(3);
  replayer_->Open();
  EXPECT_THAT(damaged->outcome(), HasCode(StatusCode::kDataLoss));
  ASSERT_OK(a->outcome());
  ASSERT_OK(b->outcome());
  EXPECT_EQ(b->outcome()->result.window.resume_at, 3);
}

}  // namespace
}  // namespace torpor::service
