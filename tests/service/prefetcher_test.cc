// SPDX-License-Identifier: Apache-2.0
//
// Which windows are held, for whom and for how long, over rebuilds that only
// wait behind a gate and a clock that stands still.

#include "service/prefetcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/service/metric_value.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;

constexpr std::chrono::seconds kPatience{60};
constexpr std::chrono::seconds kHold{10};

void Await(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
}

PlannedWindow WindowOf(const std::string& session, uint64_t version = 1) {
  PlannedWindow window;
  window.session = {0, session};
  window.version = version;
  window.plan.resume_at = 50;
  window.plan.replay_start = 40;
  return window;
}

// A rebuild of which a test says when and how it ends.
struct Gate {
  std::atomic<bool> open{true};
  std::atomic<int> rebuilds{0};
  std::atomic<int> reads{0};
  // Of those, ended by their caller.
  std::atomic<int> cancelled{0};
  absl::Status rebuild_status;
  absl::Status read_status;

  Rebuilt Rebuild(const PlannedWindow& window,
                  const Prefetcher::Cancelled& stop) {
    ++rebuilds;
    while (!open.load()) {
      if (stop()) {
        ++cancelled;
        Rebuilt out;
        out.status = absl::CancelledError("gave up");
        return out;
      }
      std::this_thread::yield();
    }
    Rebuilt out;
    out.status = rebuild_status;
    out.plan = window.plan;
    // Tells versions apart.
    out.window.resume_at = window.version;
    return out;
  }
};

class PrefetcherTest : public ::testing::Test {
 protected:
  Prefetcher::Work WorkFor(const PlannedWindow& window, uint64_t bytes = 1) {
    return {.window = window,
            .read =
                [this](const Prefetcher::Cancelled&) {
                  ++gate_.reads;
                  return gate_.read_status;
                },
            .rebuild =
                [this, window](const Prefetcher::Cancelled& stop) {
                  return gate_.Rebuild(window, stop);
                },
            .window_bytes = bytes,
            .hold = kHold};
  }
  Prefetcher::Work ReadingOf(const PlannedWindow& window) {
    Prefetcher::Work work = WorkFor(window);
    work.rebuild = nullptr;
    return work;
  }
  uint64_t Count(const std::string& event) const {
    return PrefetchCount(metrics_.Text(), event);
  }
  void AwaitCount(const std::string& event, uint64_t n) {
    Await([&] { return Count(event) == n; });
  }
  // Waits in Take on a thread; `taken_` has what it got.
  class Waiter {
   public:
    Waiter(Prefetcher* prefetcher, const PlannedWindow& window)
        : thread_([=, this] {
            taken_ = prefetcher->Take(window, [this] {
              ++polled_;
              return gave_up_.load();
            });
          }) {
      // Polled before and while it waits.
      Await([this] { return polled_.load() > 1; });
    }
    void GiveUp() { gave_up_.store(true); }
    std::optional<Rebuilt> Taken() {
      thread_.join();
      return std::move(taken_);
    }

   private:
    std::atomic<int> polled_{0};
    std::atomic<bool> gave_up_{false};
    std::optional<Rebuilt> taken_;
    std::thread thread_;
  };

  Metrics metrics_;
  Gate gate_;
  std::atomic<int64_t> now_s_{1000};
  Prefetcher prefetcher_{
      {.held_bytes = 100, .sessions = 3, .hold_limit = kHold},
      &metrics_,
      [this] {
        return Prefetcher::SteadyClock::time_point(
            std::chrono::seconds(now_s_.load()));
      }};
};

TEST_F(PrefetcherTest, AHeldWindowIsTakenOnce) {
  ASSERT_OK_AND_ASSIGN(const auto begun,
                       prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  EXPECT_FALSE(begun.renewed);
  EXPECT_EQ(begun.refused, "");
  AwaitCount("held", 1);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 60);
  const auto taken = prefetcher_.Take(WindowOf("s"), nullptr);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->window.resume_at, 1);
  EXPECT_FALSE(prefetcher_.Take(WindowOf("s"), nullptr).has_value());
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
  EXPECT_EQ(prefetcher_.stats().sessions, 0);
  EXPECT_EQ(Count("asked"), 1);
  EXPECT_EQ(Count("used"), 1);
}

