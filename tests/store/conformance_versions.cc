// SPDX-License-Identifier: Apache-2.0
//
// One session as it sleeps again and again: what reads back, deltas, cuts,
// forks, writers that race, operations that repeat.

#include <string>
#include <vector>

#include "tests/store/session_store_conformance.h"

namespace torpor::store {
namespace {

TEST_P(SessionStoreConformance, ASuspendedSessionReadsBack) {
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt,
                       Suspend(store_, Spec("a", 0, 0, 53, "op"), 1,
                               {Bytes(AttachmentKind::kWitness, "witness"),
                                Bytes(AttachmentKind::kClientState, "state")}));
  EXPECT_EQ(receipt.version, 1);
  EXPECT_EQ(receipt.n_tokens, 53);
  EXPECT_EQ(receipt.kv_len, 53);
  ExpectRows("a", 53, 0, 1, 1);
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_, Key("a"), SmallLayout()));
  EXPECT_EQ(content.tokens, Tokens(0, 53));
  EXPECT_THAT(content.provenance,
              ElementsAre(ProvenanceRange{0, 53, Provenance::kExact}));
  EXPECT_EQ(content.attachments[0],
            Bytes(AttachmentKind::kWitness, "witness").sections);
  EXPECT_EQ(content.attachments[1],
            Bytes(AttachmentKind::kClientState, "state").sections);
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("a")));
  EXPECT_EQ(info.version, 1);
  EXPECT_EQ(info.usable_len, 53);
  EXPECT_EQ(info.n_blocks, 4);
  EXPECT_EQ(info.compact_bytes, 53 * 24 + 53 * 8 + 26 * 40 + 13 * 16);
  EXPECT_EQ(info.holder, "holder of op");
}

TEST_P(SessionStoreConformance, ASessionShorterThanABlockReadsBack) {
  Create("short", 1);
  ExpectRows("short", 1, 0, 1, 1);
}

TEST_P(SessionStoreConformance, ADeltaKeepsOldRowsAndAddsNewOnes) {
  Create("a", 21);
  for (const uint64_t n_new : {1, 10, 16, 0, 3, 64}) {
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("a")));
    SuspendSpec spec = Spec("a", info.version, info.n_tokens, n_new,
                            "delta" + std::to_string(info.version));
    ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
    // Only rows that complete in the new tokens are wanted.
    EXPECT_EQ(begin.ticket->wanted(0),
              (RowRange{info.n_tokens, info.n_tokens + n_new}));
    EXPECT_EQ(begin.ticket->wanted(3),
              (RowRange{info.n_tokens / 4, (info.n_tokens + n_new) / 4}));
    ASSERT_OK(PutAll(begin.ticket.get(), spec.layout, 1));
    ASSERT_OK(begin.ticket->Commit({}));
    ExpectRows("a", info.n_tokens + n_new, 0, 1, 1);
  }
}

TEST_P(SessionStoreConformance, PendingTokensHaveNoRowsUntilTheyDo) {
  for (const uint64_t kv_len : {15, 16, 17}) {
    const std::string id = "pending" + std::to_string(kv_len);
    SuspendSpec spec = Spec(id, 0, 0, 20, "op1");
    spec.kv_len = kv_len;
    spec.provenance = {};
    ASSERT_OK(Suspend(store_, spec, 1));
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store_, Key(id), SmallLayout()));
    EXPECT_EQ(content.tokens, Tokens(0, 20));
    EXPECT_EQ(content.rows[0].size(), kv_len * 24);
    // The pending tokens get their rows, one more stays pending.
    SuspendSpec next = Spec(id, 1, 20, 5, "op2");
    next.kv_len = 24;
    next.provenance = {};
    ASSERT_OK(Suspend(store_, next, 2));
    ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key(id)));
    EXPECT_EQ(lease->info().n_tokens, 25);
    EXPECT_EQ(lease->info().kv_len, 24);
    std::vector<uint8_t> row(24);
    ASSERT_OK(lease->ReadRows(0, {kv_len, kv_len + 1}, row));
    EXPECT_EQ(row, RowBytes(2, 0, kv_len, 24));
    ASSERT_OK(lease->ReadRows(0, {kv_len - 1, kv_len}, row));
    EXPECT_EQ(row, RowBytes(1, 0, kv_len - 1, 24));
    EXPECT_THAT(lease->ReadRows(0, {24, 25}, row),
                HasCode(absl::StatusCode::kOutOfRange));
  }
}

