// SPDX-License-Identifier: Apache-2.0
//
// What a verb costs on the disk, in bytes that really went to data.mdb: a
// delta suspend writes its delta and its tail, a fork writes next to nothing,
// and a session takes little more than its rows.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>

#include "tests/store/lmdb_fixture.h"
#include "tests/testing/random.h"
#include "tests/testing/shim.h"

namespace torpor::store {
namespace {

using testing::Shim;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// 890 bytes a token: compressed rows and index keys, pooled by 2 in three
// layers and unpooled in one.
RecordLayout PooledLayout() {
  RecordLayout layout;
  layout.fingerprint.fill(0x89);
  layout.block_size = 1024;
  for (int i = 0; i < 3; ++i) {
    layout.slots.push_back({288, 2});
    layout.slots.push_back({68, 2});
  }
  layout.slots.push_back({288, 1});
  layout.slots.push_back({68, 1});
  return layout;
}

// 3,072 bytes a token: K and V of three full layers.
RecordLayout FullLayout() {
  RecordLayout layout;
  layout.fingerprint.fill(0x30);
  layout.block_size = 256;
  layout.slots.assign(6, {512, 1});
  return layout;
}

uint64_t CompactBytes(const RecordLayout& layout, uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const SlotSpec& slot : layout.slots) {
    bytes += RowsOf(slot, n_tokens) * slot.row_bytes;
  }
  return bytes;
}

// Row contents are noise out of a pool: making them must cost little.
std::span<const uint8_t> Noise(uint64_t place, size_t bytes) {
  constexpr size_t kPool = 4 * kMiB;
  static const auto* const pool = [] {
    auto* const out = new std::vector<uint8_t>(kPool);
    testing::Random().Fill(*out);
    return out;
  }();
  return std::span(*pool).subspan(place * 4099 % (kPool - bytes), bytes);
}

struct Cost {
  SuspendReceipt receipt;
  // By all writes to data.mdb, from Begin to the end of Commit.
  uint64_t written = 0;
};

absl::StatusOr<Cost> SuspendNoise(SessionStore* store, const std::string& id,
                                  const RecordLayout& layout, uint64_t version,
                                  uint64_t kept, uint64_t n_new,
                                  std::vector<Attachment> attachments = {}) {
  SuspendSpec spec =
      Spec(id, version, kept, n_new, "op" + std::to_string(version));
  spec.layout = layout;
  Shim::Reset();
  TORPOR_ASSIGN_OR_RETURN(const BeginResult begin, store->Begin(spec));
  const uint64_t end = kept + n_new;
  for (uint64_t at = kept / layout.block_size * layout.block_size; at < end;
       at += layout.block_size) {
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const SlotSpec& s = layout.slots[slot];
      const RowRange wanted = begin.ticket->wanted(slot);
      const RowRange rows{
          std::max(at / s.tokens_per_row, wanted.begin),
          std::min((at + layout.block_size) / s.tokens_per_row, wanted.end)};
      if (rows.begin >= rows.end) continue;
      const auto bytes =
          Noise(rows.begin * 16 + slot, rows.size() * s.row_bytes);
      TORPOR_RETURN_IF_ERROR(
          begin.ticket->Put(Piece(slot, rows, bytes), bytes));
    }
  }
  Cost cost;
  TORPOR_ASSIGN_OR_RETURN(cost.receipt,
                          begin.ticket->Commit(std::move(attachments)));
  cost.written = Shim::data_bytes();
  return cost;
}

LmdbStoreOptions BigStore(const std::string& directory) {
  LmdbStoreOptions options = SmallStore(directory);
  options.map_bytes = uint64_t{4} << 30;
  options.max_bytes = uint64_t{3} << 30;
  return options;
}

// One big session for the tests that need one: more than 1 GiB and a million
// tokens; a quarter of that under a sanitizer or where the disk is small.
class BigSessionTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new testing::TempDir;
    struct statvfs fs;
    ASSERT_EQ(statvfs(dir_->path().c_str(), &fs), 0);
    bool small = uint64_t{fs.f_bavail} * fs.f_frsize < 4096 * kMiB;
#ifdef TORPOR_SANITIZED
    small = true;
