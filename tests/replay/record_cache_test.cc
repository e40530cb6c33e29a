// SPDX-License-Identifier: Apache-2.0
//
// The rows that a RecordCache holds: all of slots that persist, the last ones
// of windows and open groups; and what it refuses.

#include "replay/record_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "kernels/cpu_ops.h"
#include "tests/replay/layout_builder.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::Each;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kOutOfRange = absl::StatusCode::kOutOfRange;

constexpr uint32_t kWindowSlot = 0;
constexpr uint32_t kEntries = 1;
constexpr uint32_t kOpen = 2;
constexpr uint64_t kMaxRows = 6;
// A window of 5 tokens beside 6 new ones; a group of 4 and the 4 before it.
constexpr uint64_t kRing = 11;
constexpr uint64_t kOpenRing = 8;

ModelLayout Layout() {
  ModelLayout layout;
  layout.family = "test";
  layout.vocab_size = 10;
  layout.n_layers = 1;
  layout.slots = {SlidingSlot(0, 5, 3), PooledSlot("entries", 0, 4, 7),
                  OpenGroupSlot("open", 0, 4, 4, 5)};
  return layout;
}

// Bytes of n rows; no two rows alike.
std::vector<uint8_t> Bytes(uint64_t first_row, uint64_t n, size_t row_bytes) {
  std::vector<uint8_t> bytes;
  for (uint64_t row = first_row; row < first_row + n; ++row) {
    for (size_t i = 0; i < row_bytes; ++i) {
      bytes.push_back(static_cast<uint8_t>(row * 17 + i));
    }
  }
  return bytes;
}

kernels::Ops& Host() {
  static kernels::CpuOps ops(kernels::Isa::kPortable, 1);
  return ops;
}

absl::StatusOr<std::vector<uint8_t>> Export(const RecordCache& cache,
                                            uint32_t slot, Rows rows,
                                            size_t row_bytes) {
  std::vector<uint8_t> out((rows.end - rows.begin) * row_bytes);
  const absl::Status status = cache.ExportRows(slot, rows, out);
  if (!status.ok()) return status;
  return out;
}

TEST(RecordCacheTest, AFreshOneHoldsNothing) {
  const RecordCache cache(&Host(), Layout(), kMaxRows);
  EXPECT_EQ(cache.bytes(), 0);
  std::vector<uint8_t> row(7);
  EXPECT_THAT(
      cache.ExportRows(kEntries, {0, 1}, row),
      HasStatus(kOutOfRange, "export rows [0, 1) of slot 1: [0, 0) are held"));
  // No rows are no rows, wherever they are.
  EXPECT_OK(cache.ExportRows(kEntries, {0, 0}, {}));
  EXPECT_OK(cache.ExportRows(kWindowSlot, {9, 9}, {}));
}

TEST(RecordCacheTest, RowsThatPersistAllStay) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  const uint64_t n = 3 * RecordCache::kPageRows + 5;
  ASSERT_OK(cache.ImportRows(kEntries, 0, Bytes(0, n, 7)));
  ASSERT_OK_AND_ASSIGN(const auto all, Export(cache, kEntries, {0, n}, 7));
  EXPECT_EQ(all, Bytes(0, n, 7));
  for (const Rows rows :
       {Rows{0, 1}, {63, 65}, {64, 64}, {n - 1, n}, {60, 3 * 64 + 1}}) {
    ASSERT_OK_AND_ASSIGN(const auto some, Export(cache, kEntries, rows, 7));
    EXPECT_EQ(some, Bytes(rows.begin, rows.size(), 7));
  }
  // As attention reads them.
  for (uint64_t row = 0; row < n; ++row) {
    const uint8_t* const page =
        cache.Pages(kEntries).pages[row / RecordCache::kPageRows];
    EXPECT_EQ(cache.Row(kEntries, row),
              page + row % RecordCache::kPageRows * 7);
    EXPECT_EQ(cache.Row(kEntries, row)[3], Bytes(row, 1, 7)[3]);
  }
  EXPECT_EQ(cache.bytes(), 4 * RecordCache::kPageRows * 7);
}

TEST(RecordCacheTest, PagesNeverMove) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  cache.Put(kEntries, 0)[0] = 42;
  const uint8_t* const first = cache.Row(kEntries, 0);
  for (uint64_t row = 1; row < 1000; ++row) cache.Put(kEntries, row);
  EXPECT_EQ(cache.Row(kEntries, 0), first);
  EXPECT_EQ(*first, 42);
}

