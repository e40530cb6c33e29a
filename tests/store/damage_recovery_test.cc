// SPDX-License-Identifier: Apache-2.0
//
// Life after damage: a damaged session can go, what is not damaged is still
// kept in order, and a data file that lost its end is an error, not a SIGBUS.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/store/damage_fixture.h"

namespace torpor::store {
namespace {

using testing::HasCode;

class DamageRecoveryTest : public DamageTest {
 protected:
  // The index entry of the victim's second block is damaged, or its manifest.
  void DamageEntry(uint64_t block = 1) {
    After([block](RawEnv& raw) {
      const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
      raw.FlipBit("records", RecordKey(chain[block]), 300);
    });
  }
  void DamageManifest() {
    After([](RawEnv& raw) {
      raw.FlipBit("sessions", SessionTableKey(Key("victim")), 300);
    });
  }

  // Its name is free, or free to be written again.
  void ExpectNameUsable() {
    SuspendSpec spec = Spec("victim", 0, 0, 30, "again");
    auto again = Suspend(store_.get(), spec, 8);
    if (!again.ok()) {
      // Written over instead: nothing of it is kept.
      spec.expected_version = 1;
      again = Suspend(store_.get(), spec, 8);
    }
    ASSERT_OK(again);
    EXPECT_EQ(Read("victim").rows[0], Rows(8, 0, {0, 30}, 24));
  }

  // The reaper and the expiry go on: what another session leaves is freed.
  void ExpectMaintenanceWorks() {
    SuspendSpec spec = Spec("short", 0, 0, 30, "create");
    spec.layout = OtherLayout();
    spec.ttl_seconds = 10;
    ASSERT_OK(Suspend(store_.get(), spec, 3));
    const uint64_t with_it = store_->Stats().records;
    now_us_ += 11'000'000;
    ASSERT_OK(Settle(store_.get()));
    EXPECT_LE(store_->Stats().records, with_it - 2);
    ASSERT_OK_AND_ASSIGN(const ListResult list, store_->List(0, "s", "", 10));
    EXPECT_THAT(list.sessions, ::testing::IsEmpty());
  }
};

TEST_F(DamageRecoveryTest, ASessionWithADamagedManifestCanBeErased) {
  ASSERT_NO_FATAL_FAILURE(DamageManifest());
  ASSERT_OK(store_->Erase({Key("victim"), 1, "rm"}));
  EXPECT_THAT(store_->Describe(Key("victim")),
              HasCode(absl::StatusCode::kNotFound));
  EXPECT_TRUE(Read("fork") == fork_);
  ExpectNameUsable();
}

TEST_F(DamageRecoveryTest, ASessionWithADamagedManifestCanBeWrittenAgain) {
  ASSERT_NO_FATAL_FAILURE(DamageManifest());
  ExpectNameUsable();
  EXPECT_TRUE(Read("fork") == fork_);
}

// Its version is not known; one that nothing can have lifts nobody's.
TEST_F(DamageRecoveryTest, AVersionAtTheEndOfNumbersIsNotBelieved) {
  ASSERT_NO_FATAL_FAILURE(DamageManifest());
  ASSERT_OK(store_->Erase({Key("victim"), UINT64_MAX, "rm"}));
  ASSERT_OK_AND_ASSIGN(const SessionInfo fork,
                       store_->Fork({Key("other"), 0, {Key("f"), 0, "op"}, 9}));
  EXPECT_EQ(fork.version, kMaxFloorLift + 1);

  ASSERT_NO_FATAL_FAILURE(DamageManifest());
  ASSERT_OK_AND_ASSIGN(
      const SuspendReceipt over,
      Suspend(store_.get(), Spec("victim", UINT64_MAX - 1, 0, 9, "op"), 1));
  EXPECT_EQ(over.version, kMaxGivenVersion + 1);
}

TEST_F(DamageRecoveryTest, ASessionWithADamagedRecordEntryCanBeErased) {
  for (const uint64_t block : {0, 1, 3, 5}) {
    SCOPED_TRACE("block " + std::to_string(block));
    ASSERT_NO_FATAL_FAILURE(DamageEntry(block));
    EXPECT_OK(store_->Erase({Key("victim"), 1, "rm"}));
    EXPECT_THAT(store_->Describe(Key("victim")),
                HasCode(absl::StatusCode::kNotFound));
    ExpectMaintenanceWorks();
    EXPECT_TRUE(Read("other") == other_);
  }
}

TEST_F(DamageRecoveryTest, ASessionWithADamagedRecordEntryCanBeWrittenAgain) {
  for (const uint64_t block : {0, 1, 3, 5}) {
    SCOPED_TRACE("block " + std::to_string(block));
    ASSERT_NO_FATAL_FAILURE(DamageEntry(block));
    ExpectNameUsable();
  }
}

TEST_F(DamageRecoveryTest, AnExpiredSessionThatIsDamagedStopsNoMaintenance) {
  for (const uint64_t block : {1, 5}) {
    ASSERT_NO_FATAL_FAILURE(Create());
    ASSERT_NO_FATAL_FAILURE(Open());
    ASSERT_OK(store_->Touch({.session = Key("victim"), .ttl_seconds = 5}));
    store_.reset();
    {
      RawEnv raw(dir_->path());
      const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
      raw.FlipBit("records", RecordKey(chain[block]), 300);
    }
    ASSERT_NO_FATAL_FAILURE(Open());
    now_us_ += 6'000'000;
    ExpectMaintenanceWorks();
    EXPECT_THAT(store_->Describe(Key("victim")),
                HasCode(absl::StatusCode::kNotFound));
  }
}

// The least recently used cache session cannot be read: it, or the next one,
// makes room.
TEST_F(DamageRecoveryTest, ADamagedCacheSessionStopsNoSuspend) {
  ASSERT_NO_FATAL_FAILURE(Create());
  ASSERT_NO_FATAL_FAILURE(Open());
  ASSERT_OK(store_->Touch(
      {.session = Key("victim"), .session_class = SessionClass::kCache}));
  now_us_ += 1'000'000;
  SuspendSpec spare = Spec("spare", 0, 0, 1600, "create");
  spare.session_class = SessionClass::kCache;
  ASSERT_OK(Suspend(store_.get(), spare, 5));
  LmdbStoreOptions options = SmallStore(dir_->path());
  options.clock = [this] { return now_us_; };
  // Full but for a record or two.
  options.max_bytes = store_->Stats().live_bytes + 2 * kPageBytes;
  store_.reset();
  {
    RawEnv raw(dir_->path());
    const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
    raw.FlipBit("records", RecordKey(chain[5]), 300);
  }
  ASSERT_OK_AND_ASSIGN(store_, LmdbSessionStore::Open(options));
  ASSERT_OK(Suspend(store_.get(), Spec("new", 0, 0, 40, "op"), 3));
  EXPECT_EQ(Read("new").rows[0], Rows(3, 0, {0, 40}, 24));
  EXPECT_TRUE(Read("other") == other_);
}

// Opens and reads a store whose data file has `bytes` bytes left; in a process
// of its own, which a SIGBUS would end.
class TruncationTest : public DamageTest {
 protected:
  // Exits with 0 when every answer was right or an error; with `must_fail`, at
  // least one was an error.
  [[noreturn]] void ReadAndExit(bool must_fail) {
    int errors = 0;
    int wrong = 0;
    auto store = OpenStore(dir_->path());
    if (!store.ok()) {
      std::fprintf(stderr, "open: %s\n", store.status().ToString().c_str());
      _exit(0);
    }
    store_ = *std::move(store);
    const std::pair<const char*, const Content*> sessions[] = {
        {"victim", &victim_}, {"fork", &fork_}, {"other", &other_}};
    for (const auto& [id, truth] : sessions) {
      const auto content = ReadAll(store_.get(), Key(id), SmallLayout());
      if (!content.ok()) {
        ++errors;
        // What was acknowledged is damaged; it was never unknown.
        if (content.status().code() == absl::StatusCode::kNotFound) ++wrong;
        std::fprintf(stderr, "%s: %s\n", id,
                     content.status().ToString().c_str());
      } else if (!(*content == *truth)) {
        ++wrong;
        std::fprintf(stderr, "%s: wrong bytes\n", id);
      }
    }
    // Writing must not end in a signal either.
    (void)Suspend(store_.get(), Spec("new", 0, 0, 40, "op"), 3);
    (void)store_->Maintain();
    (void)store_->Verify(true, nullptr);
    _exit(wrong != 0 ? 1 : errors == 0 && must_fail ? 2 : 0);
  }

