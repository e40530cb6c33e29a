// SPDX-License-Identifier: Apache-2.0
//
// What counts as being in memory: only bytes whose every page is.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <span>

#include "store/env.h"

namespace torpor::store {
namespace {

constexpr size_t kPage = 4096;
// More than one look of Resident.
constexpr size_t kPages = 600;

TEST(ResidencyTest, EveryPageCounts) {
  void* const map = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  // One by one, so that no huge page comes in their place.
  ASSERT_EQ(madvise(map, kPages * kPage, MADV_NOHUGEPAGE), 0);
  auto* const bytes = static_cast<uint8_t*>(map);
  // As a value lies: neither end on a page's.
  const std::span<const uint8_t> value(bytes + 16, kPages * kPage - 32);
  EXPECT_FALSE(Env::Resident(value));
  std::memset(bytes, 1, kPages * kPage);
  EXPECT_TRUE(Env::Resident(value));
  EXPECT_TRUE(Env::Resident(value.first(1)));
  EXPECT_TRUE(Env::Resident({}));
  for (const size_t gone : {size_t{0}, size_t{255}, size_t{256}, kPages - 1}) {
    SCOPED_TRACE(gone);
    ASSERT_EQ(madvise(bytes + gone * kPage, kPage, MADV_DONTNEED), 0);
    EXPECT_FALSE(Env::Resident(value));
    bytes[gone * kPage] = 1;
    EXPECT_TRUE(Env::Resident(value));
  }
  munmap(map, kPages * kPage);
}

}  // namespace
}  // namespace torpor::store