TEST_F(PrefetcherTest, OnlyTheWindowThatWasPlannedIsServed) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"))));
  AwaitCount("held", 1);
  using Change = std::function<void(PlannedWindow*)>;
  const std::vector<Change> changes = {
      [](PlannedWindow* w) { w->session.tenant = 1; },
      [](PlannedWindow* w) { w->session.id = "t"; },
      [](PlannedWindow* w) { w->version = 2; },
      [](PlannedWindow* w) { w->updated_at_us = 1; },
      [](PlannedWindow* w) { w->model = std::make_shared<RegisteredModel>(); },
      [](PlannedWindow* w) { w->plan.resume_at = 49; },
      [](PlannedWindow* w) { w->plan.mode = replay::ReplayMode::kBounded; },
      [](PlannedWindow* w) {
        w->plan.floors.push_back({40, 50, 40, 0});
      },
      [](PlannedWindow* w) { w->want_logits = true; },
      [](PlannedWindow* w) { w->max_error = 0.5; },
      [](PlannedWindow* w) { w->allow_cold = true; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    PlannedWindow other = WindowOf("s");
    changes[i](&other);
    EXPECT_FALSE(prefetcher_.Take(other, nullptr).has_value()) << i;
  }
  EXPECT_TRUE(prefetcher_.Take(WindowOf("s"), nullptr).has_value());
}

TEST_F(PrefetcherTest, AResumeJoinsTheRebuildThatRuns) {
  gate_.open = false;
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"))));
  Waiter first(&prefetcher_, WindowOf("s"));
  Waiter second(&prefetcher_, WindowOf("s"));
  Waiter impatient(&prefetcher_, WindowOf("s"));
  impatient.GiveUp();
  EXPECT_FALSE(impatient.Taken().has_value());
  gate_.open = true;
  // One of them has it, the other rebuilds its own.
  EXPECT_EQ(first.Taken().has_value() + second.Taken().has_value(), 1);
  EXPECT_EQ(gate_.rebuilds, 1);
  EXPECT_EQ(Count("used"), 1);
}

TEST_F(PrefetcherTest, ItsTimeEnds) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  AwaitCount("held", 1);
  now_s_ += kHold.count() - 1;
  prefetcher_.DropExpired();
  EXPECT_EQ(Count("expired"), 0);
  ++now_s_;
  // Over, whether or not upkeep came by.
  EXPECT_FALSE(prefetcher_.Take(WindowOf("s"), nullptr).has_value());
  prefetcher_.DropExpired();
  EXPECT_EQ(Count("expired"), 1);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
}

TEST_F(PrefetcherTest, ARebuildThatAResumeWaitsForDoesNotExpire) {
  gate_.open = false;
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("waited"))));
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("not waited"))));
  Waiter waiter(&prefetcher_, WindowOf("waited"));
  now_s_ += kHold.count();
  prefetcher_.DropExpired();
  EXPECT_EQ(Count("expired"), 1);
  // The other one was ended, not left to run.
  Await([&] { return gate_.cancelled == 1; });
  gate_.open = true;
  EXPECT_TRUE(waiter.Taken().has_value());
}

TEST_F(PrefetcherTest, ASecondOneRenewsOrReplaces) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  AwaitCount("read", 1);
  now_s_ += kHold.count() - 1;
  ASSERT_OK_AND_ASSIGN(const auto renewed,
                       prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  EXPECT_TRUE(renewed.renewed);
  now_s_ += kHold.count() - 1;
  prefetcher_.DropExpired();
  EXPECT_EQ(Count("expired"), 0);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 60);
  // Its rows were read again.
  AwaitCount("read", 2);
  EXPECT_EQ(gate_.rebuilds, 1);

  // A reading leaves the window; another window takes its place.
  ASSERT_OK(prefetcher_.Begin(ReadingOf(WindowOf("s"))));
  AwaitCount("read", 3);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 60);
  ASSERT_OK_AND_ASSIGN(const auto replaced,
                       prefetcher_.Begin(WorkFor(WindowOf("s", 2), 70)));
  EXPECT_FALSE(replaced.renewed);
  EXPECT_EQ(replaced.refused, "");
  EXPECT_EQ(Count("cancelled"), 1);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 70);
  EXPECT_FALSE(prefetcher_.Take(WindowOf("s"), nullptr).has_value());
  EXPECT_TRUE(prefetcher_.Take(WindowOf("s", 2), nullptr).has_value());
}

