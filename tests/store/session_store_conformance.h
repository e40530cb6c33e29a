// SPDX-License-Identifier: Apache-2.0
//
// What every SessionStore promises. Instantiate with a factory:
//   INSTANTIATE_TEST_SUITE_P(Lmdb, SessionStoreConformance, Values(...));

#ifndef TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_
#define TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/store/store_fixture.h"

namespace torpor::store {

using ::testing::ElementsAre;
using testing::HasCode;
using testing::HasStatus;
using ::testing::IsEmpty;

// A store and whatever must outlive it. `clock` is what the store reads.
struct StoreUnderTest {
  std::shared_ptr<void> keep_alive;
  std::unique_ptr<SessionStore> store;
};
using StoreFactory = std::function<StoreUnderTest(Clock clock)>;

class SessionStoreConformance : public ::testing::TestWithParam<StoreFactory> {
 protected:
  void SetUp() override {
    under_test_ = GetParam()([this] { return now_us_; });
    store_ = under_test_.store.get();
    ASSERT_NE(store_, nullptr);
  }

  // Creates session `id` of `n` tokens, every row by writer 1.
  void Create(const std::string& id, uint64_t n) {
    ASSERT_OK(Suspend(store_, Spec(id, 0, 0, n, "create"), 1));
  }

  // Rows [0, first) by `before`, the others by `after`, all of them exact.
  void ExpectRows(const std::string& id, uint64_t n_tokens, uint64_t first,
                  uint64_t before, uint64_t after) {
    const RecordLayout layout = SmallLayout();
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store_, Key(id), layout));
    ASSERT_EQ(content.tokens.ids.size(), n_tokens);
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const SlotSpec& spec = layout.slots[slot];
      const uint64_t kept = RowsOf(spec, first);
      auto expected = Rows(before, slot, {0, kept}, spec.row_bytes);
      const auto tail =
          Rows(after, slot, {kept, RowsOf(spec, n_tokens)}, spec.row_bytes);
      expected.insert(expected.end(), tail.begin(), tail.end());
      EXPECT_EQ(content.rows[slot], expected) << "slot " << slot;
    }
  }

  int64_t now_us_ = 1'700'000'000'000'000;
  StoreUnderTest under_test_;
  SessionStore* store_ = nullptr;
};

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

TEST_P(SessionStoreConformance, BadRowsAreRefusedAndTheTicketGoesOn) {
  SuspendSpec spec = Spec("a", 0, 0, 20, "op");
  ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
  SuspendTicket* ticket = begin.ticket.get();
  const auto bytes = Rows(1, 0, {0, 20}, 24);
  const RowPiece good = Piece(0, {0, 20}, bytes);
  const auto with = [&](auto change) {
    RowPiece piece = good;
    change(piece);
    return ticket->Put(piece, bytes);
  };
  using P = RowPiece;
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(with([](P& p) { p.slot = 4; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.n_rows = 21; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.n_rows = 19; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.n_rows = 0; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.row_begin = 1; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.row_begin = UINT64_MAX - 3; }),
              HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.shard = 1; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.n_shards = 2; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.n_shards = 0; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.snapshot = true; }), HasCode(kInvalid));
  EXPECT_THAT(with([](P& p) { p.checksum ^= 1; }),
              HasCode(absl::StatusCode::kDataLoss));
  ASSERT_OK(PutAll(ticket, spec.layout, 1));
  ASSERT_OK(ticket->Commit({}));
  ExpectRows("a", 20, 0, 1, 1);
}