#endif
    // 1 GiB / 890 bytes, and 52 tokens into a block.
    n_tokens_ = small ? 302'132 : 1'206'452;
    auto store = LmdbSessionStore::Open(BigStore(dir_->path()));
    ASSERT_OK(store);
    store_ = store->release();
    ASSERT_OK(SuspendNoise(store_, "big", PooledLayout(), 0, 0, n_tokens_));
    version_ = 1;
  }
  static void TearDownTestSuite() {
    delete store_;
    delete dir_;
  }

  // 1.05 x (new rows + rows of the tail that the new one must hold + witness
  // + client state) + 64 KiB.
  static void ExpectDeltaCost(uint64_t n_new, uint64_t witness_bytes,
                              uint64_t client_state_bytes) {
    const RecordLayout layout = PooledLayout();
    const uint64_t tail =
        CompactBytes(layout, n_tokens_) -
        CompactBytes(layout, n_tokens_ / layout.block_size * layout.block_size);
    const uint64_t new_rows = CompactBytes(layout, n_tokens_ + n_new) -
                              CompactBytes(layout, n_tokens_);
    ASSERT_OK_AND_ASSIGN(
        const Cost cost,
        SuspendNoise(
            store_, "big", layout, version_, n_tokens_, n_new,
            {Bytes(AttachmentKind::kWitness, std::string(witness_bytes, 'w')),
             Bytes(AttachmentKind::kClientState,
                   std::string(client_state_bytes, 'c'))}));
    ++version_;
    n_tokens_ += n_new;
    EXPECT_EQ(cost.receipt.row_bytes_received, new_rows);
    EXPECT_EQ(cost.receipt.row_bytes_copied, tail);
    const uint64_t useful =
        new_rows + tail + witness_bytes + client_state_bytes;
    EXPECT_LE(cost.written, useful * 105 / 100 + 64 * 1024)
        << "useful bytes: " << useful;
    // It cannot have written less: then the shim saw nothing.
    EXPECT_GE(cost.written, useful);
  }

  static testing::TempDir* dir_;
  static SessionStore* store_;
  static uint64_t n_tokens_;
  static uint64_t version_;
};
testing::TempDir* BigSessionTest::dir_ = nullptr;
SessionStore* BigSessionTest::store_ = nullptr;
uint64_t BigSessionTest::n_tokens_ = 0;
uint64_t BigSessionTest::version_ = 0;

TEST_F(BigSessionTest, AHundredTokensMoreWriteTheTailAndTheDelta) {
  ExpectDeltaCost(100, 20'000, 4096);
  // With a nearly full tail, and across the end of a block.
  ExpectDeltaCost(1024 - n_tokens_ % 1024 - 1, 20'000, 4096);
  ExpectDeltaCost(100, 0, 0);
  // A single token, a token that has no row of the pooled slots.
  ExpectDeltaCost(1, 0, 100);
  ExpectDeltaCost(1, 0, 100);
}

TEST_F(BigSessionTest, TwentyTurnsOfTwoThousandTokensWriteTheirDeltas) {
  for (int turn = 0; turn < 20; ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    ASSERT_NO_FATAL_FAILURE(ExpectDeltaCost(2000, 20'000, 4096));
  }
}

TEST_F(BigSessionTest, AHundredForksAddLessThanOneMebibyte) {
  ASSERT_OK(Settle(store_));
  const StoreStats before = store_->Stats();
  Shim::Reset();
  for (int i = 0; i < 100; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const SessionInfo fork,
        store_->Fork({Key("big"),
                      0,
                      {Key("fork" + std::to_string(i)), 0, "fork"},
                      std::nullopt}));
    EXPECT_EQ(fork.n_tokens, n_tokens_);
  }
  const uint64_t written = Shim::data_bytes();
  const StoreStats after = store_->Stats();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.records, before.records);
  EXPECT_LT(after.file_bytes - before.file_bytes, kMiB);
  // Each rewrites the few index pages on its way: a constant, whatever the
  // session's size.
  EXPECT_LT(written, 100 * 64 * 1024);
  std::printf(
      "100 forks: %llu bytes written, %llu more in the file\n",
      static_cast<unsigned long long>(written),
      static_cast<unsigned long long>(after.file_bytes - before.file_bytes));
  // They are whole sessions: rows of the middle come back.
  ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("fork99")));
  const uint64_t row = n_tokens_ / 2 / 1024 * 1024;
  std::vector<uint8_t> bytes(1024 * 68);
  ASSERT_OK(lease->ReadRows(7, {row, row + 1024}, bytes));
  const auto expected = Noise(row * 16 + 7, bytes.size());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin()));
}

