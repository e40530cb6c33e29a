// SPDX-License-Identifier: Apache-2.0
//
// Sessions among others: lookup, tenants, lists, lifetimes, leases, models.

#include <map>
#include <string>
#include <vector>

#include "tests/store/session_store_conformance.h"

namespace torpor::store {
namespace {

TEST_P(SessionStoreConformance, LookupFindsTheLongestPrefixToTheToken) {
  const RecordLayout layout = SmallLayout();
  Create("a", 53);
  SuspendSpec other = Spec("b", 0, 0, 20, "op");
  other.new_tokens.ids[18] = 4'000'000;
  ASSERT_OK(Suspend(store_, other, 2));
  const auto hit_of = [&](const TokenRun& tokens) {
    auto hit = store_->Lookup(0, layout, tokens);
    EXPECT_OK(hit.status());
    return hit.ok() ? hit->hit_len : 0;
  };
  for (const uint64_t n : {1, 15, 16, 17, 40, 48, 53}) {
    EXPECT_EQ(hit_of(Tokens(0, n)), n);
  }
  EXPECT_EQ(hit_of(Tokens(0, 80)), 53);
  for (const uint64_t changed : {0, 1, 15, 16, 17, 47, 48, 52}) {
    TokenRun prompt = Tokens(0, 60);
    prompt.ids[changed] = 5'000'000;
    EXPECT_EQ(hit_of(prompt), changed);
  }
  TokenRun towards_b = Tokens(0, 20);
  towards_b.ids[18] = 4'000'000;
  ASSERT_OK_AND_ASSIGN(const PrefixHit hit,
                       store_->Lookup(0, layout, towards_b));
  EXPECT_EQ(hit.hit_len, 20);
  ASSERT_OK_AND_ASSIGN(const Content content, ReadAll(hit.lease.get(), layout));
  EXPECT_EQ(content.rows[0], Rows(2, 0, {0, 20}, 24));
  // Another model, another tenant, another extra key: not these rows.
  RecordLayout foreign = layout;
  foreign.fingerprint[3] ^= 1;
  ASSERT_OK_AND_ASSIGN(const PrefixHit none,
                       store_->Lookup(0, foreign, Tokens(0, 53)));
  EXPECT_EQ(none.hit_len, 0);
  EXPECT_EQ(none.lease, nullptr);
  ASSERT_OK_AND_ASSIGN(const PrefixHit tenant,
                       store_->Lookup(1, layout, Tokens(0, 53)));
  EXPECT_EQ(tenant.hit_len, 0);
  TokenRun salted = Tokens(0, 53);
  salted.spans = {{20, 25, "salt", false}};
  EXPECT_EQ(hit_of(salted), 20);
  // What is erased is not found.
  ASSERT_OK(store_->Erase({Key("a"), 1, "rm"}));
  EXPECT_EQ(hit_of(Tokens(0, 53)), 18);
  ASSERT_OK(Settle(store_));
  EXPECT_EQ(hit_of(Tokens(0, 53)), 18);
}

TEST_P(SessionStoreConformance, LookupKeepsTwoWaySpansWhole) {
  SuspendSpec spec = Spec("a", 0, 0, 50, "op");
  spec.new_tokens.spans = {{12, 36, "image", true}};
  ASSERT_OK(Suspend(store_, spec, 1));
  const RecordLayout layout = SmallLayout();
  TokenRun prompt = spec.new_tokens;
  ASSERT_OK_AND_ASSIGN(const PrefixHit whole,
                       store_->Lookup(0, layout, prompt));
  EXPECT_EQ(whole.hit_len, 50);
  prompt.ids[30] = 77'777;
  ASSERT_OK_AND_ASSIGN(const PrefixHit cut, store_->Lookup(0, layout, prompt));
  EXPECT_EQ(cut.hit_len, 12);
  prompt = Tokens(0, 50);
  prompt.spans = {{12, 36, "other image", true}};
  ASSERT_OK_AND_ASSIGN(const PrefixHit other,
                       store_->Lookup(0, layout, prompt));
  EXPECT_EQ(other.hit_len, 12);
}

TEST_P(SessionStoreConformance, TenantsShareNothing) {
  Create("a", 20);
  SuspendSpec spec = Spec("a", 0, 0, 30, "op");
  spec.session.tenant = 9;
  ASSERT_OK(Suspend(store_, spec, 2));
  ASSERT_OK_AND_ASSIGN(const SessionInfo mine, store_->Describe(Key("a")));
  ASSERT_OK_AND_ASSIGN(const SessionInfo theirs, store_->Describe(Key("a", 9)));
  EXPECT_EQ(mine.n_tokens, 20);
  EXPECT_EQ(theirs.n_tokens, 30);
  EXPECT_THAT(store_->Fork({Key("a", 9), 0, {Key("b"), 0, "f"}, {}}),
              HasCode(absl::StatusCode::kInvalidArgument));
  ASSERT_OK_AND_ASSIGN(const ListResult list, store_->List(9, "", "", 10));
  ASSERT_EQ(list.sessions.size(), 1);
  EXPECT_EQ(list.sessions[0].n_tokens, 30);
}

TEST_P(SessionStoreConformance, ListPagesInOrderOfIds) {
  std::vector<std::string> ids;
  for (int i = 0; i < 25; ++i) {
    ids.push_back("s" + std::to_string(100 + i));
    Create(ids.back(), 2);
  }
  Create("t", 2);
  std::vector<std::string> seen;
  std::string after;
  do {
    ASSERT_OK_AND_ASSIGN(const ListResult page, store_->List(0, "s", after, 7));
    for (const SessionInfo& info : page.sessions) seen.push_back(info.key.id);
    after = page.next;
  } while (!after.empty());
  EXPECT_EQ(seen, ids);
  ASSERT_OK_AND_ASSIGN(const ListResult all, store_->List(0, "", "", 100));
  EXPECT_EQ(all.sessions.size(), 26);
}

TEST_P(SessionStoreConformance, TtlEndsASession) {
  SuspendSpec spec = Spec("a", 0, 0, 20, "op");
  spec.ttl_seconds = 60;
  ASSERT_OK(Suspend(store_, spec, 1));
  Create("stays", 20);
  now_us_ += 59'000'000;
  ExpectRows("a", 20, 0, 1, 1);
  now_us_ += 2'000'000;
  EXPECT_THAT(store_->Describe(Key("a")), HasCode(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(const ListResult list, store_->List(0, "", "", 10));
  EXPECT_EQ(list.sessions.size(), 1);
  // Its name is free again, before any maintenance ran.
  ASSERT_OK(Suspend(store_, Spec("a", 0, 0, 5, "again"), 2));
  ExpectRows("a", 5, 0, 1, 2);
  ASSERT_OK(Settle(store_));
  ExpectRows("stays", 20, 0, 1, 1);
  EXPECT_EQ(store_->Stats().sessions, 2);
}

TEST_P(SessionStoreConformance, TouchChangesWhatItNamesAndNoVersion) {
  SuspendSpec spec = Spec("a", 0, 0, 20, "op");
  spec.labels = {{"team", "red"}, {"old", "x"}};
  ASSERT_OK(Suspend(store_, spec, 1));
  ASSERT_OK_AND_ASSIGN(const SessionInfo info,
                       store_->Touch({.session = Key("a"),
                                      .session_class = SessionClass::kCache,
                                      .ttl_seconds = 100,
                                      .labels = {{"old", ""}, {"new", "y"}}}));
  EXPECT_EQ(info.version, 1);
  EXPECT_EQ(info.session_class, SessionClass::kCache);
  EXPECT_EQ(info.expires_at_us, now_us_ + 100'000'000);
  EXPECT_EQ(info.labels, (std::map<std::string, std::string>{{"team", "red"},
                                                             {"new", "y"}}));
  ASSERT_OK_AND_ASSIGN(const SessionInfo cleared,
                       store_->Touch({.session = Key("a"), .ttl_seconds = 0}));
  EXPECT_EQ(cleared.expires_at_us, 0);
  EXPECT_EQ(cleared.session_class, SessionClass::kCache);
  EXPECT_THAT(store_->Touch({.session = Key("b")}),
              HasCode(absl::StatusCode::kNotFound));
}

TEST_P(SessionStoreConformance, ATtlBeyondTheEndOfTimeNeverEnds) {
  SuspendSpec spec = Spec("a", 0, 0, 20, "op");
  spec.ttl_seconds = INT64_MAX;
  ASSERT_OK(Suspend(store_, spec, 1));
  ExpectRows("a", 20, 0, 1, 1);
  ASSERT_OK_AND_ASSIGN(
      const SessionInfo info,
      store_->Touch({.session = Key("a"), .ttl_seconds = INT64_MAX / 1000}));
  EXPECT_EQ(info.expires_at_us, INT64_MAX);
  ExpectRows("a", 20, 0, 1, 1);
}

TEST_P(SessionStoreConformance, TouchRefusesLabelsThatCannotBeAndChangesNone) {
  SuspendSpec spec = Spec("a", 0, 0, 20, "op");
  spec.labels = {{"team", "red"}};
  ASSERT_OK(Suspend(store_, spec, 1));
  Labels many;
  for (size_t i = 0; i < kMaxLabels; ++i) many[std::to_string(i)] = "x";
  for (const Labels& bad :
       {Labels{{"", "x"}}, Labels{{std::string(kMaxLabelBytes + 1, 'k'), "x"}},
        Labels{{"k", std::string(kMaxLabelBytes + 1, 'v')}}, many}) {
    EXPECT_THAT(store_->Touch({.session = Key("a"),
                               .session_class = SessionClass::kCache,
                               .labels = bad}),
                HasCode(absl::StatusCode::kInvalidArgument));
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("a")));
    EXPECT_EQ(info.labels, spec.labels);
    EXPECT_EQ(info.session_class, SessionClass::kDurable);
  }
}

TEST_P(SessionStoreConformance, ALeaseOutlivesTheSession) {
  Create("a", 53);
  ASSERT_OK_AND_ASSIGN(const Content before,
                       ReadAll(store_, Key("a"), SmallLayout()));
  ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("a")));
  ASSERT_OK(store_->Erase({Key("a"), 1, "rm"}));
  ASSERT_OK(Settle(store_));
  ASSERT_OK_AND_ASSIGN(const Content after,
                       ReadAll(lease.get(), SmallLayout()));
  EXPECT_EQ(before, after);
}

