// SPDX-License-Identifier: Apache-2.0

#include "store/lmdb_session_store.h"

#include "tests/store/session_store_conformance.h"
#include "tests/testing/temp_dir.h"

namespace torpor::store {
namespace {

// Small limits, so that little sessions walk every path: payload commits of
// their own, waiting for buffers, snapshot records.
StoreUnderTest OpenStore(Clock clock, bool small_limits) {
  auto dir = std::make_shared<testing::TempDir>();
  LmdbStoreOptions options;
  options.data_dir = dir->path();
  options.clock = std::move(clock);
  options.map_bytes = uint64_t{1} << 30;
  options.max_bytes = uint64_t{1} << 29;
  if (small_limits) {
    options.publish_bytes = 1;
    options.buffer_bytes = 256 * 1024;
    options.ahead_bytes = 4 * 1024;
  }
  auto store = LmdbSessionStore::Open(options);
  EXPECT_OK(store.status());
  return {dir, store.ok() ? *std::move(store) : nullptr};
}

INSTANTIATE_TEST_SUITE_P(Lmdb, SessionStoreConformance,
                         ::testing::Values([](Clock clock) {
                           return OpenStore(std::move(clock), false);
                         }));
INSTANTIATE_TEST_SUITE_P(LmdbSmallLimits, SessionStoreConformance,
                         ::testing::Values([](Clock clock) {
                           return OpenStore(std::move(clock), true);
                         }));

}  // namespace
}  // namespace torpor::store
