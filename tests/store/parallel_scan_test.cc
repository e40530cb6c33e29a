// SPDX-License-Identifier: Apache-2.0

#include "store/parallel_scan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>

#include "base/mutex.h"
#include "store/codec.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::store {
namespace {

using ::testing::IsEmpty;

std::string Digits(size_t i) {
  const std::string digits = std::to_string(i);
  return "tenant/" + std::string(8 - digits.size(), '0') + digits;
}

// How often each key is visited, of a table that holds `keys`.
std::map<std::string, int> Visits(const std::set<std::string>& keys) {
  const testing::TempDir dir;
  auto env = Env::Open({.directory = dir.path(),
                        .map_bytes = uint64_t{1} << 28,
                        .no_sync_for_test = true});
  EXPECT_OK(env);
  {
    auto txn = (*env)->BeginWrite();
    EXPECT_OK(txn);
    for (const std::string& key : keys) {
      EXPECT_OK((*txn)->Put(Table::kSessions, key, AsBytes(key)));
    }
    EXPECT_OK((*txn)->Commit());
  }
  Mutex mu;
  std::map<std::string, int> visits;
  EXPECT_OK(ParallelScan(env->get(), Table::kSessions, [&](const Entry& entry) {
    EXPECT_EQ(AsString(entry.value), entry.key);
    MutexLock lock(&mu);
    ++visits[std::string(entry.key)];
  }));
  return visits;
}

void ExpectEachOnce(const std::set<std::string>& keys) {
  const std::map<std::string, int> visits = Visits(keys);
  EXPECT_EQ(visits.size(), keys.size());
  for (const std::string& key : keys) {
    const auto it = visits.find(key);
    ASSERT_NE(it, visits.end()) << key;
    EXPECT_EQ(it->second, 1) << key;
  }
}

TEST(ParallelScanTest, VisitsEveryEntryOnce) {
  ExpectEachOnce({});
  ExpectEachOnce({"one"});
  ExpectEachOnce({"a", "b"});
  ExpectEachOnce({"a", "a/1", "a/2"});
  ExpectEachOnce({std::string("\0", 1), "\xff\xff"});
  std::set<std::string> digits;
  for (size_t i = 0; i < 5'000; ++i) digits.insert(Digits(i));
  ExpectEachOnce(digits);
  testing::Random random(1);
  for (int round = 0; round < 20; ++round) {
    std::set<std::string> keys;
    const uint64_t longest = random.Between(1, 40);
    for (int i = 0; i < 300; ++i) {
      std::string key;
      const uint64_t size = random.Between(1, longest);
      for (uint64_t at = 0; at < size; ++at) {
        key += static_cast<char>(random.Between(0, 255));
      }
      keys.insert(key);
    }
    ExpectEachOnce(keys);
  }
}

TEST(ParallelScanTest, PartsKeysEvenly) {
  EXPECT_THAT(PartKeys("", "", 16), IsEmpty());
  EXPECT_THAT(PartKeys("same", "same", 16), IsEmpty());
  const std::vector<std::string> keys = PartKeys(Digits(0), Digits(9'999), 8);
  ASSERT_EQ(keys.size(), 7U);
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  // No part holds more than three times its share.
  size_t begin = 0;
  for (const std::string& key : keys) {
    size_t end = begin;
    while (end < 10'000 && Digits(end) < key) ++end;
    EXPECT_LE(end - begin, 3U * 10'000 / 8);
    begin = end;
  }
}

}  // namespace
}  // namespace torpor::store