TEST_P(SessionStoreConformance, BadSpecsNameWhatIsWrong) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto with = [&](auto change) {
    SuspendSpec spec = Spec("a", 0, 0, 20, "op");
    change(spec);
    return store_->Begin(std::move(spec)).status();
  };
  using S = SuspendSpec;
  EXPECT_THAT(with([](S& s) { s.session.id = ""; }),
              HasStatus(kInvalid, "got 0 bytes"));
  EXPECT_THAT(with([](S& s) { s.session.id = std::string(257, 'x'); }),
              HasStatus(kInvalid, "got 257 bytes"));
  EXPECT_THAT(with([](S& s) { s.operation_id = ""; }),
              HasStatus(kInvalid, "operation id"));
  EXPECT_THAT(with([](S& s) { s.operation_id = std::string(65, 'x'); }),
              HasStatus(kInvalid, "operation id"));
  EXPECT_THAT(with([](S& s) {
                s.new_tokens.ids.clear();
                s.kv_len = 0;
              }),
              HasStatus(kInvalid, "tokens"));
  EXPECT_THAT(with([](S& s) { s.kv_len = 21; }), HasStatus(kInvalid, "kv_len"));
  EXPECT_THAT(with([](S& s) { s.layout.block_size = 8; }),
              HasStatus(kInvalid, "block size"));
  EXPECT_THAT(with([](S& s) { s.layout.slots[2].tokens_per_row = 3; }),
              HasStatus(kInvalid, "slot 2"));
  EXPECT_THAT(with([](S& s) { s.layout.slots[1].row_bytes = 0; }),
              HasStatus(kInvalid, "slot 1"));
  EXPECT_THAT(with([](S& s) { s.tokens_kept = 1; }),
              HasStatus(kInvalid, "tokens kept"));
  EXPECT_THAT(with([](S& s) {
                s.floors = {{5, 5, 0}};
              }),
              HasStatus(kInvalid, "floor"));
  EXPECT_THAT(with([](S& s) {
                s.new_tokens.spans = {{5, 5, "k", false}};
              }),
              HasStatus(kInvalid, "span"));
  EXPECT_THAT(with([](S& s) {
                s.new_tokens.spans = {{5, 21, "k", false}};
              }),
              HasStatus(kInvalid, "span"));
  EXPECT_THAT(with([](S& s) {
                s.new_tokens.spans = {{5, 9, "", false}};
              }),
              HasStatus(kInvalid, "extra key"));
  // Ids are opaque: slashes, dots and zero bytes are only bytes.
  for (const std::string& id :
       {std::string("../x"), std::string("/etc/passwd"), std::string("a\0b", 3),
        std::string("..%2f"), std::string(256, '\xff')}) {
    Create(id, 3);
    ExpectRows(id, 3, 0, 1, 1);
  }
}

TEST_P(SessionStoreConformance, AnotherFingerprintIsRefused) {
  Create("a", 10);
  SuspendSpec spec = Spec("a", 1, 10, 5, "op2");
  spec.layout.fingerprint[0] ^= 1;
  EXPECT_THAT(store_->Begin(spec).status(),
              HasStatus(absl::StatusCode::kFailedPrecondition, "fingerprint"));
  SuspendSpec other = Spec("a", 1, 10, 5, "op3");
  other.layout.block_size = 32;
  EXPECT_THAT(store_->Begin(other).status(),
              HasCode(absl::StatusCode::kFailedPrecondition));
}

