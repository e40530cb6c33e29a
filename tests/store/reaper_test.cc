// SPDX-License-Identifier: Apache-2.0
//
// What the reaper leaves to leases that are opened while a group commits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "store/catalog.h"
#include "store/lmdb_ticket.h"
#include "store/maintenance.h"
#include "store/store_core.h"
#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

class ReaperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.clock = SystemClock();
    ASSERT_OK_AND_ASSIGN(auto dir, DataDir::Acquire(options.data_dir));
    ASSERT_OK_AND_ASSIGN(auto env, Env::Open({.directory = options.data_dir,
                                              .map_bytes = options.map_bytes}));
    core_ = std::make_unique<StoreCore>(
        options, std::move(dir), std::move(env),
        BudgetOptions{options.max_bytes, options.tenant_max_bytes});
    ASSERT_OK(StartUp(core_.get()));
    ASSERT_OK_AND_ASSIGN(
        BeginResult begun,
        LmdbTicket::Begin(core_.get(), Spec("s", 0, 0, 40, "op")));
    ASSERT_OK(PutAll(begun.ticket.get(), SmallLayout(), /*writer=*/1));
    ASSERT_OK(begun.ticket->Commit({}).status());
  }

  absl::Status Delete(WriteTxn& txn) {
    TORPOR_ASSIGN_OR_RETURN(const SessionManifest manifest,
                            RequireVersion(txn, Key("s"), 1));
    return DeleteSession(txn, Key("s"), manifest);
  }

  testing::TempDir dir_;
  std::unique_ptr<StoreCore> core_;
};

TEST_F(ReaperTest, LeavesWhatItsOwnGroupDeleted) {
  std::unique_ptr<LmdbLease> lease;
  size_t n_freed = 0;
  // As in a group of the writer: a delete, the reaper, and a lease that is
  // opened before the commit, which still finds the session.
  ASSERT_OK(core_->writer.Run(4096, [&](WriteTxn& txn) -> absl::Status {
    TORPOR_RETURN_IF_ERROR(Delete(txn));
    TORPOR_ASSIGN_OR_RETURN(const std::vector<Reaped> freed,
                            core_->ReapIn(txn, 100));
    n_freed = freed.size();
    TORPOR_ASSIGN_OR_RETURN(lease,
                            LmdbLease::OfSession(core_.get(), Key("s"), 0));
    return absl::OkStatus();
  }));
  EXPECT_EQ(n_freed, 0);
  EXPECT_OK(ReadAll(lease.get(), SmallLayout()).status());

  // The lease gone, nothing is left.
  lease.reset();
  size_t n_reaped = 0;
  for (size_t n = 1; n > 0; n_reaped += n) {
    ASSERT_OK_AND_ASSIGN(n, core_->Reap(100));
  }
  EXPECT_EQ(n_reaped, 3);
  EXPECT_EQ(core_->budget.live_bytes(), 0);
}

TEST_F(ReaperTest, LeavesWhatItsOwnGroupNamedAgain) {
  ASSERT_OK(core_->writer.Run(
      4096, [&](WriteTxn& txn) -> absl::Status { return Delete(txn); }));
  std::vector<RecordNumber> trash;
  ASSERT_OK(core_->writer.Run(4096, [&](WriteTxn& txn) -> absl::Status {
    TORPOR_RETURN_IF_ERROR(txn.Scan(Table::kTrash, "", [&](const Entry& entry) {
      trash.push_back(LoadBigEndian<uint64_t>(entry.key));
      return true;
    }));
    for (const RecordNumber number : trash) {
      TORPOR_RETURN_IF_ERROR(AddName(txn, number));
    }
    TORPOR_ASSIGN_OR_RETURN(const std::vector<Reaped> freed,
                            core_->ReapIn(txn, 100));
    EXPECT_THAT(freed, ::testing::IsEmpty());
    return absl::OkStatus();
  }));
  EXPECT_THAT(trash, ::testing::SizeIs(1));
}

}  // namespace
}  // namespace torpor::store
