// SPDX-License-Identifier: Apache-2.0
//
// Where rows of runs stand in buffers.

#include "replay/row_batch.h"

#include <gtest/gtest.h>

namespace torpor::replay {
namespace {

using Blocks = std::vector<RowBlock>;

TEST(RowBatchTest, RunsThatFollowEachOtherAreOneBlock) {
  const RowRun runs[] = {{.segment = 0, .row = 2, .n = 3},
                         {.segment = 1, .row = 5, .n = 1},
                         {.segment = 3, .row = 9, .n = 2}};
  EXPECT_EQ(BlocksOf(runs), Blocks({{2, 4}, {9, 2}}));
  EXPECT_EQ(BlocksOf({}), Blocks());
}

TEST(RowBatchTest, RunsAreTheEndsOfThoseThatABufferHolds) {
  const RowRun from[] = {{.segment = 0, .row = 10, .n = 4},
                         {.segment = 2, .row = 30, .n = 5},
                         {.segment = 3, .row = 50, .n = 3}};
  const RowRun some[] = {{.segment = 0, .row = 12, .n = 2},
                         {.segment = 3, .row = 50, .n = 3}};
  EXPECT_EQ(BlocksIn(some, from), Blocks({{2, 2}, {9, 3}}));
  const RowRun adjacent[] = {{.segment = 0, .row = 13, .n = 1},
                             {.segment = 2, .row = 30, .n = 5}};
  EXPECT_EQ(BlocksIn(adjacent, from), Blocks({{3, 6}}));
  EXPECT_EQ(BlocksIn(from, from), Blocks({{0, 12}}));
}

}  // namespace
}  // namespace torpor::replay