TEST_P(SessionStoreConformance, ShardsFromSeveralThreadsMakeWholeRows) {
  SuspendSpec spec = Spec("a", 0, 0, 100, "op");
  spec.n_shards = 4;
  ASSERT_OK_AND_ASSIGN(const auto begin, store_->Begin(spec));
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (uint32_t shard = 0; shard < 4; ++shard) {
    threads.emplace_back([&, shard] {
      // Block-major, as the contract wants, in pieces that cross block edges.
      for (uint64_t token = 0; token < 100; token += 20) {
        for (uint32_t slot = 0; slot < spec.layout.slots.size(); ++slot) {
          const SlotSpec& s = spec.layout.slots[slot];
          const uint64_t part = s.row_bytes / 4;
          const RowRange rows{token / s.tokens_per_row,
                              (token + 20) / s.tokens_per_row};
          std::vector<uint8_t> bytes;
          for (uint64_t r = rows.begin; r < rows.end; ++r) {
            const auto whole = RowBytes(1, slot, r, s.row_bytes);
            bytes.insert(bytes.end(), whole.begin() + shard * part,
                         whole.begin() + (shard + 1) * part);
          }
          RowPiece piece = Piece(slot, rows, bytes);
          piece.shard = shard;
          piece.n_shards = 4;
          // Whole pieces may be repeated.
          if (!begin.ticket->Put(piece, bytes).ok()) ++failures;
          if (!begin.ticket->Put(piece, bytes).ok()) ++failures;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failures, 0);
  ASSERT_OK(begin.ticket->Commit({}));
  ExpectRows("a", 100, 0, 1, 1);
}

TEST_P(SessionStoreConformance, ASnapshotReadsBackAndGoesWithItsCut) {
  SuspendSpec spec = Spec("a", 0, 0, 40, "op");
  spec.snapshot = {{2, 100, {33, 40}}, {5, 300'000, {30, 40}}};
  ASSERT_OK(Suspend(store_, spec, 1));
  {
    ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("a")));
    EXPECT_EQ(lease->info().snapshot_bytes, 7 * 100 + 10 * 300'000);
    std::vector<uint8_t> bytes(7 * 100);
    ASSERT_OK(lease->ReadSnapshot(2, {33, 40}, bytes));
    EXPECT_EQ(bytes, Rows(1, 1002, {33, 40}, 100));
    bytes.resize(5 * 300'000);
    ASSERT_OK(lease->ReadSnapshot(5, {32, 37}, bytes));
    EXPECT_EQ(bytes, Rows(1, 1005, {32, 37}, 300'000));
    EXPECT_THAT(lease->ReadSnapshot(3, {0, 0}, {}),
                HasCode(absl::StatusCode::kOutOfRange));
  }
  // New rows: the old window is no window of the new cut.
  ASSERT_OK(Suspend(store_, Spec("a", 1, 40, 1, "op2"), 1));
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("a")));
  EXPECT_EQ(info.snapshot_bytes, 0);
}

TEST_P(SessionStoreConformance, WithoutNewRowsTheFirstWitnessStays) {
  ASSERT_OK(Suspend(store_, Spec("a", 0, 0, 20, "op1"), 1,
                    {Bytes(AttachmentKind::kWitness, "first"),
                     Bytes(AttachmentKind::kClientState, "c1")}));
  ASSERT_OK(Suspend(store_, Spec("a", 1, 20, 0, "op2"), 1,
                    {Bytes(AttachmentKind::kWitness, "second"),
                     Bytes(AttachmentKind::kClientState, "c2")}));
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_, Key("a"), SmallLayout()));
  EXPECT_EQ(content.attachments[0],
            Bytes(AttachmentKind::kWitness, "first").sections);
  EXPECT_EQ(content.attachments[1],
            Bytes(AttachmentKind::kClientState, "c2").sections);
  // A wake at the tip without new rows says nothing of the first computation.
  SuspendSpec created = Spec("b", 0, 0, 20, "op1");
  ASSERT_OK(Suspend(store_, created, 1));
  SuspendSpec woken = Spec("b", 1, 20, 0, "op2");
  woken.floors = {{20, 12, 0}};
  ASSERT_OK(Suspend(store_, woken, 1, {Bytes(AttachmentKind::kWitness, "w")}));
  ASSERT_OK_AND_ASSIGN(const Content b,
                       ReadAll(store_, Key("b"), SmallLayout()));
  EXPECT_THAT(b.attachments[0], IsEmpty());
  EXPECT_THAT(b.floors, IsEmpty());
}

TEST_P(SessionStoreConformance, FloorsAndProvenanceFollowTheirRows) {
  Create("a", 40);
  SuspendSpec bounded = Spec("a", 1, 40, 30, "op2");
  bounded.floors = {{40, 32, 0}};
  bounded.provenance = {{40, 70, Provenance::kApproximate}};
  ASSERT_OK(Suspend(store_, bounded, 1));
  SuspendSpec again = Spec("a", 2, 70, 10, "op3");
  again.floors = {{70, 60, 3}};
  again.provenance = {};
  ASSERT_OK(Suspend(store_, again, 1));
  {
    ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("a")));
    ASSERT_OK_AND_ASSIGN(const auto all, lease->Floors(0, 80));
    EXPECT_THAT(all, ElementsAre(Floor{40, 32, 0}, Floor{70, 60, 3}));
    ASSERT_OK_AND_ASSIGN(const auto late, lease->Floors(41, 71));
    EXPECT_THAT(late, ElementsAre(Floor{70, 60, 3}));
    ASSERT_OK_AND_ASSIGN(const auto none, lease->Floors(41, 70));
    EXPECT_THAT(none, IsEmpty());
    EXPECT_THAT(lease->info().provenance,
                ElementsAre(ProvenanceRange{0, 40, Provenance::kExact},
                            ProvenanceRange{40, 70, Provenance::kApproximate},
                            ProvenanceRange{70, 80, Provenance::kUnknown}));
  }
  // A cut at the wake itself voids it; one row later it binds.
  ASSERT_OK(store_->Fork({Key("a"), 0, {Key("at"), 0, "f"}, 40}));
  ASSERT_OK(store_->Fork({Key("a"), 0, {Key("after"), 0, "f"}, 41}));
  ASSERT_OK_AND_ASSIGN(const Content at,
                       ReadAll(store_, Key("at"), SmallLayout()));
  EXPECT_THAT(at.floors, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Content after,
                       ReadAll(store_, Key("after"), SmallLayout()));
  EXPECT_THAT(after.floors, ElementsAre(Floor{40, 32, 0}));
  // Continued from the cut, by someone who never woke: void for good.
  ASSERT_OK(Suspend(store_, Spec("at", 1, 40, 10, "on"), 2));
  ASSERT_OK_AND_ASSIGN(const Content on,
                       ReadAll(store_, Key("at"), SmallLayout()));
  EXPECT_THAT(on.floors, IsEmpty());
  EXPECT_THAT(store_
                  ->Begin([] {
                    SuspendSpec s = Spec("a", 3, 80, 1, "low");
                    s.floors = {{79, 70, 0}};
                    return s;
                  }())
                  .status(),
              HasStatus(absl::StatusCode::kInvalidArgument, "floor"));
}

TEST_P(SessionStoreConformance, ExtraKeysComeBackAndTwoWaySpansAreNeverCut) {
  SuspendSpec spec = Spec("a", 0, 0, 50, "op");
  spec.new_tokens.spans = {{0, 10, "adapter", false},
                           {12, 40, "image", true},
                           {41, 50, "adapter", false}};
  ASSERT_OK(Suspend(store_, spec, 1));
  SuspendSpec more = Spec("a", 1, 50, 10, "op2");
  more.new_tokens.spans = {{50, 55, "adapter", false}};
  ASSERT_OK(Suspend(store_, more, 1));
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_, Key("a"), SmallLayout()));
  EXPECT_THAT(content.tokens.spans,
              ElementsAre(ExtraKeySpan{0, 10, "adapter", false},
                          ExtraKeySpan{12, 40, "image", true},
                          ExtraKeySpan{41, 55, "adapter", false}));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  for (const uint64_t inside : {13, 16, 32, 39}) {
    EXPECT_THAT(store_->Rewind({Key("a"), 2, "r"}, inside),
                HasStatus(kInvalid, "bidirectional"));
    EXPECT_THAT(store_->Fork({Key("a"), 0, {Key("b"), 0, "f"}, inside}),
                HasStatus(kInvalid, "bidirectional"));
  }
  ASSERT_OK(store_->Fork({Key("a"), 0, {Key("b"), 0, "f"}, 40}));
  ASSERT_OK(store_->Rewind({Key("a"), 2, "r"}, 12));
  ASSERT_OK(store_->Rewind({Key("a"), 3, "r2"}, 5));
}

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

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_
