// SPDX-License-Identifier: Apache-2.0
//
// A copy that is made while the store works, and that is a store itself.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "tests/store/lmdb_fixture.h"
#include "tests/store/raw_env.h"

namespace torpor::store {
namespace {

using ::testing::ElementsAre;
using testing::HasCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

bool GoOn(const BackupReport& /*report*/) { return true; }

class BackupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(store_, OpenStore(dir_.File("live")));
  }

  absl::StatusOr<std::unique_ptr<LmdbSessionStore>> OpenCopy() {
    return OpenStore(copy_dir_);
  }

  // Sessions of two tenants with everything that a session may have.
  void CreateSome() {
    for (int i = 0; i < 4; ++i) {
      const std::string id = "s" + std::to_string(i);
      SuspendSpec spec = Spec(id, 0, 0, 40 + 20 * i, "create");
      spec.new_tokens.spans = {{1, 5, "adapter", false}, {20, 30, "img", true}};
      spec.labels = {{"n", id}};
      spec.session_class =
          i == 2 ? SessionClass::kCache : SessionClass::kDurable;
      spec.snapshot = {{3, 100, {33, 40}}};
      ASSERT_OK(Suspend(store_.get(), spec, i + 1,
                        {Bytes(AttachmentKind::kWitness, "w" + id),
                         Bytes(AttachmentKind::kClientState, "c" + id)}));
      SuspendSpec more = Spec(id, 1, 40 + 20 * i, 30, "more");
      more.floors = {{40 + 20 * uint64_t(i), 10, 2}};
      ASSERT_OK(Suspend(store_.get(), more, i + 10));
    }
    SuspendSpec other = Spec("s0", 0, 0, 50, "create");
    other.session.tenant = 7;
    ASSERT_OK(Suspend(store_.get(), other, 20));
    ASSERT_OK(store_->Fork({Key("s1"), 0, {Key("fork"), 0, "f"}, 35}));
    ASSERT_OK(store_->Rewind({Key("s3"), 2, "rw"}, 41));
    ASSERT_OK(Suspend(store_.get(), Spec("gone", 0, 0, 50, "create"), 30));
    ASSERT_OK(store_->Erase({Key("gone"), 1, "rm"}));
    ASSERT_OK(store_->PutModel("model", "layout"));
  }

  void ExpectSameSession(SessionStore* copy, const SessionKey& key) {
    SCOPED_TRACE(key.id);
    ASSERT_OK_AND_ASSIGN(const SessionInfo a, store_->Describe(key));
    ASSERT_OK_AND_ASSIGN(const SessionInfo b, copy->Describe(key));
    EXPECT_EQ(a.version, b.version);
    EXPECT_EQ(a.labels, b.labels);
    EXPECT_EQ(a.session_class, b.session_class);
    EXPECT_EQ(a.holder, b.holder);
    EXPECT_EQ(a.usable_len, b.usable_len);
    ASSERT_OK_AND_ASSIGN(const Content in_live,
                         ReadAll(store_.get(), key, SmallLayout()));
    ASSERT_OK_AND_ASSIGN(const Content in_copy,
                         ReadAll(copy, key, SmallLayout()));
    EXPECT_TRUE(in_live == in_copy);
  }

  testing::TempDir dir_;
  const std::string copy_dir_ = dir_.File("copy");
  std::unique_ptr<LmdbSessionStore> store_;
};