TEST_F(PrefetcherTest, AReadingIsOfNoMoreRowsThanItsCutHas) {
  PlannedWindow first = WindowOf("s");
  first.plan.resume_at = 10;
  ASSERT_OK(prefetcher_.Begin(WorkFor(first, 60)));
  AwaitCount("read", 1);
  // Fewer rows are among those of the window; more, or those of another version
  // under the number, are not, and take its place.
  first.plan.resume_at = 9;
  ASSERT_OK(prefetcher_.Begin(ReadingOf(first)));
  AwaitCount("read", 2);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 60);
  first.plan.resume_at = 11;
  ASSERT_OK(prefetcher_.Begin(ReadingOf(first)));
  AwaitCount("read", 3);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
  ASSERT_OK(prefetcher_.Begin(WorkFor(first, 60)));
  AwaitCount("held", 2);
  first.updated_at_us = 1;
  ASSERT_OK(prefetcher_.Begin(ReadingOf(first)));
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
}

TEST_F(PrefetcherTest, AWindowWithoutRoomLeavesTheOneThatIsHeld) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  AwaitCount("held", 1);
  PlannedWindow other = WindowOf("s");
  other.want_logits = true;
  ASSERT_OK_AND_ASSIGN(const auto refused,
                       prefetcher_.Begin(WorkFor(other, 101)));
  EXPECT_THAT(refused.refused, HasSubstr("101"));
  EXPECT_TRUE(prefetcher_.Take(WindowOf("s"), nullptr).has_value());
}

TEST_F(PrefetcherTest, OverItsMemoryItReadsAlone) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("a"), 60)));
  AwaitCount("held", 1);
  ASSERT_OK_AND_ASSIGN(const auto refused,
                       prefetcher_.Begin(WorkFor(WindowOf("b"), 41)));
  EXPECT_THAT(refused.refused, AllOf(HasSubstr("41"), HasSubstr("60 of 100"),
                                     HasSubstr("prefetch.held_bytes")));
  AwaitCount("read", 2);
  EXPECT_EQ(Count("refused"), 1);
  EXPECT_EQ(gate_.rebuilds, 1);
  EXPECT_FALSE(prefetcher_.Take(WindowOf("b"), nullptr).has_value());
  // The last byte counts as much as the others; what was taken makes room.
  ASSERT_OK_AND_ASSIGN(const auto fits,
                       prefetcher_.Begin(WorkFor(WindowOf("c"), 40)));
  EXPECT_EQ(fits.refused, "");
  EXPECT_TRUE(prefetcher_.Take(WindowOf("a"), nullptr).has_value());
  ASSERT_OK_AND_ASSIGN(const auto again,
                       prefetcher_.Begin(WorkFor(WindowOf("b"), 41)));
  EXPECT_EQ(again.refused, "");
}

TEST_F(PrefetcherTest, SoManySessionsAndNoMore) {
  gate_.open = false;
  for (const char* session : {"a", "b", "c"}) {
    ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf(session))));
  }
  EXPECT_THAT(prefetcher_.Begin(ReadingOf(WindowOf("d"))),
              HasStatus(StatusCode::kResourceExhausted, "prefetch.sessions"));
  // One of the three is none more.
  EXPECT_OK(prefetcher_.Begin(WorkFor(WindowOf("c"))));
  prefetcher_.Cancel({0, "b"});
  EXPECT_OK(prefetcher_.Begin(WorkFor(WindowOf("d"))));
}

TEST_F(PrefetcherTest, ARebuildThatFailsIsNobodysWindow) {
  gate_.open = false;
  gate_.rebuild_status = absl::DataLossError("damaged rows");
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("s"), 60)));
  Waiter waiter(&prefetcher_, WindowOf("s"));
  gate_.open = true;
  EXPECT_FALSE(waiter.Taken().has_value());
  AwaitCount("read", 1);
  EXPECT_EQ(Count("failed"), 1);
  EXPECT_EQ(Count("held"), 0);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
  EXPECT_EQ(prefetcher_.stats().sessions, 0);
  // Nor does a reading that fails stay.
  gate_.read_status = absl::DataLossError("damaged rows");
  ASSERT_OK(prefetcher_.Begin(ReadingOf(WindowOf("s"))));
  AwaitCount("failed", 2);
  EXPECT_EQ(prefetcher_.stats().sessions, 0);
}

