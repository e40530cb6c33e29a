// SPDX-License-Identifier: Apache-2.0
//
// What every SessionStore promises; conformance_*.cc hold the promises. Link
// torpor_store_conformance and instantiate with a factory:
//   INSTANTIATE_TEST_SUITE_P(Lmdb, SessionStoreConformance, Values(...));

#ifndef TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_
#define TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/store/store_fixture.h"

namespace torpor::store {

using ::testing::ElementsAre;
using testing::HasCode;
using testing::HasStatus;
using ::testing::IsEmpty;

// A store and whatever must outlive it. `clock` is what the store reads.
struct StoreUnderTest {
  std::shared_ptr<void> keep_alive;
  std::unique_ptr<SessionStore> store;
};
using StoreFactory = std::function<StoreUnderTest(Clock clock)>;

class SessionStoreConformance : public ::testing::TestWithParam<StoreFactory> {
 protected:
  void SetUp() override {
    under_test_ = GetParam()([this] { return now_us_; });
    store_ = under_test_.store.get();
    ASSERT_NE(store_, nullptr);
  }

  // Creates session `id` of `n` tokens, every row by writer 1.
  void Create(const std::string& id, uint64_t n) {
    ASSERT_OK(Suspend(store_, Spec(id, 0, 0, n, "create"), 1));
  }

  // Rows [0, first) by `before`, the others by `after`, all of them exact.
  void ExpectRows(const std::string& id, uint64_t n_tokens, uint64_t first,
                  uint64_t before, uint64_t after) {
    const RecordLayout layout = SmallLayout();
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store_, Key(id), layout));
    ASSERT_EQ(content.tokens.ids.size(), n_tokens);
    for (uint32_t slot = 0; slot < layout.slots.size(); ++slot) {
      const SlotSpec& spec = layout.slots[slot];
      const uint64_t kept = RowsOf(spec, first);
      auto expected = Rows(before, slot, {0, kept}, spec.row_bytes);
      const auto tail =
          Rows(after, slot, {kept, RowsOf(spec, n_tokens)}, spec.row_bytes);
      expected.insert(expected.end(), tail.begin(), tail.end());
      EXPECT_EQ(content.rows[slot], expected) << "slot " << slot;
    }
  }

  int64_t now_us_ = 1'700'000'000'000'000;
  StoreUnderTest under_test_;
  SessionStore* store_ = nullptr;
};

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_SESSION_STORE_CONFORMANCE_H_
