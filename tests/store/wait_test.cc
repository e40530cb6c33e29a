// SPDX-License-Identifier: Apache-2.0
//
// Rows that run ahead: they wait for the oldest incomplete block, are told
// what is missing when it does not come, and wake when the suspend is
// cancelled or ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

using ::testing::AllOf;
using testing::HasCode;
using ::testing::HasSubstr;

constexpr uint64_t kTokens = 640;  // 40 blocks of about 1.5 KB

class WaitTest : public ::testing::Test {
 protected:
  void Open(std::chrono::milliseconds put_timeout) {
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.put_timeout = put_timeout;
    // Four blocks may run ahead.
    options.ahead_bytes = 6 * 1024;
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
    spec_ = Spec("a", 0, 0, kTokens, "op");
    spec_.n_shards = 2;
    ASSERT_OK_AND_ASSIGN(begin_, store_->Begin(spec_));
  }

  // Rows of a block's slot, or of one shard of them.
  absl::Status Put(uint64_t block, uint32_t slot, uint32_t shard = 0,
                   uint32_t n_shards = 1) {
    const SlotSpec& s = spec_.layout.slots[slot];
    const uint64_t n = 16 / s.tokens_per_row;
    const RowRange rows{block * n, (block + 1) * n};
    const uint64_t part = s.row_bytes / n_shards;
    std::vector<uint8_t> bytes;
    for (uint64_t row = rows.begin; row < rows.end; ++row) {
      const auto whole = RowBytes(1, slot, row, s.row_bytes);
      bytes.insert(bytes.end(), whole.begin() + shard * part,
                   whole.begin() + (shard + 1) * part);
    }
    RowPiece piece = Piece(slot, rows, bytes);
    piece.shard = shard;
    piece.n_shards = n_shards;
    return begin_.ticket->Put(piece, bytes);
  }
  // Slot 2 comes in two shards, the others whole.
  absl::Status PutBlock(uint64_t block) {
    TORPOR_RETURN_IF_ERROR(Put(block, 0));
    TORPOR_RETURN_IF_ERROR(Put(block, 1));
    TORPOR_RETURN_IF_ERROR(Put(block, 2, 0, 2));
    TORPOR_RETURN_IF_ERROR(Put(block, 2, 1, 2));
    return Put(block, 3);
  }

  testing::TempDir dir_;
  std::unique_ptr<SessionStore> store_;
  SuspendSpec spec_;
  BeginResult begin_;
};

TEST_F(WaitTest, RowsFarAheadOfAMissingBlockFailNamingIt) {
  Open(std::chrono::milliseconds(20));
  ASSERT_OK(PutBlock(0));
  ASSERT_OK(PutBlock(1));
  // Block 2 lacks shard 1 of slot 2.
  ASSERT_OK(Put(2, 0));
  ASSERT_OK(Put(2, 1));
  ASSERT_OK(Put(2, 2, 0, 2));
  ASSERT_OK(Put(2, 3));
  // The next few may go ahead of it, the far ones may not.
  ASSERT_OK(PutBlock(3));
  ASSERT_OK(PutBlock(4));
  const absl::Status status = PutBlock(39);
  EXPECT_THAT(status, HasCode(absl::StatusCode::kFailedPrecondition));
  // First of all what holds up the others: a row of it, and the block's token.
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("missing: slot 2 shard 1"),
                    HasSubstr("rows from 16"), HasSubstr("tokens from 32")));
}

TEST_F(WaitTest, ATimeoutLeavesTheTicketUsable) {
  Open(std::chrono::milliseconds(20));
  EXPECT_THAT(PutBlock(39), HasCode(absl::StatusCode::kFailedPrecondition));
  for (uint64_t block = 0; block < 40; ++block) ASSERT_OK(PutBlock(block));
  ASSERT_OK(begin_.ticket->Commit({}));
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_.get(), Key("a"), SmallLayout()));
  EXPECT_EQ(content.rows[0], Rows(1, 0, {0, kTokens}, 24));
}