TEST_P(SessionStoreConformance, ALeaseOnAStaleVersionIsRefused) {
  Create("a", 5);
  ASSERT_OK(Suspend(store_, Spec("a", 1, 5, 5, "op2"), 1));
  EXPECT_THAT(store_->Open(Key("a"), 1), HasCode(absl::StatusCode::kAborted));
  EXPECT_OK(store_->Open(Key("a"), 2).status());
}

TEST_P(SessionStoreConformance, CancelEndsATicket) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "op");
  ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
  begin.ticket->Cancel();
  EXPECT_THAT(PutAll(begin.ticket.get(), spec.layout, 1),
              HasCode(absl::StatusCode::kCancelled));
  EXPECT_THAT(begin.ticket->Commit({}), HasCode(absl::StatusCode::kCancelled));
}

TEST_P(SessionStoreConformance, ModelsAreKept) {
  ASSERT_OK(store_->PutModel("b", "two"));
  ASSERT_OK(store_->PutModel("a", "one"));
  ASSERT_OK(store_->PutModel("b", "three"));
  ASSERT_OK_AND_ASSIGN(const auto models, store_->Models());
  EXPECT_THAT(models,
              ElementsAre(std::pair<std::string, std::string>("a", "one"),
                          std::pair<std::string, std::string>("b", "three")));
}

TEST_P(SessionStoreConformance, ALayoutWithoutSlotsKeepsTokensAlone) {
  SuspendSpec spec = Spec("a", 0, 0, 100, "op");
  spec.layout.slots.clear();
  spec.layout.fingerprint.fill(3);
  ASSERT_OK(Suspend(store_, spec, 1));
  ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("a")));
  ASSERT_OK_AND_ASSIGN(const TokenRun tokens, lease->ReadTokens(0, 100));
  EXPECT_EQ(tokens, Tokens(0, 100));
  EXPECT_EQ(lease->info().compact_bytes, 0);
}

}  // namespace
}  // namespace torpor::store
