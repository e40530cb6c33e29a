// SPDX-License-Identifier: Apache-2.0
//
// What one suspend brings: rows, shards, snapshots, witnesses, floors and
// spans, and what is refused.

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/store/session_store_conformance.h"

namespace torpor::store {
namespace {

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

}  // namespace
}  // namespace torpor::store