TEST_P(SessionStoreConformance, RewindToAnyCutAndOnFromThere) {
  constexpr uint64_t kTokens = 53;
  for (const uint64_t at : {0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 50, 52}) {
    const std::string id = "rewind" + std::to_string(at);
    Create(id, kTokens);
    ASSERT_OK_AND_ASSIGN(const SessionInfo info,
                         store_->Rewind({Key(id), 1, "rewind"}, at));
    EXPECT_EQ(info.version, 2);
    EXPECT_EQ(info.n_tokens, at);
    EXPECT_EQ(info.kv_len, at);
    ExpectRows(id, at, at, 1, 1);
    // Continue by other tokens and rows, suspend, and read all of it.
    for (const uint64_t n_new : {1, 40}) {
      ASSERT_OK_AND_ASSIGN(const SessionInfo now, store_->Describe(Key(id)));
      SuspendSpec spec = Spec(id, now.version, now.n_tokens, n_new,
                              "on" + std::to_string(n_new));
      spec.new_tokens = Tokens(now.n_tokens, n_new, /*salt=*/9);
      ASSERT_OK(Suspend(store_, spec, 2));
      ExpectRows(id, now.n_tokens + n_new, at, 1, 2);
    }
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store_, Key(id), SmallLayout()));
    TokenRun expected = Tokens(0, at);
    const TokenRun more = Tokens(at, 41, 9);
    expected.ids.insert(expected.ids.end(), more.ids.begin(), more.ids.end());
    EXPECT_EQ(content.tokens, expected);
  }
}

TEST_P(SessionStoreConformance, ASuspendMayCutBackAsItContinues) {
  Create("a", 53);
  SuspendSpec spec = Spec("a", 1, 37, 5, "op2");
  ASSERT_OK(Suspend(store_, spec, 2));
  ExpectRows("a", 42, 37, 1, 2);
}

TEST_P(SessionStoreConformance, RewindingTwiceAndForwardSharesNothingWrongly) {
  Create("a", 40);
  ASSERT_OK(store_->Rewind({Key("a"), 1, "r1"}, 35));
  ASSERT_OK(store_->Rewind({Key("a"), 2, "r2"}, 20));
  EXPECT_THAT(store_->Rewind({Key("a"), 3, "r3"}, 21),
              HasCode(absl::StatusCode::kOutOfRange));
  ExpectRows("a", 20, 20, 1, 1);
}

TEST_P(SessionStoreConformance, AForkIsItsOwnSession) {
  Create("parent", 37);
  ASSERT_OK_AND_ASSIGN(
      const SessionInfo fork,
      store_->Fork({Key("parent"), 0, {Key("child"), 0, "fork"}, 21}));
  EXPECT_EQ(fork.key, Key("child"));
  EXPECT_EQ(fork.n_tokens, 21);
  EXPECT_EQ(fork.version, 1);
  SuspendSpec spec = Spec("child", 1, 21, 30, "grow");
  spec.new_tokens = Tokens(21, 30, 5);
  ASSERT_OK(Suspend(store_, spec, 2));
  ExpectRows("child", 51, 21, 1, 2);
  ExpectRows("parent", 37, 0, 1, 1);
  // The parent goes, the child stays whole.
  ASSERT_OK(store_->Erase({Key("parent"), 1, "rm"}));
  ASSERT_OK(Settle(store_));
  ExpectRows("child", 51, 21, 1, 2);
  EXPECT_THAT(store_->Describe(Key("parent")),
              HasCode(absl::StatusCode::kNotFound));
}