TEST_F(BackupTest, ACopyHoldsEverySessionAndCanGoOn) {
  ASSERT_NO_FATAL_FAILURE(CreateSome());
  ASSERT_OK_AND_ASSIGN(const BackupReport report,
                       store_->Backup(copy_dir_, GoOn));
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.sessions_copied, 6);
  EXPECT_GT(report.records_copied, 10);
  EXPECT_GT(report.bytes_copied, 0);
  ASSERT_OK_AND_ASSIGN(const auto copy, OpenCopy());
  for (const char* id : {"s0", "s1", "s2", "s3", "fork"}) {
    ExpectSameSession(copy.get(), Key(id));
  }
  ExpectSameSession(copy.get(), Key("s0", 7));
  EXPECT_EQ(copy->Stats().sessions, 6);
  ExpectSound(copy.get());
  // What was shared stays shared: no more records than the live store has.
  ASSERT_OK(Settle(store_.get()));
  EXPECT_EQ(copy->Stats().records, store_->Stats().records);
  ASSERT_OK_AND_ASSIGN(const auto models, copy->Models());
  EXPECT_THAT(models, ElementsAre(std::pair<std::string, std::string>(
                          "model", "layout")));
  // Lookups, deltas, repeated operations, versions above those of the dead.
  ASSERT_OK_AND_ASSIGN(const PrefixHit hit, copy->Lookup(0, SmallLayout(), [] {
    TokenRun run = Tokens(0, 90);
    run.spans = {{1, 5, "adapter", false}, {20, 30, "img", true}};
    return run;
  }()));
  EXPECT_EQ(hit.hit_len, 90);
  ASSERT_OK(Suspend(copy.get(), Spec("s2", 2, 110, 20, "on"), 9));
  ASSERT_OK_AND_ASSIGN(const BeginResult again,
                       copy->Begin(Spec("s1", 1, 60, 30, "more")));
  EXPECT_TRUE(again.receipt.has_value());
  ASSERT_OK_AND_ASSIGN(const SuspendReceipt reborn,
                       Suspend(copy.get(), Spec("gone", 0, 0, 9, "new"), 9));
  EXPECT_GT(reborn.version, 1);
  ExpectSound(copy.get());
  // Neither store knows of the other.
  ExpectSound(store_.get());
}

TEST_F(BackupTest, ADirectoryThatHoldsSomethingIsRefused) {
  ASSERT_NO_FATAL_FAILURE(CreateSome());
  const testing::TempDir full;
  std::ofstream(full.File("note")) << "mine";
  EXPECT_THAT(store_->Backup(full.path(), GoOn),
              HasCode(absl::StatusCode::kFailedPrecondition));
  std::ifstream in(full.File("note"));
  std::string text;
  in >> text;
  EXPECT_EQ(text, "mine");
  // An empty one will do, one that is in use as a store will not.
  const testing::TempDir empty;
  EXPECT_OK(store_->Backup(empty.path(), GoOn));
  EXPECT_THAT(store_->Backup(empty.path(), GoOn),
              HasCode(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(store_->Backup(dir_.File("live"), GoOn),
              HasCode(absl::StatusCode::kFailedPrecondition));
  ExpectSound(store_.get());
}

TEST_F(BackupTest, ABackupCanBeStopped) {
  ASSERT_NO_FATAL_FAILURE(CreateSome());
  EXPECT_THAT(store_->Backup(copy_dir_,
                             [](const BackupReport& report) {
                               return report.sessions_copied < 2;
                             }),
              HasCode(absl::StatusCode::kCancelled));
  EXPECT_EQ(store_->Stats().open_leases, 0);
  ExpectSound(store_.get());
}

TEST_F(BackupTest, ACopyMadeWhileSuspendsRunHoldsWholeVersions) {
  constexpr int kThreads = 3;
  // Every version that a session ever had, by id and version; and the version
  // that each had when the backup began.
  std::mutex mu;
  std::map<std::pair<std::string, uint64_t>, Content> versions;
  std::map<std::string, uint64_t> at_begin;
  const auto remember = [&](const std::string& id) {
    ASSERT_OK_AND_ASSIGN(
        const auto lease,
        static_cast<SessionStore*>(store_.get())->Open(Key(id)));
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(lease.get(), SmallLayout()));
    const std::lock_guard<std::mutex> lock(mu);
    versions[{id, lease->info().version}] = content;
  };
  std::vector<std::string> ids;
  for (int i = 0; i < 30; ++i) {
    ids.push_back("s" + std::to_string(i));
    ASSERT_OK(
        Suspend(store_.get(), Spec(ids.back(), 0, 0, 70, "create"), 100 + i));
    ASSERT_NO_FATAL_FAILURE(remember(ids.back()));
    at_begin[ids.back()] = 1;
  }
  // Each thread has sessions of its own, and never stops changing them.
  std::atomic<bool> stop = false;
  std::atomic<int> changes = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t round = 0; !stop; ++round) {
        const std::string& id = ids[(t + kThreads * round) % ids.size()];
        const auto info = store_->Describe(Key(id));
        if (!info.ok()) continue;
        const std::string op = "op" + std::to_string(round);
        if (round % 4 == 3) {
          EXPECT_OK(
              store_->Rewind({Key(id), info->version, op}, info->n_tokens / 2));
        } else {
          EXPECT_OK(Suspend(store_.get(),
                            Spec(id, info->version, info->n_tokens, 20, op),
                            1000 * t + round));
        }
        remember(id);
        ++changes;
        EXPECT_OK(store_->Maintain());
      }
    });
  }
  const auto report = store_->Backup(copy_dir_, [&](const BackupReport& r) {
    // The copy takes its time, so that the suspends get theirs.
    while (changes < 2 * static_cast<int>(r.sessions_copied)) {
      std::this_thread::yield();
    }
    return true;
  });
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(report);
  EXPECT_THAT(report->problems, IsEmpty());
  EXPECT_EQ(report->sessions_copied, ids.size());
  ASSERT_OK_AND_ASSIGN(const auto copy, OpenCopy());
  int moved_on = 0;
  for (const std::string& id : ids) {
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, copy->Describe(Key(id)));
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(copy.get(), Key(id), SmallLayout()));
    EXPECT_GE(info.version, at_begin[id]);
    if (info.version > at_begin[id]) ++moved_on;
    const auto known = versions.find({id, info.version});
    ASSERT_NE(known, versions.end()) << id << " version " << info.version;
    EXPECT_TRUE(content == known->second) << id;
  }
  // Otherwise nothing ran beside it.
  EXPECT_GT(moved_on, 0);
  ExpectSound(copy.get());
  ExpectSound(store_.get());
}

