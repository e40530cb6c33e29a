// SPDX-License-Identifier: Apache-2.0

#include "store/memory_session_store.h"

#include "tests/store/session_store_conformance.h"

namespace torpor::store {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Memory, SessionStoreConformance, ::testing::Values([](Clock clock) {
      return StoreUnderTest{nullptr, MakeMemorySessionStore(clock)};
    }));

}  // namespace
}  // namespace torpor::store