TEST_P(SessionStoreConformance, AForkSharesAttachmentsAtTheSameCutOnly) {
  ASSERT_OK(Suspend(store_, Spec("p", 0, 0, 20, "op"), 1,
                    {Bytes(AttachmentKind::kWitness, "w"),
                     Bytes(AttachmentKind::kClientState, "c")}));
  ASSERT_OK(store_->Fork({Key("p"), 0, {Key("whole"), 0, "f1"}, {}}));
  ASSERT_OK(store_->Fork({Key("p"), 0, {Key("cut"), 0, "f2"}, 19}));
  ASSERT_OK(store_->Erase({Key("p"), 1, "rm"}));
  ASSERT_OK(Settle(store_));
  ASSERT_OK_AND_ASSIGN(const Content whole,
                       ReadAll(store_, Key("whole"), SmallLayout()));
  EXPECT_EQ(whole.attachments[0],
            Bytes(AttachmentKind::kWitness, "w").sections);
  EXPECT_EQ(whole.attachments[1],
            Bytes(AttachmentKind::kClientState, "c").sections);
  ASSERT_OK_AND_ASSIGN(const Content cut,
                       ReadAll(store_, Key("cut"), SmallLayout()));
  EXPECT_THAT(cut.attachments[0], IsEmpty());
  EXPECT_THAT(cut.attachments[1], IsEmpty());
}

TEST_P(SessionStoreConformance, AStaleWriterIsToldWhoHoldsTheSession) {
  Create("a", 5);
  ASSERT_OK(Suspend(store_, Spec("a", 1, 5, 5, "second"), 1));
  for (const uint64_t stale : {0, 1, 3}) {
    SuspendSpec spec = Spec("a", stale, 0, 5, "stale");
    EXPECT_THAT(store_->Begin(spec).status(),
                HasStatus(absl::StatusCode::kAborted, "holder of second"));
  }
  EXPECT_THAT(store_->Rewind({Key("a"), 1, "r"}, 1),
              HasCode(absl::StatusCode::kAborted));
  EXPECT_THAT(store_->Erase({Key("a"), 1, "e"}),
              HasCode(absl::StatusCode::kAborted));
  EXPECT_THAT(store_->Begin(Spec("nobody", 4, 0, 5, "x")).status(),
              HasCode(absl::StatusCode::kNotFound));
}

TEST_P(SessionStoreConformance, OfTwoTicketsTheFirstCommitWins) {
  Create("a", 5);
  SuspendSpec first = Spec("a", 1, 5, 20, "first");
  SuspendSpec second = Spec("a", 1, 5, 30, "second");
  ASSERT_OK_AND_ASSIGN(const auto t1, store_->Begin(first));
  ASSERT_OK_AND_ASSIGN(const auto t2, store_->Begin(second));
  ASSERT_OK(PutAll(t1.ticket.get(), first.layout, 2));
  ASSERT_OK(PutAll(t2.ticket.get(), second.layout, 3));
  ASSERT_OK(t2.ticket->Commit({}));
  EXPECT_THAT(t1.ticket->Commit({}),
              HasStatus(absl::StatusCode::kAborted, "holder of second"));
  ExpectRows("a", 35, 5, 1, 3);
}

TEST_P(SessionStoreConformance, ARepeatedOperationReturnsItsReceipt) {
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt first,
                       Suspend(store_, Spec("a", 0, 0, 30, "op1"), 1));
  ASSERT_OK_AND_ASSIGN(const BeginResult again,
                       store_->Begin(Spec("a", 0, 0, 30, "op1")));
  ASSERT_TRUE(again.receipt.has_value());
  EXPECT_EQ(again.ticket, nullptr);
  EXPECT_EQ(again.receipt->version, first.version);
  EXPECT_EQ(again.receipt->row_bytes_received, first.row_bytes_received);
  // Sixteen operations later it is judged by its version alone.
  for (uint64_t v = 1; v <= 16; ++v) {
    ASSERT_OK(Suspend(store_,
                      Spec("a", v, 29 + v, 1, "later" + std::to_string(v)), 1));
  }
  EXPECT_THAT(store_->Begin(Spec("a", 0, 0, 30, "op1")).status(),
              HasCode(absl::StatusCode::kAborted));
  ASSERT_OK_AND_ASSIGN(const SessionInfo fork,
                       store_->Fork({Key("a"), 0, {Key("b"), 0, "f"}, 3}));
  ASSERT_OK_AND_ASSIGN(const SessionInfo fork_again,
                       store_->Fork({Key("a"), 0, {Key("b"), 0, "f"}, 3}));
  EXPECT_EQ(fork.version, fork_again.version);
  ASSERT_OK_AND_ASSIGN(const uint64_t erased,
                       store_->Erase({Key("b"), 1, "e"}));
  ASSERT_OK_AND_ASSIGN(const uint64_t erased_again,
                       store_->Erase({Key("b"), 1, "e"}));
  EXPECT_EQ(erased, erased_again);
}