TEST_F(BackupTest, ADamagedSessionIsReportedAndTheOthersAreCopied) {
  ASSERT_NO_FATAL_FAILURE(CreateSome());
  ASSERT_OK(Settle(store_.get()));
  store_.reset();
  {
    RawEnv raw(dir_.File("live"));
    // Rows of one, the manifest of another.
    const auto chain = raw.Chain(raw.Manifest(Key("s0")).tip);
    const RecordHeader header = raw.Header(chain[2]);
    const SectionEntry* rows = header.Find(SectionKind::kRows, 0);
    ASSERT_NE(rows, nullptr);
    raw.FlipRecordBit(chain[2], rows->offset, 1);
    raw.FlipBit("sessions", SessionTableKey(Key("s2")), 300);
  }
  ASSERT_OK_AND_ASSIGN(store_, OpenStore(dir_.File("live")));
  ASSERT_OK_AND_ASSIGN(const BackupReport report,
                       store_->Backup(copy_dir_, GoOn));
  EXPECT_EQ(report.sessions_copied, 4);
  EXPECT_THAT(report.problems, ::testing::UnorderedElementsAre(
                                   HasSubstr("'s0'"), HasSubstr("'s2'")));
  ASSERT_OK_AND_ASSIGN(const auto copy, OpenCopy());
  for (const char* id : {"s1", "s3", "fork"}) {
    ExpectSameSession(copy.get(), Key(id));
  }
  ExpectSameSession(copy.get(), Key("s0", 7));
  EXPECT_THAT(copy->Describe(Key("s0")), HasCode(absl::StatusCode::kNotFound));
  EXPECT_THAT(copy->Describe(Key("s2")), HasCode(absl::StatusCode::kNotFound));
  // What was copied of the damaged one before the damage was met is no leak.
  ExpectSound(copy.get());
  for (const char* id : {"s1", "s3", "fork"}) {
    ASSERT_OK_AND_ASSIGN(const SessionInfo info, copy->Describe(Key(id)));
    ASSERT_OK(copy->Erase({Key(id), info.version, "rm"}));
  }
  ASSERT_OK(copy->Erase({Key("s0", 7), 1, "rm"}));
  ExpectNothingLeaks(copy.get());
}

}  // namespace
}  // namespace torpor::store