TEST(RecordCacheTest, AWindowHoldsItsLastRows) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  for (uint64_t row = 0; row < 100; ++row) {
    const std::vector<uint8_t> bytes = Bytes(row, 1, 3);
    std::copy(bytes.begin(), bytes.end(), cache.Put(kWindowSlot, row));
    const uint64_t end = row + 1;
    const uint64_t oldest = end < kRing ? 0 : end - kRing;
    ASSERT_OK_AND_ASSIGN(const auto held,
                         Export(cache, kWindowSlot, {oldest, end}, 3));
    ASSERT_EQ(held, Bytes(oldest, end - oldest, 3));
    EXPECT_THAT(Export(cache, kWindowSlot, {oldest, end + 1}, 3),
                HasStatus(kOutOfRange, "are held"));
    if (oldest == 0) continue;
    EXPECT_THAT(
        Export(cache, kWindowSlot, {oldest - 1, end}, 3),
        HasStatus(kOutOfRange, "export rows [" + std::to_string(oldest - 1) +
                                   ", " + std::to_string(end) +
                                   ") of slot 0: [" + std::to_string(oldest) +
                                   ", " + std::to_string(end) + ") are held"));
  }
  EXPECT_EQ(cache.bytes(), RecordCache::kPageRows * 3);
}

TEST(RecordCacheTest, AnOpenGroupHoldsItselfAndWhatItOverlaps) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  ASSERT_OK(cache.ImportRows(kOpen, 20, Bytes(20, kOpenRing, 5)));
  ASSERT_OK_AND_ASSIGN(const auto held,
                       Export(cache, kOpen, {20, 20 + kOpenRing}, 5));
  EXPECT_EQ(held, Bytes(20, kOpenRing, 5));
  *cache.Put(kOpen, 28) = 0;
  EXPECT_THAT(Export(cache, kOpen, {20, 29}, 5),
              HasStatus(kOutOfRange, "slot 2: [21, 29) are held"));
}

TEST(RecordCacheTest, ImportsRefuseWhatDoesNotFit) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  const std::vector<uint8_t> bytes(200);
  EXPECT_THAT(cache.ImportRows(3, 0, {}),
              HasStatus(kInvalid, "import rows: the sequence has no slot 3"));
  EXPECT_THAT(cache.ImportRows(UINT32_MAX, 0, {}), HasStatus(kInvalid, "slot"));
  for (const size_t n : {1, 6, 8, 13}) {
    EXPECT_THAT(cache.ImportRows(kEntries, 0, std::span(bytes).first(n)),
                HasStatus(kInvalid, "import rows of slot 1: got " +
                                        std::to_string(n) + " bytes, wanted " +
                                        std::to_string(n / 7) + " rows of 7"));
  }
  EXPECT_THAT(
      cache.ImportRows(kWindowSlot, 0, std::span(bytes).first(3 * (kRing + 1))),
      HasStatus(kOutOfRange,
                "import rows of slot 0: 12 rows into a ring of 11"));
  EXPECT_THAT(
      cache.ImportRows(kOpen, 0, std::span(bytes).first(5 * (kOpenRing + 1))),
      HasStatus(kOutOfRange, "import rows of slot 2: 9 rows into a ring of 8"));
  // Nothing was taken.
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_OK(
      cache.ImportRows(kWindowSlot, 50, std::span(bytes).first(3 * kRing)));
  EXPECT_OK(cache.ImportRows(kEntries, 0, {}));
}

TEST(RecordCacheTest, ExportsRefuseWhatDoesNotFit) {
  RecordCache cache(&Host(), Layout(), kMaxRows);
  ASSERT_OK(cache.ImportRows(kEntries, 0, Bytes(0, 4, 7)));
  std::vector<uint8_t> out(200, 0xee);
  const auto expect = [&](uint32_t slot, Rows rows, size_t n,
                          absl::StatusCode code, const char* text) {
    EXPECT_THAT(cache.ExportRows(slot, rows, std::span(out).first(n)),
                HasStatus(code, text));
  };
  expect(3, {0, 0}, 0, kInvalid, "export rows: the sequence has no slot 3");
  expect(kEntries, {0, 4}, 27, kInvalid,
         "export rows of slot 1: got 27 bytes, wanted 4 rows of 7");
  expect(kEntries, {0, 4}, 29, kInvalid, "got 29 bytes");
  expect(kEntries, {2, 2}, 7, kInvalid, "got 7 bytes, wanted 0 rows of 7");
  expect(kEntries, {0, 5}, 35, kOutOfRange,
         "export rows [0, 5) of slot 1: [0, 4) are held");
  expect(kEntries, {3, 2}, 7, kOutOfRange, "export rows [3, 2) of slot 1");
  expect(kEntries, {UINT64_MAX - 1, UINT64_MAX}, 7, kOutOfRange, "are held");
  // Nothing was written.
  EXPECT_THAT(out, Each(0xee));
}

TEST(RecordCacheTest, BytesForIsWhatItTakes) {
  testing::Random random(5);
  for (int i = 0; i < 200; ++i) {
    const uint64_t n = random.Between(0, 2000);
    RecordCache cache(&Host(), Layout(), kMaxRows);
    for (uint64_t token = 0; token < n; ++token) {
      cache.Put(kWindowSlot, token);
      cache.Put(kOpen, token);
      if ((token + 1) % 4 == 0) cache.Put(kEntries, token / 4);
    }
    const uint64_t wanted = RecordCache::BytesFor(Layout(), kMaxRows, n);
    // Rings are counted whole before their first row.
    EXPECT_EQ(cache.bytes(), n == 0 ? 0 : wanted) << n;
  }
}

}  // namespace
}  // namespace torpor::replay
