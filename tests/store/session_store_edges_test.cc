// SPDX-License-Identifier: Apache-2.0
//
// Corners of the contract that random verbs have found; for every store.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/memory_session_store.h"
#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

using ::testing::ElementsAre;
using testing::HasCode;
using testing::HasStatus;
using ::testing::IsEmpty;

class SessionStoreEdgesTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const Clock clock = [this] { return now_us_; };
    if (!GetParam()) {
      store_ = MakeMemorySessionStore(clock);
      return;
    }
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.clock = clock;
    // Nothing here asks what a crash leaves.
    options.no_sync_for_test = true;
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
  }

  absl::Status Create(const std::string& id, uint64_t n_tokens,
                      std::optional<int64_t> ttl_seconds = std::nullopt) {
    SuspendSpec spec = Spec(id, 0, 0, n_tokens, "create");
    spec.ttl_seconds = ttl_seconds;
    return Suspend(store_.get(), spec, 1).status();
  }

  int64_t now_us_ = 1'700'000'000'000'000;
  testing::TempDir dir_;
  std::unique_ptr<SessionStore> store_;
};

TEST_P(SessionStoreEdgesTest, ASuspendCutsNoTwoWaySpanOfWhatItKeeps) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "create");
  spec.new_tokens.spans = {{7, 23, "image", true}};
  ASSERT_OK(Suspend(store_.get(), spec, 1));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const uint64_t kept : {8, 16, 22}) {
    EXPECT_THAT(store_->Begin(Spec("a", 1, kept, 10, "cut")).status(),
                HasStatus(kInvalid, "bidirectional"))
        << kept << " tokens kept";
    // The same by leaving the span's end without rows.
    SuspendSpec pending = Spec("a", 1, 40, 1, "pending");
    pending.kv_len = kept;
    pending.provenance = {};
    EXPECT_THAT(store_->Begin(pending).status(),
                HasStatus(kInvalid, "bidirectional"))
        << kept << " rows kept";
  }
  for (const uint64_t kept : {23, 7}) {
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("a")));
    EXPECT_OK(Suspend(
        store_.get(),
        Spec("a", info.version, kept, 10, "on" + std::to_string(kept)), 2));
  }
}

TEST_P(SessionStoreEdgesTest, ASessionBornAfterAnExpiryReusesNoVersion) {
  for (const bool by_fork : {false, true}) {
    const std::string id = by_fork ? "forked" : "again";
    ASSERT_OK(Create(id, 20, 10));
    ASSERT_OK_AND_ASSIGN(const SessionInfo first, store_->Describe(Key(id)));
    ASSERT_OK(store_->Rewind({Key(id), first.version, "r"}, 10));
    ASSERT_OK_AND_ASSIGN(const SessionInfo last, store_->Describe(Key(id)));
    now_us_ += 11'000'000;
    // No maintenance has run yet.
    if (by_fork) {
      ASSERT_OK(Create("source", 20));
      ASSERT_OK(store_->Fork({Key("source"), 0, {Key(id), 0, "f"}, {}}));
    } else {
      ASSERT_OK(Create(id, 20));
    }
    ASSERT_OK_AND_ASSIGN(const SessionInfo reborn, store_->Describe(Key(id)));
    EXPECT_GT(reborn.version, last.version);
    EXPECT_THAT(store_->Rewind({Key(id), last.version, "stale"}, 1),
                HasCode(absl::StatusCode::kAborted));
  }
}

TEST_P(SessionStoreEdgesTest, AListEndsWhereOnlyTheExpiredFollow) {
  ASSERT_OK(Create("a", 5));
  ASSERT_OK(Create("b", 5));
  ASSERT_OK(Create("c", 5, 10));
  ASSERT_OK(Create("d", 5, 10));
  now_us_ += 11'000'000;
  ASSERT_OK_AND_ASSIGN(const ListResult list, store_->List(0, "", "", 2));
  EXPECT_EQ(list.sessions.size(), 2);
  EXPECT_EQ(list.next, "");
}

