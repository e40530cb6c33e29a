// SPDX-License-Identifier: Apache-2.0
//
// Budgets: refused at Begin, before the first row; cache sessions make room,
// least recently used first, durable ones never.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

using ::testing::ElementsAre;
using testing::HasCode;
using testing::HasStatus;
using ::testing::IsEmpty;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
// 50 records of a page each: half of that is still more than the 64 KiB that
// every suspend reserves for a client state that may come.
constexpr uint64_t kTokens = 800;

class QuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // What one session of kTokens takes.
    const testing::TempDir dir;
    ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(dir.path()));
    ASSERT_OK(Suspend(store.get(), Spec("a", 0, 0, kTokens, "op"), 1));
    session_bytes_ = store->Stats().live_bytes;
    ASSERT_GE(session_bytes_, 50 * 4096);
  }

  void Open(const std::function<void(LmdbStoreOptions&)>& change) {
    store_.reset();
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.clock = [this] { return now_us_; };
    change(options);
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
  }
  void OpenFor(uint64_t sessions) {
    Open([&](LmdbStoreOptions& o) {
      o.max_bytes = sessions * session_bytes_ + session_bytes_ / 2;
    });
  }

  static SuspendSpec NewSession(const std::string& id, SessionClass c,
                                uint32_t tenant = 0) {
    SuspendSpec spec = Spec(id, 0, 0, kTokens, "create");
    spec.session.tenant = tenant;
    spec.session_class = c;
    return spec;
  }
  absl::Status Create(const std::string& id, SessionClass c,
                      uint32_t tenant = 0) {
    now_us_ += 1'000'000;
    // Everybody has rows of their own: equal ones would be shared.
    return Suspend(store_.get(), NewSession(id, c, tenant), ++writer_).status();
  }

  std::vector<std::string> Ids(uint32_t tenant = 0) {
    std::vector<std::string> ids;
    const auto list = store_->List(tenant, "", "", 100);
    EXPECT_OK(list.status());
    if (list.ok()) {
      for (const SessionInfo& info : list->sessions) {
        ids.push_back(info.key.id);
      }
    }
    return ids;
  }

  static constexpr SessionClass kDurable = SessionClass::kDurable;
  static constexpr SessionClass kCache = SessionClass::kCache;

  int64_t now_us_ = 1'700'000'000'000'000;
  testing::TempDir dir_;
  std::unique_ptr<SessionStore> store_;
  uint64_t session_bytes_ = 0;
  uint64_t writer_ = 0;
};

TEST_F(QuotaTest, AFullStoreRefusesAtBegin) {
  OpenFor(2);
  ASSERT_OK(Create("a", kDurable));
  ASSERT_OK(Create("b", kDurable));
  const uint64_t live = store_->Stats().live_bytes;
  EXPECT_THAT(store_->Begin(NewSession("c", kDurable)).status(),
              HasCode(kExhausted));
  EXPECT_EQ(store_->Stats().live_bytes, live);
  EXPECT_EQ(store_->Stats().reserved_bytes, 0);
  EXPECT_EQ(store_->Stats().open_tickets, 0);
  EXPECT_THAT(Ids(), ElementsAre("a", "b"));
  // A small one still fits, and after a delete a big one does.
  ASSERT_OK(Suspend(store_.get(), Spec("small", 0, 0, 16, "op"), 1));
  ASSERT_OK(store_->Erase({Key("a"), 1, "rm"}));
  ASSERT_OK(Create("c", kDurable));
  EXPECT_THAT(Ids(), ElementsAre("b", "c", "small"));
}