TEST_F(BigSessionTest, ARewindWritesNoRows) {
  const StoreStats before = store_->Stats();
  ASSERT_OK(store_->Fork({Key("big"), 0, {Key("cut"), 0, "fork"}, {}}));
  Shim::Reset();
  ASSERT_OK(store_->Rewind({Key("cut"), 1, "rw"}, n_tokens_ / 2));
  EXPECT_LT(Shim::data_bytes(), 64 * 1024);
  EXPECT_EQ(store_->Stats().live_bytes, before.live_bytes);
}

class OverheadTest : public ::testing::TestWithParam<RecordLayout> {};

// At most 2 % over the compact rows; token ids are listed apart.
TEST_P(OverheadTest, ASessionTakesLittleMoreThanItsRows) {
  const RecordLayout& layout = GetParam();
  for (const uint64_t n_tokens : {10'000, 10'241, 25'000, 60'000}) {
    SCOPED_TRACE(std::to_string(n_tokens) + " tokens");
    const testing::TempDir dir;
    ASSERT_OK_AND_ASSIGN(const auto store,
                         LmdbSessionStore::Open(BigStore(dir.path())));
    const uint64_t before = store->Stats().file_bytes;
    ASSERT_OK(SuspendNoise(store.get(), "a", layout, 0, 0, n_tokens));
    const uint64_t compact = CompactBytes(layout, n_tokens);
    const uint64_t allowed = compact * 102 / 100 + 4 * n_tokens;
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, store->Describe(Key("a")));
    EXPECT_EQ(info.compact_bytes, compact);
    EXPECT_EQ(info.token_bytes, 4 * n_tokens);
    EXPECT_LE(info.stored_bytes, allowed);
    EXPECT_GE(info.stored_bytes, compact + info.token_bytes);
    const uint64_t grown = store->Stats().file_bytes - before;
    EXPECT_LE(grown, allowed);
    EXPECT_GE(grown, compact + info.token_bytes);
    std::printf("%llu tokens: %.2f %% reachable, %.2f %% of the file\n",
                static_cast<unsigned long long>(n_tokens),
                100.0 * (info.stored_bytes - info.token_bytes) / compact - 100,
                100.0 * (grown - info.token_bytes) / compact - 100);
  }
}

// A session that grew turn by turn reaches no more pages than one that was
// written at once.
TEST_P(OverheadTest, ASessionThatGrewTakesLittleMoreThanItsRows) {
  const RecordLayout& layout = GetParam();
  const testing::TempDir dir;
  ASSERT_OK_AND_ASSIGN(const auto store,
                       LmdbSessionStore::Open(BigStore(dir.path())));
  uint64_t n_tokens = 0;
  for (uint64_t version = 0; n_tokens < 10'000; ++version) {
    ASSERT_OK(SuspendNoise(store.get(), "a", layout, version, n_tokens, 777));
    n_tokens += 777;
  }
  const uint64_t compact = CompactBytes(layout, n_tokens);
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, store->Describe(Key("a")));
  EXPECT_EQ(info.compact_bytes, compact);
  EXPECT_LE(info.stored_bytes, compact * 102 / 100 + 4 * n_tokens);
  // Its old tails are gone.
  ASSERT_OK(Settle(store.get()));
  EXPECT_LE(store->Stats().live_bytes, info.stored_bytes);
  EXPECT_EQ(store->Stats().records, info.n_blocks);
}

INSTANTIATE_TEST_SUITE_P(Layouts, OverheadTest,
                         ::testing::Values(PooledLayout(), FullLayout()),
                         [](const auto& info) {
                           return info.param.block_size == 1024 ? "Bytes890"
                                                                : "Bytes3072";
                         });

}  // namespace
}  // namespace torpor::store