TEST_F(PrefetcherTest, CancelledWhileItRunsAndWhileItIsHeld) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("held"), 20)));
  AwaitCount("held", 1);
  gate_.open = false;
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("runs"), 30)));
  Waiter waiter(&prefetcher_, WindowOf("runs"));
  prefetcher_.Cancel({1, "held"});
  prefetcher_.Cancel({0, "none"});
  EXPECT_EQ(prefetcher_.stats().held_bytes, 50);
  prefetcher_.Cancel({0, "held"});
  prefetcher_.Cancel({0, "runs"});
  EXPECT_FALSE(waiter.Taken().has_value());
  Await([&] { return gate_.cancelled == 1; });
  EXPECT_FALSE(prefetcher_.Take(WindowOf("held"), nullptr).has_value());
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
  EXPECT_EQ(Count("cancelled"), 2);
}

TEST_F(PrefetcherTest, StoppedItDropsAllAndTakesNothingMore) {
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("held"))));
  AwaitCount("held", 1);
  gate_.open = false;
  ASSERT_OK(prefetcher_.Begin(WorkFor(WindowOf("runs"))));
  Waiter waiter(&prefetcher_, WindowOf("runs"));
  prefetcher_.Stop();
  EXPECT_FALSE(waiter.Taken().has_value());
  EXPECT_EQ(prefetcher_.stats().sessions, 0);
  EXPECT_EQ(Count("cancelled"), 2);
  EXPECT_THAT(prefetcher_.Begin(WorkFor(WindowOf("s"))),
              HasCode(StatusCode::kUnavailable));
}

TEST_F(PrefetcherTest, ATimeBeyondTheLimitIsRefused) {
  Prefetcher::Work work = WorkFor(WindowOf("s"));
  work.hold = kHold + std::chrono::seconds(1);
  EXPECT_THAT(
      prefetcher_.Begin(std::move(work)),
      HasStatus(StatusCode::kInvalidArgument, "got 11, wanted at most 10"));
  EXPECT_EQ(Count("asked"), 0);
  for (const PrefetcherOptions& bad :
       {PrefetcherOptions{.sessions = 0},
        PrefetcherOptions{.hold_limit = std::chrono::seconds(0)}}) {
    EXPECT_THAT(bad.Validate(),
                HasStatus(StatusCode::kInvalidArgument, "got 0"));
  }
  EXPECT_OK(PrefetcherOptions{.held_bytes = 0}.Validate());
}

// Callers of every kind at once, on few sessions: no window of another version
// is served, every window that was begun ends in one way, and no byte is lost.
TEST_F(PrefetcherTest, ManyAtOnceLoseNothing) {
  constexpr int kThreads = 6;
  constexpr int kSteps = 400;
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> stale{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      testing::Random random(static_cast<uint64_t>(t));
      for (int i = 0; i < kSteps; ++i) {
        const PlannedWindow window = WindowOf(
            std::string(1, static_cast<char>('a' + random.Between(0, 3))),
            random.Between(1, 2));
        switch (random.Between(0, 5)) {
          case 0:
          case 1: {
            const auto answer = prefetcher_.Begin(WorkFor(window, 30));
            begun += answer.ok() && answer->refused.empty() && !answer->renewed;
            break;
          }
          case 2:
          case 3: {
            const auto taken = prefetcher_.Take(window, nullptr);
            stale +=
                taken.has_value() && taken->window.resume_at != window.version;
            break;
          }
          case 4:
            prefetcher_.Cancel(window.session);
            break;
          default:
            ++now_s_;
            prefetcher_.DropExpired();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  prefetcher_.Stop();
  EXPECT_EQ(stale, 0);
  EXPECT_EQ(prefetcher_.stats().held_bytes, 0);
  EXPECT_EQ(Count("used") + Count("expired") + Count("cancelled"), begun);
  EXPECT_GT(Count("used"), 0);
}

}  // namespace
}  // namespace torpor::service
