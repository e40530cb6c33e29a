// SPDX-License-Identifier: Apache-2.0
//
// A suspend takes no more memory than the buffers allow, however fast its rows
// come and however slow the disk is.

#include <gtest/gtest.h>

#include <fstream>

#include "tests/store/lmdb_fixture.h"

namespace torpor::store {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Anonymous memory of this process, bytes. The map of the data file is none.
uint64_t AnonymousBytes() {
  std::ifstream in("/proc/self/status");
  std::string key;
  while (in >> key) {
    if (key == "RssAnon:") {
      uint64_t kib = 0;
      in >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

TEST(WriteMemoryTest, RowsThatComeFasterThanTheDiskTakesThemWait) {
  constexpr uint64_t kBlocks = 192;
  testing::TempDir dir;
  LmdbStoreOptions options = SmallStore(dir.path());
  options.buffer_bytes = 8 * kMiB;
  ASSERT_OK_AND_ASSIGN(const auto store, LmdbSessionStore::Open(options));
  SuspendSpec spec;
  spec.session = {0, "long"};
  spec.operation_id = "op";
  spec.model = "m";
  spec.numerics_id = "n";
  spec.layout.fingerprint.fill(7);
  spec.layout.block_size = 16;
  // 1 MiB a block.
  spec.layout.slots = {{64 * 1024, 1}};
  spec.new_tokens.ids.assign(16 * kBlocks, 1);
  spec.kv_len = 16 * kBlocks;
  ASSERT_OK_AND_ASSIGN(const BeginResult begin, store->Begin(spec));
  std::vector<uint8_t> rows(kMiB);
  const uint64_t before = AnonymousBytes();
  ASSERT_NE(before, 0);
  uint64_t most = 0;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    rows[0] = static_cast<uint8_t>(block);
    ASSERT_OK(begin.ticket->Put(Piece(0, {16 * block, 16 * (block + 1)}, rows),
                                rows));
    most = std::max(most, AnonymousBytes());
  }
  ASSERT_OK(begin.ticket->Commit({}).status());
  // The buffers, a block beyond them, and the pages of the transactions that
  // write: 9 MiB on the development machine, and 86 to 154 where rows never
  // wait. Sanitizers keep freed memory for a while.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "memory of a sanitized process says little";
#endif
  EXPECT_LT(most - std::min(most, before), 48 * kMiB);
}

}  // namespace
}  // namespace torpor::store
