// SPDX-License-Identifier: Apache-2.0
//
// A disk that is full. Once by RLIMIT_FSIZE, which the store cannot foresee:
// writes simply fail. Once as a small tmpfs, whose free space it can see.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <filesystem>

#include "tests/store/lmdb_fixture.h"
#include "tests/testing/random.h"

namespace torpor::store {
namespace {

using testing::HasCode;
using testing::HasStatus;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
// About 64 KB of rows and 20 records a suspend.
constexpr uint64_t kTokens = 320;

// No file of this process grows beyond `bytes`; gone with the object.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(uint64_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit now = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

class FullDiskTest : public ::testing::Test {
 protected:
  void Open(LmdbStoreOptions options) {
    store_.reset();
    ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(std::move(options)));
  }

  static std::string Id(uint64_t n) { return "s" + std::to_string(n); }

  absl::Status SuspendNext(uint64_t n_new = kTokens) {
    const uint64_t n = next_;
    TORPOR_RETURN_IF_ERROR(Suspend(store_.get(), Spec(Id(n), 0, 0, n_new, "op"),
                                   n + 1,
                                   {Bytes(AttachmentKind::kWitness, Id(n))})
                               .status());
    ++next_;
    sessions_.push_back(n);
    return absl::OkStatus();
  }

  // Suspends until one is refused.
  void Fill() {
    absl::Status status;
    for (int i = 0; i < 10'000 && status.ok(); ++i) status = SuspendNext();
    EXPECT_THAT(status, HasCode(kExhausted));
  }

  void ExpectAllWhole() {
    for (const uint64_t n : sessions_) {
      ASSERT_OK_AND_ASSIGN(const Content content,
                           ReadAll(store_.get(), Key(Id(n)), SmallLayout()));
      const uint64_t n_tokens = content.tokens.ids.size();
      EXPECT_EQ(content.tokens, Tokens(0, n_tokens));
      EXPECT_EQ(content.attachments[0],
                Bytes(AttachmentKind::kWitness, Id(n)).sections);
      const RecordLayout layout = SmallLayout();
      for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
        const SlotSpec& spec = layout.slots[slot];
        ASSERT_TRUE(content.rows[slot] == Rows(n + 1, slot,
                                               {0, RowsOf(spec, n_tokens)},
                                               spec.row_bytes))
            << Id(n);
      }
    }
    EXPECT_EQ(store_->Stats().sessions, sessions_.size());
  }

  void EraseHalf() {
    std::vector<uint64_t> left;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      if (i % 2 == 0) {
        left.push_back(sessions_[i]);
        continue;
      }
      ASSERT_OK(store_->Erase({Key(Id(sessions_[i])), 1, "rm"}));
    }
    sessions_ = left;
    // The reaper runs on a timer: a step may fail, but not every one.
    absl::StatusOr<bool> more = true;
    for (int i = 0; i < 200 && (!more.ok() || *more); ++i) {
      more = store_->Maintain();
    }
    ASSERT_OK(more);
    EXPECT_EQ(store_->Stats().trashed_records, 0);
  }

  testing::TempDir dir_;
  std::unique_ptr<SessionStore> store_;
  uint64_t next_ = 0;
  // Those that were acknowledged and not erased.
  std::vector<uint64_t> sessions_;
};

TEST_F(FullDiskTest, AFullDiskRefusesSuspendsAndLosesNothing) {
  testing::Random random;
  for (const uint64_t publish_bytes : {uint64_t{1} << 20, uint64_t{1}}) {
    std::filesystem::remove_all(dir_.File("data"));
    sessions_.clear();
    LmdbStoreOptions options = SmallStore(dir_.File("data"));
    options.publish_bytes = publish_bytes;
    Open(options);
    for (int i = 0; i < 5; ++i) ASSERT_OK(SuspendNext());
    {
      // Not always at the same place of a suspend.
      const uint64_t room = (1 << 20) + 4096 * random.Between(0, 40);
      const FileSizeLimit limit(store_->Stats().file_bytes + room);
      ASSERT_NO_FATAL_FAILURE(Fill());
      EXPECT_GT(sessions_.size(), 5);
      // Small ones may still fit; refused or not, nothing else changes.
      for (int i = 0; i < 5; ++i) {
        const absl::Status status = SuspendNext(/*n_new=*/20);
        if (!status.ok()) {
          EXPECT_THAT(status, HasCode(kExhausted));
        }
      }
      ExpectAllWhole();
      // Deleting makes room, under the same limit.
      ASSERT_NO_FATAL_FAILURE(EraseHalf());
      const size_t before = sessions_.size();
      ASSERT_OK(SuspendNext());
      ASSERT_OK(SuspendNext());
      ASSERT_NO_FATAL_FAILURE(Fill());
      EXPECT_GT(sessions_.size(), before + 2);
      ExpectAllWhole();
    }
    ASSERT_OK(SuspendNext());
    ExpectAllWhole();
    ExpectSound(store_.get());
    Open(options);
    ExpectAllWhole();
    ExpectSound(store_.get());
  }
}

// A delete on a disk without a free byte: it must be able to make room.
TEST_F(FullDiskTest, OnAFullDiskSessionsCanStillBeErased) {
  for (uint64_t room = 0; room < 12; ++room) {
    SCOPED_TRACE("room for " + std::to_string(room) + " pages");
    std::filesystem::remove_all(dir_.File("data"));
    sessions_.clear();
    Open(SmallStore(dir_.File("data")));
    for (int i = 0; i < 6; ++i) ASSERT_OK(SuspendNext());
    const FileSizeLimit limit(store_->Stats().file_bytes + 4096 * room);
    ASSERT_NO_FATAL_FAILURE(Fill());
    ASSERT_NO_FATAL_FAILURE(EraseHalf());
    ASSERT_OK(SuspendNext());
    ExpectAllWhole();
  }
}

TEST_F(FullDiskTest, ADiskThatIsSeenToBeFullRefusesBeforeTheFirstRow) {
  // In a mount namespace of our own, so that nothing is left behind.
  if (unshare(CLONE_NEWNS) != 0 ||
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", dir_.path().c_str(), "tmpfs", 0, "size=24m,mode=0700") !=
          0) {
    GTEST_SKIP() << "no right to mount";
  }
  LmdbStoreOptions options = SmallStore(dir_.File("data"));
  options.disk_reserve_bytes = 8 << 20;
  Open(options);
  ASSERT_NO_FATAL_FAILURE(Fill());
  EXPECT_GT(sessions_.size(), 20);
  // Refused by Begin, and the reserve is untouched.
  EXPECT_THAT(store_->Begin(Spec("new", 0, 0, kTokens, "op")).status(),
              HasStatus(kExhausted, "disk"));
  EXPECT_GE(store_->Stats().disk_free_bytes, options.disk_reserve_bytes / 2);
  EXPECT_EQ(store_->Stats().reserved_bytes, 0);
  EXPECT_EQ(store_->Stats().staged_records, 0);
  ExpectAllWhole();
  ASSERT_NO_FATAL_FAILURE(EraseHalf());
  const size_t before = sessions_.size();
  ASSERT_NO_FATAL_FAILURE(Fill());
  // About as many as were erased.
  EXPECT_GE(sessions_.size(), before + before / 2);
  ExpectAllWhole();
  ExpectSound(store_.get());
  store_.reset();
  EXPECT_EQ(umount(dir_.path().c_str()), 0);
}

}  // namespace
}  // namespace torpor::store
