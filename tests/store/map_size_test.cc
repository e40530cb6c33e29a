// SPDX-License-Identifier: Apache-2.0
//
// A map that cannot hold the store is refused at the start, not by the first
// suspend that it has no room for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

using testing::HasStatus;

constexpr uint64_t kMiB = uint64_t{1} << 20;

class MapSizeTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<LmdbSessionStore>> Open(uint64_t map_bytes,
                                                         uint64_t max_bytes) {
    LmdbStoreOptions options = SmallStore(dir_.path());
    options.map_bytes = map_bytes;
    options.max_bytes = max_bytes;
    return LmdbSessionStore::Open(options);
  }
  void ExpectRefused(uint64_t map_bytes, uint64_t max_bytes, uint64_t wanted) {
    EXPECT_THAT(Open(map_bytes, max_bytes).status(),
                HasStatus(absl::StatusCode::kInvalidArgument,
                          absl::StrFormat("store.map_bytes: got %d, wanted at "
                                          "least %d, ",
                                          map_bytes, wanted)));
  }
  const testing::TempDir dir_;
};

TEST_F(MapSizeTest, RefusesLessThanTheSmallest) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{4096}, kMinMapBytes - 1}) {
    ExpectRefused(bytes, 0, kMinMapBytes);
  }
  EXPECT_FALSE(std::filesystem::exists(dir_.File("data.mdb")));
}

TEST_F(MapSizeTest, RefusesLessThanTheBudget) {
  ExpectRefused(64 * kMiB, 64 * kMiB, 80 * kMiB);
  ExpectRefused(80 * kMiB - 1, 64 * kMiB, 80 * kMiB);
  EXPECT_OK(Open(80 * kMiB, 64 * kMiB).status());
}

TEST_F(MapSizeTest, TheSmallestHoldsSessionsUpToTheBudgetItGives) {
  ASSERT_OK_AND_ASSIGN(const auto store, Open(kMinMapBytes, 0));
  const uint64_t max_bytes = store->Stats().max_bytes;
  EXPECT_EQ(max_bytes, kMinMapBytes / 5 * 4);
  absl::Status status;
  for (int i = 0; status.ok(); ++i) {
    const std::string id = std::to_string(i);
    status = Suspend(store.get(), Spec(id, 0, 0, 800, "op"), i).status();
  }
  // The budget ends it, not the map.
  EXPECT_THAT(status, HasStatus(absl::StatusCode::kResourceExhausted,
                                std::to_string(max_bytes)));
  EXPECT_GT(store->Stats().live_bytes, max_bytes * 9 / 10);
  ExpectNothingLeaks(store.get());
}

TEST_F(MapSizeTest, RefusesLessThanWhatIsStored) {
  uint64_t used = 0;
  {
    ASSERT_OK_AND_ASSIGN(const auto store, Open(256 * kMiB, 0));
    for (int i = 0; used < kMinMapBytes + kMiB; ++i) {
      ASSERT_OK(
          Suspend(store.get(), Spec(std::to_string(i), 0, 0, 4000, "op"), i));
      used = store->Stats().file_bytes;
    }
  }
  ExpectRefused(kMinMapBytes, 0, used);
  // Nothing was lost by asking.
  ASSERT_OK_AND_ASSIGN(const auto store, Open(used + 4096, 0));
  ExpectSound(store.get());
}

}  // namespace
}  // namespace torpor::store