TEST_F(WaitTest, AnotherTicketIsNotHeldUp) {
  Open(std::chrono::milliseconds(60'000));
  std::thread waiting([&] { (void)PutBlock(39); });
  ASSERT_OK(Suspend(store_.get(), Spec("b", 0, 0, kTokens, "op"), 2));
  begin_.ticket->Cancel();
  waiting.join();
}

TEST_F(WaitTest, RowsWaitForTheOldestBlockAndGoOn) {
  Open(std::chrono::milliseconds(60'000));
  std::atomic<bool> through = false;
  absl::Status status;
  std::thread waiting([&] {
    status = PutBlock(20);
    through = true;
  });
  for (uint64_t block = 0; block < 10; ++block) ASSERT_OK(PutBlock(block));
  // Blocks 10 and on are missing: 20 is too far ahead still.
  EXPECT_FALSE(through);
  for (uint64_t block = 10; block < 20; ++block) ASSERT_OK(PutBlock(block));
  waiting.join();
  EXPECT_OK(status);
  for (uint64_t block = 21; block < 40; ++block) ASSERT_OK(PutBlock(block));
  ASSERT_OK(begin_.ticket->Commit({}));
}

TEST_F(WaitTest, CancelWakesAWaitingPut) {
  Open(std::chrono::milliseconds(600'000));
  absl::Status status;
  std::thread waiting([&] { status = PutBlock(39); });
  // Whether it waits already or not, it ends long before its timeout.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  begin_.ticket->Cancel();
  waiting.join();
  EXPECT_THAT(status, HasCode(absl::StatusCode::kCancelled));
  EXPECT_THAT(PutBlock(0), HasCode(absl::StatusCode::kCancelled));
  EXPECT_THAT(begin_.ticket->Commit({}), HasCode(absl::StatusCode::kCancelled));
  begin_ = {};
  ExpectNothingLeaks(store_.get());
}

// The last block has no rows to wait for: its tokens are pending, or close no
// group yet. Nothing can come that would let it wait for the others.
TEST_F(WaitTest, ALastBlockWithoutRowsDoesNotHoldUpBegin) {
  Open(std::chrono::milliseconds(20));
  SuspendSpec pending = Spec("pending", 0, 0, kTokens + 5, "op");
  pending.kv_len = kTokens;
  pending.provenance = {};
  EXPECT_OK(Suspend(store_.get(), pending, 1));
  SuspendSpec open_group = Spec("open group", 0, 0, kTokens + 3, "op");
  open_group.layout.fingerprint.fill(1);
  open_group.layout.slots = {{200, 4}, {200, 8}};
  EXPECT_OK(Suspend(store_.get(), open_group, 1));
  SuspendSpec no_rows = Spec("no rows", 0, 0, 5, "op");
  no_rows.kv_len = 0;
  no_rows.provenance = {};
  EXPECT_OK(Suspend(store_.get(), no_rows, 1));
}

// Block after block from many threads at once, in any order inside a few
// blocks: nothing waits for ever.
TEST_F(WaitTest, ManyStreamsInOrderNeverWaitForEver) {
  Open(std::chrono::milliseconds(600'000));
  std::vector<std::thread> streams;
  std::atomic<int> failures = 0;
  for (uint32_t slot = 0; slot < 4; ++slot) {
    for (uint32_t shard = 0; shard < 2; ++shard) {
      streams.emplace_back([&, slot, shard] {
        for (uint64_t block = 0; block < 40; ++block) {
          if (!Put(block, slot, shard, 2).ok()) ++failures;
        }
      });
    }
  }
  for (std::thread& stream : streams) stream.join();
  EXPECT_EQ(failures, 0);
  ASSERT_OK(begin_.ticket->Commit({}));
  ASSERT_OK_AND_ASSIGN(const Content content,
                       ReadAll(store_.get(), Key("a"), SmallLayout()));
  for (uint32_t slot = 0; slot < 4; ++slot) {
    const SlotSpec& s = spec_.layout.slots[slot];
    EXPECT_EQ(content.rows[slot],
              Rows(1, slot, {0, RowsOf(s, kTokens)}, s.row_bytes));
  }
}

}  // namespace
}  // namespace torpor::store