  void ExpectNothingWrongAt(uint64_t bytes, bool must_fail = true) {
    SCOPED_TRACE(std::to_string(bytes) + " bytes left");
    ASSERT_NO_FATAL_FAILURE(Create());
    std::filesystem::resize_file(dir_->File("data.mdb"), bytes);
    EXPECT_EXIT(ReadAndExit(must_fail), ::testing::ExitedWithCode(0), "");
  }

  uint64_t FileBytes() {
    Create();
    return std::filesystem::file_size(dir_->File("data.mdb"));
  }
};

TEST_F(TruncationTest, ADataFileWithoutItsEndIsAnError) {
  const uint64_t bytes = FileBytes();
  // The last page may be one that nothing names.
  for (const uint64_t left : {bytes - 1, bytes - 4096}) {
    ExpectNothingWrongAt(left, /*must_fail=*/false);
  }
  for (const uint64_t left :
       {bytes / 2, bytes / 4096 / 3 * 4096, uint64_t{12'288}, uint64_t{8192}}) {
    ExpectNothingWrongAt(left);
  }
}

TEST_F(TruncationTest, ADataFileWithoutItsMetaPagesIsAnError) {
  for (const uint64_t left : {8191, 4096, 4095, 100, 1}) {
    ExpectNothingWrongAt(left);
  }
}

// LMDB takes an empty file for a new environment; we must not.
TEST_F(TruncationTest, AnEmptyDataFileIsAnError) { ExpectNothingWrongAt(0); }

}  // namespace
}  // namespace torpor::store
