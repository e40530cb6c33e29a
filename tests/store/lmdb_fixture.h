// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of the LMDB store alone: options for small stores, and
// the checks that every test of a mishap ends with.

#ifndef TORPOR_TESTS_STORE_LMDB_FIXTURE_H_
#define TORPOR_TESTS_STORE_LMDB_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "store/lmdb_session_store.h"
#include "tests/store/store_fixture.h"
#include "tests/testing/temp_dir.h"

namespace torpor::store {

inline LmdbStoreOptions SmallStore(const std::string& directory) {
  LmdbStoreOptions options;
  options.data_dir = directory;
  options.map_bytes = uint64_t{1} << 30;
  options.max_bytes = uint64_t{1} << 29;
  return options;
}

inline absl::StatusOr<std::unique_ptr<LmdbSessionStore>> OpenStore(
    const std::string& directory) {
  return LmdbSessionStore::Open(SmallStore(directory));
}

// Nothing is wrong, nothing is left over.
inline void ExpectSound(SessionStore* store) {
  ASSERT_OK(Settle(store));
  ASSERT_OK_AND_ASSIGN(
      const VerifyReport report,
      store->Verify(/*deep=*/true, [](const VerifyReport&) { return true; }));
  EXPECT_THAT(report.problems, ::testing::IsEmpty());
  const StoreStats stats = store->Stats();
  EXPECT_EQ(report.records_checked, stats.records);
  EXPECT_EQ(report.sessions_checked, stats.sessions);
  EXPECT_EQ(stats.staged_records, 0);
  EXPECT_EQ(stats.trashed_records, 0);
  EXPECT_EQ(stats.quarantined_records, 0);
  EXPECT_EQ(stats.reserved_bytes, 0);
}

// No session, and nothing of one: whatever remains has leaked.
inline void ExpectNothingLeaks(SessionStore* store) {
  for (;;) {
    ASSERT_OK_AND_ASSIGN(const ListResult list, store->List(0, "", "", 100));
    if (list.sessions.empty()) break;
    for (const SessionInfo& info : list.sessions) {
      ASSERT_OK(store->Erase({info.key, info.version, "erase at the end"}));
    }
  }
  ExpectSound(store);
  EXPECT_EQ(store->Stats().records, 0);
  EXPECT_EQ(store->Stats().live_bytes, 0);
}

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_LMDB_FIXTURE_H_
