// SPDX-License-Identifier: Apache-2.0
//
// Upkeep ends every session with a TTL, in whatever order verbs that change one
// session return to their callers.

#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <utility>

#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

class ExpiryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.no_sync_for_test = true;
    options.clock = [this] {
      if (std::this_thread::get_id() == caller_ && on_clock_) {
        std::exchange(on_clock_, nullptr)();
      }
      return now_us_;
    };
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
    ASSERT_OK(Suspend(store_.get(), Spec("s", 0, 0, 20, "op"), /*writer=*/1));
  }

  absl::Status Touch(int64_t ttl_seconds) {
    TouchSpec spec;
    spec.session = Key("s");
    spec.session_class = SessionClass::kCache;
    spec.ttl_seconds = ttl_seconds;
    return store_->Touch(spec).status();
  }

  // Stats counts what is stored, expired or not.
  void ExpectUpkeepEndsIt() {
    now_us_ += int64_t{3600} * 1'000'000;
    ASSERT_OK(Settle(store_.get()));
    EXPECT_EQ(store_->Stats().sessions, 0);
  }

  testing::TempDir dir_;
  int64_t now_us_ = 1'000'000;
  // Runs once, in the middle of a call of this thread that reads the clock.
  const std::thread::id caller_ = std::this_thread::get_id();
  std::function<void()> on_clock_;
  std::unique_ptr<LmdbSessionStore> store_;
};

TEST_F(ExpiryTest, ACallThatReturnsLateForgetsNoLaterTtl) {
  // The second touch commits after the first, and returns before it does if the
  // first has anything left to do in its own thread.
  on_clock_ = [&] { EXPECT_OK(Touch(10)); };
  ASSERT_OK(Touch(0));
  if (on_clock_) std::exchange(on_clock_, nullptr)();
  ExpectUpkeepEndsIt();
}

TEST_F(ExpiryTest, ARepeatedDeleteForgetsNoTtlOfTheNextSession) {
  const MutateSpec erase{Key("s"), 1, "erase"};
  ASSERT_OK(store_->Erase(erase));
  SuspendSpec next = Spec("s", 0, 0, 20, "next");
  next.ttl_seconds = 10;
  ASSERT_OK(Suspend(store_.get(), std::move(next), /*writer=*/2));
  ASSERT_OK(store_->Erase(erase));
  EXPECT_EQ(store_->Stats().sessions, 1);
  ExpectUpkeepEndsIt();
}

}  // namespace
}  // namespace torpor::store