TEST_F(QuotaTest, ManySmallCacheSessionsMakeRoomForALargeOne) {
  OpenFor(2);
  constexpr int kSmall = 100;
  for (int i = 0; i < kSmall; ++i) {
    now_us_ += 1'000'000;
    SuspendSpec spec = Spec("s" + std::to_string(100 + i), 0, 0, 16, "create");
    spec.session_class = kCache;
    ASSERT_OK(Suspend(store_.get(), spec, ++writer_));
  }
  ASSERT_EQ(Ids().size(), size_t{kSmall});
  // More than half of what there is.
  SuspendSpec large = NewSession("large", kDurable);
  large.new_tokens = Tokens(0, 1'300);
  large.kv_len = 1'300;
  large.provenance = {{0, large.kv_len, Provenance::kExact}};
  ASSERT_OK(Suspend(store_.get(), large, ++writer_));
  const std::vector<std::string> ids = Ids();
  ASSERT_EQ(ids.front(), "large");
  // Those used last have stayed, and not all that could go have gone.
  EXPECT_LT(ids.size(), size_t{kSmall - 64});
  ASSERT_GT(ids.size(), 1U);
  for (size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(ids[i], "s" + std::to_string(100 + kSmall - ids.size() + i));
  }
}

TEST_F(QuotaTest, WhatTicketsWereGrantedIsPromised) {
  Open([&](LmdbStoreOptions& o) {
    o.max_bytes = 2 * (session_bytes_ + (64 << 10)) + (32 << 10);
  });
  ASSERT_OK_AND_ASSIGN(auto first, store_->Begin(NewSession("a", kDurable)));
  ASSERT_OK_AND_ASSIGN(auto second, store_->Begin(NewSession("b", kDurable)));
  EXPECT_GE(store_->Stats().reserved_bytes, 2 * session_bytes_ * 9 / 10);
  EXPECT_THAT(store_->Begin(NewSession("c", kDurable)).status(),
              HasCode(kExhausted));
  first.ticket.reset();
  ASSERT_OK(Create("c", kDurable));
  ASSERT_OK(PutAll(second.ticket.get(), SmallLayout(), 99));
  ASSERT_OK(second.ticket->Commit({}));
  second.ticket.reset();
  EXPECT_EQ(store_->Stats().reserved_bytes, 0);
  EXPECT_LE(store_->Stats().live_bytes, store_->Stats().max_bytes);
  EXPECT_THAT(Ids(), ElementsAre("b", "c"));
}

TEST_F(QuotaTest, ATenantsLimitIsItsOwn) {
  Open([&](LmdbStoreOptions& o) {
    o.tenant_max_bytes = session_bytes_ + session_bytes_ / 2;
  });
  ASSERT_OK(Create("a", kDurable, 1));
  EXPECT_THAT(store_->Begin(NewSession("b", kDurable, 1)).status(),
              HasCode(kExhausted));
  ASSERT_OK(Create("a", kDurable, 2));
  ASSERT_OK(Create("a", kDurable, 3));
  // Only its own cache sessions make room for a tenant.
  ASSERT_OK(store_->Touch({.session = Key("a", 1), .session_class = kCache}));
  ASSERT_OK(store_->Touch({.session = Key("a", 2), .session_class = kCache}));
  ASSERT_OK(Create("b", kDurable, 2));
  EXPECT_THAT(Ids(1), ElementsAre("a"));
  EXPECT_THAT(Ids(2), ElementsAre("b"));
  EXPECT_THAT(Ids(3), ElementsAre("a"));
}

TEST_F(QuotaTest, CacheSessionsGoLeastRecentlyUsedFirst) {
  OpenFor(4);
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_OK(Create(id, kCache));
  // Reading is use, so is a suspend; listing is not.
  now_us_ += 1'000'000;
  ASSERT_OK(ReadAll(store_.get(), Key("a"), SmallLayout()));
  now_us_ += 1'000'000;
  ASSERT_OK(Suspend(store_.get(), Spec("b", 1, kTokens, 0, "again"), 1));
  now_us_ += 1'000'000;
  ASSERT_OK(Create("e", kCache));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "d", "e"));
  ASSERT_OK(Create("f", kCache));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "e", "f"));
  ASSERT_OK(Create("g", kCache));
  EXPECT_THAT(Ids(), ElementsAre("b", "e", "f", "g"));
  ASSERT_OK(Create("h", kDurable));
  EXPECT_THAT(Ids(), ElementsAre("e", "f", "g", "h"));
  EXPECT_LE(store_->Stats().live_bytes, store_->Stats().max_bytes);
  ExpectSound(store_.get());
}

TEST_F(QuotaTest, TheOrderOfUseSurvivesAReopen) {
  OpenFor(3);
  for (const char* id : {"b", "c", "a"}) ASSERT_OK(Create(id, kCache));
  OpenFor(3);
  ASSERT_OK(Create("d", kCache));
  EXPECT_THAT(Ids(), ElementsAre("a", "c", "d"));
}

TEST_F(QuotaTest, AClockThatIsSetBackKeepsNoCacheSession) {
  OpenFor(3);
  for (const char* id : {"b", "c", "a"}) ASSERT_OK(Create(id, kCache));
  now_us_ -= int64_t{3600} * 1'000'000;
  ASSERT_OK(Create("d", kCache));
  // Oldest by the clock now, and in nobody's use.
  ASSERT_OK(Create("e", kCache));
  EXPECT_THAT(Ids(), ElementsAre("a", "c", "e"));
}

