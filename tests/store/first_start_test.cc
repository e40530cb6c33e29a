// SPDX-License-Identifier: Apache-2.0
//
// A first start that did not finish leaves a data.mdb that is torn in its meta
// pages. Nothing was acknowledged in it, so the next start begins anew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lmdb.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/store/lmdb_fixture.h"
#include "tests/testing/random.h"

namespace torpor::store {
namespace {

using testing::HasCode;

constexpr size_t kMetaBytes = 8192;

// What LMDB writes before its first commit.
std::string MetaPages() {
  const testing::TempDir dir;
  MDB_env* env = nullptr;
  EXPECT_EQ(mdb_env_create(&env), 0);
  EXPECT_EQ(mdb_env_open(env, dir.path().c_str(), 0, 0600), 0);
  mdb_env_close(env);
  std::ifstream in(dir.File("data.mdb"), std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Every end of a page, of a header and of a word nearby, and random ones.
std::set<size_t> Lengths() {
  testing::Random random;
  std::set<size_t> out = {0,    1,    15,   16,   17,   100,  151, 152,
                          4095, 4096, 4097, 4112, 8190, 8191, 8192};
  while (out.size() < 48) out.insert(random.Between(0, kMetaBytes));
  return out;
}

TEST(FirstStartTest, WhatATornFirstWriteLeavesIsBegunAnew) {
  const std::string meta = MetaPages();
  ASSERT_EQ(meta.size(), kMetaBytes);
  for (const size_t length : Lengths()) {
    SCOPED_TRACE(std::to_string(length) + " bytes");
    const testing::TempDir dir;
    std::ofstream(dir.File("data.mdb"), std::ios::binary)
        .write(meta.data(), static_cast<std::streamsize>(length));
    {
      ASSERT_OK_AND_ASSIGN(auto store, OpenStore(dir.path()));
      ASSERT_OK(Suspend(store.get(), Spec("first", 0, 0, 40, "op"), 3));
    }
    ASSERT_OK_AND_ASSIGN(auto store, OpenStore(dir.path()));
    ASSERT_OK_AND_ASSIGN(const Content content,
                         ReadAll(store.get(), Key("first"), SmallLayout()));
    EXPECT_EQ(content.rows[0], Rows(3, 0, {0, 40}, 24));
  }
}

TEST(FirstStartTest, ABackupThatIsCutShortIsRefused) {
  const testing::TempDir dir;
  const testing::TempDir parent;
  const std::string copy = parent.File("copy");
  {
    ASSERT_OK_AND_ASSIGN(auto store, OpenStore(dir.path()));
    ASSERT_OK(Suspend(store.get(), Spec("first", 0, 0, 40, "op"), 3));
    ASSERT_OK(store->Backup(copy, nullptr));
  }
  for (const size_t length : {size_t{8191}, size_t{100}, size_t{0}}) {
    std::filesystem::resize_file(copy + "/data.mdb", length);
    EXPECT_THAT(OpenStore(copy), HasCode(absl::StatusCode::kDataLoss));
  }
}

}  // namespace
}  // namespace torpor::store