TEST_P(SessionStoreEdgesTest, OldTombstonesGoThoughManyFreshOnesStandBefore) {
  if (!GetParam()) GTEST_SKIP() << "the twin keeps tombstones for good";
  const auto erase = [&](const std::string& id) -> absl::StatusOr<uint64_t> {
    return store_->Erase({Key(id), 1, "erase"});
  };
  ASSERT_OK(Create("z", 1));
  ASSERT_OK(erase("z"));
  now_us_ += int64_t{25} * 3'600 * 1'000'000;
  // More than one step of the sweep looks at.
  constexpr int kFresh = 1'100;
  for (int i = 0; i < kFresh; ++i) {
    const std::string id = "a" + std::to_string(i);
    ASSERT_OK(Create(id, 1));
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key(id)));
    ASSERT_OK(store_->Erase({Key(id), info.version, "erase"}));
  }
  ASSERT_OK(Settle(store_.get()));
  ASSERT_OK(store_->Maintain());
  ASSERT_OK(store_->Maintain());
  EXPECT_THAT(erase("z").status(), HasCode(absl::StatusCode::kNotFound));
  // A fresh one still answers with what it did.
  EXPECT_OK(store_->Erase({Key("a7"), 1, "erase"}));
}

TEST_P(SessionStoreEdgesTest, AnEmptyRangeOfTokensHasNoSpans) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "create");
  spec.new_tokens.spans = {{0, 20, "adapter", false}, {25, 35, "image", true}};
  ASSERT_OK(Suspend(store_.get(), spec, 1));
  ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("a")));
  for (const uint64_t at : {0, 10, 16, 30, 40}) {
    ASSERT_OK_AND_ASSIGN(const TokenRun run, lease->ReadTokens(at, at));
    EXPECT_THAT(run.ids, IsEmpty());
    EXPECT_THAT(run.spans, IsEmpty()) << "at " << at;
  }
}

// An adapter's span covers all tokens, those without rows included; rows end
// with a block.
TEST_P(SessionStoreEdgesTest, ASpanMayCrossIntoPendingTokensAtABlocksEnd) {
  for (const uint64_t kv_len : {31, 32, 33}) {
    const std::string id = "a" + std::to_string(kv_len);
    SuspendSpec spec = Spec(id, 0, 0, 40, "create");
    spec.kv_len = kv_len;
    spec.provenance = {};
    spec.new_tokens.spans = {{0, 40, "adapter", false}};
    ASSERT_OK(Suspend(store_.get(), spec, 1));
    ASSERT_OK_AND_ASSIGN(const VerifyReport report,
                         store_->Verify(/*deep=*/true, nullptr));
    EXPECT_THAT(report.problems, IsEmpty()) << "kv_len " << kv_len;
    ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key(id)));
    ASSERT_OK_AND_ASSIGN(const TokenRun run, lease->ReadTokens(0, 40));
    EXPECT_THAT(run.spans, ElementsAre(ExtraKeySpan{0, 40, "adapter", false}));
  }
}

TEST_P(SessionStoreEdgesTest, AReceiptNamesEveryKindOfByte) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "create");
  spec.snapshot = {{2, 100, {33, 40}}};
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt,
                       Suspend(store_.get(), spec, 1,
                               {Bytes(AttachmentKind::kWitness, "witness"),
                                Bytes(AttachmentKind::kClientState, "state")}));
  EXPECT_EQ(receipt.row_bytes_received, 40 * 24 + 40 * 8 + 20 * 40 + 10 * 16);
  EXPECT_EQ(receipt.row_bytes_copied, 0);
  EXPECT_EQ(receipt.token_bytes, 40 * 4);
  EXPECT_EQ(receipt.witness_bytes, 7);
  EXPECT_EQ(receipt.client_state_bytes, 5);
  EXPECT_EQ(receipt.snapshot_bytes, 700);
  // The repetition says the same.
  ASSERT_OK_AND_ASSIGN(const BeginResult again, store_->Begin(spec));
  ASSERT_TRUE(again.receipt.has_value());
  EXPECT_EQ(again.receipt->witness_bytes, 7);
  EXPECT_EQ(again.receipt->snapshot_bytes, 700);
}

INSTANTIATE_TEST_SUITE_P(Stores, SessionStoreEdgesTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Lmdb" : "Memory";
                         });

}  // namespace
}  // namespace torpor::store