TEST_F(QuotaTest, ALeasedSessionIsNotEvicted) {
  OpenFor(3);
  for (const char* id : {"a", "b", "c"}) ASSERT_OK(Create(id, kCache));
  ASSERT_OK_AND_ASSIGN(auto a, store_->Open(Key("a")));
  ASSERT_OK_AND_ASSIGN(const Content before, ReadAll(a.get(), SmallLayout()));
  ASSERT_OK(Create("d", kCache));
  EXPECT_THAT(Ids(), ElementsAre("a", "c", "d"));
  ASSERT_OK_AND_ASSIGN(const auto c, store_->Open(Key("c")));
  ASSERT_OK_AND_ASSIGN(const auto d, store_->Open(Key("d")));
  EXPECT_THAT(store_->Begin(NewSession("e", kCache)).status(),
              HasCode(kExhausted));
  EXPECT_THAT(Ids(), ElementsAre("a", "c", "d"));
  ASSERT_OK_AND_ASSIGN(const Content after, ReadAll(a.get(), SmallLayout()));
  EXPECT_TRUE(before == after);
  a.reset();
  ASSERT_OK(Create("e", kCache));
  EXPECT_THAT(Ids(), ElementsAre("c", "d", "e"));
}

TEST_F(QuotaTest, ASessionThatIsBeingSuspendedIsNotEvicted) {
  OpenFor(2);
  ASSERT_OK(Create("a", kCache));
  ASSERT_OK(Create("b", kCache));
  // The oldest of all grows: its neighbour makes room.
  ASSERT_OK(Suspend(store_.get(), Spec("a", 1, kTokens, kTokens, "grow"), 1));
  EXPECT_THAT(Ids(), ElementsAre("a"));
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_.get(), Key("a"), SmallLayout()));
  EXPECT_EQ(content.rows[0], Rows(1, 0, {0, 2 * kTokens}, 24));
  // Nobody is left to make room for more.
  EXPECT_THAT(
      store_->Begin(Spec("a", 2, 2 * kTokens, kTokens, "more")).status(),
      HasCode(kExhausted));
  EXPECT_THAT(Ids(), ElementsAre("a"));
  ExpectSound(store_.get());
}

TEST_F(QuotaTest, APinnedSessionIsNotEvictedUntilItsPinEnds) {
  Open([&](LmdbStoreOptions& o) {
    o.max_bytes = 3 * session_bytes_ + session_bytes_ / 2;
    o.pinned_max_bytes = 2 * session_bytes_ + session_bytes_ / 2;
  });
  for (const char* id : {"a", "b", "c"}) ASSERT_OK(Create(id, kCache));
  ASSERT_OK(store_->Touch({.session = Key("a"), .pin_seconds = 60}));
  ASSERT_OK(store_->Touch({.session = Key("b"), .pin_seconds = 600}));
  EXPECT_THAT(store_->Touch({.session = Key("c"), .pin_seconds = 60}),
              HasStatus(kExhausted, "pin"));
  ASSERT_OK(Create("d", kDurable));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "d"));
  EXPECT_THAT(store_->Begin(NewSession("e", kCache)).status(),
              HasCode(kExhausted));
  now_us_ += 61'000'000;
  ASSERT_OK(Create("e", kCache));
  EXPECT_THAT(Ids(), ElementsAre("b", "d", "e"));
}

TEST_F(QuotaTest, DurableSessionsAreNeverEvicted) {
  OpenFor(3);
  ASSERT_OK(Create("a", kDurable));
  ASSERT_OK(Create("b", kDurable));
  ASSERT_OK(Create("c", kCache));
  ASSERT_OK(Create("d", kDurable));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "d"));
  for (const SessionClass c : {kCache, kDurable}) {
    EXPECT_THAT(store_->Begin(NewSession("e", c)).status(),
                HasCode(kExhausted));
  }
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "d"));
  // Touched into the cache class, it may go.
  ASSERT_OK(store_->Touch({.session = Key("b"), .session_class = kCache}));
  ASSERT_OK(Create("e", kDurable));
  EXPECT_THAT(Ids(), ElementsAre("a", "d", "e"));
}

// A suspend that no eviction can make room for costs nobody anything.
TEST_F(QuotaTest, AHopelessSuspendEvictsNobody) {
  OpenFor(3);
  ASSERT_OK(Create("a", kDurable));
  ASSERT_OK(Create("b", kCache));
  ASSERT_OK(Create("c", kCache));
  SuspendSpec huge = Spec("huge", 0, 0, 20 * kTokens, "op");
  EXPECT_THAT(store_->Begin(huge).status(), HasCode(kExhausted));
  EXPECT_THAT(Ids(), ElementsAre("a", "b", "c"));
}

}  // namespace
}  // namespace torpor::store