TEST_P(SessionStoreConformance, VerbsThatShareAnIdEachKeepTheirOperation) {
  Create("p", 30);
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt created,
                       Suspend(store_, Spec("a", 0, 0, 20, "same"), 1));
  // Repeated with the version that a second run would pass at.
  for (const uint64_t version : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(
        const SessionInfo info,
        store_->Rewind({Key("a"), version, "same"}, 18 - version));
    EXPECT_EQ(info.version, 2);
    EXPECT_EQ(info.n_tokens, 17);
  }
  for (const uint64_t version : {2, 3}) {
    ASSERT_OK_AND_ASSIGN(
        const SessionInfo info,
        store_->Fork({Key("p"), 0, {Key("a"), version, "same"}, 12 - version}));
    EXPECT_EQ(info.version, 3);
    EXPECT_EQ(info.n_tokens, 10);
  }
  ASSERT_OK_AND_ASSIGN(const BeginResult again,
                       store_->Begin(Spec("a", 3, 10, 5, "same")));
  ASSERT_TRUE(again.receipt.has_value());
  EXPECT_EQ(again.receipt->version, created.version);
  ASSERT_OK(store_->Erase({Key("a"), 3, "same"}));
  ASSERT_OK(store_->Erase({Key("a"), 3, "same"}));
}

TEST_P(SessionStoreConformance, ARecreatedSessionNeverReusesAVersion) {
  Create("a", 5);
  ASSERT_OK(Suspend(store_, Spec("a", 1, 5, 5, "second"), 1));
  ASSERT_OK(store_->Erase({Key("a"), 2, "rm"}));
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt receipt,
                       Suspend(store_, Spec("a", 0, 0, 4, "again"), 2));
  EXPECT_GT(receipt.version, 2);
  EXPECT_THAT(store_->Begin(Spec("a", 2, 4, 1, "stale")).status(),
              HasCode(absl::StatusCode::kAborted));
  ExpectRows("a", 4, 0, 1, 2);
}

TEST_P(SessionStoreConformance, AnAbandonedTicketChangesNothing) {
  Create("a", 40);
  for (const bool put : {false, true}) {
    SuspendSpec spec = Spec("a", 1, 40, 100, "gone");
    ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
    if (put) {
      ASSERT_OK(PutAll(begin.ticket.get(), spec.layout, 2));
    }
  }
  ExpectRows("a", 40, 0, 1, 1);
  ASSERT_OK(Settle(store_));
  EXPECT_EQ(store_->Stats().open_tickets, 0);
  EXPECT_EQ(store_->Stats().reserved_bytes, 0);
  EXPECT_EQ(store_->Stats().staged_records, 0);
}

TEST_P(SessionStoreConformance, ACommitWithMissingRowsIsRefused) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "op");
  ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
  for (uint32_t slot = 0; slot < 3; ++slot) {
    const RowRange rows = begin.ticket->wanted(slot);
    const auto bytes = Rows(1, slot, rows, spec.layout.slots[slot].row_bytes);
    ASSERT_OK(begin.ticket->Put(Piece(slot, rows, bytes), bytes));
  }
  EXPECT_THAT(begin.ticket->Commit({}),
              HasStatus(absl::StatusCode::kFailedPrecondition, "missing"));
  EXPECT_THAT(store_->Describe(Key("a")), HasCode(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace torpor::store
