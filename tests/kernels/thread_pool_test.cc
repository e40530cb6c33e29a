// SPDX-License-Identifier: Apache-2.0

#include "kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace torpor::kernels {
namespace {

TEST(ThreadPoolTest, EveryTaskRunsOnceOnAThreadOfThePool) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    for (const int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<bool> strange = false;
      pool.ParallelFor(n, [&](int64_t task, int thread) {
        runs[static_cast<size_t>(task)].fetch_add(1);
        if (thread < 0 || thread >= threads) strange = true;
      });
      for (const auto& r : runs) EXPECT_EQ(r.load(), 1);
      EXPECT_FALSE(strange);
    }
  }
}

TEST(ThreadPoolTest, ManyShortLoopsFollowEachOther) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::atomic<int64_t> loop = 0;
    pool.ParallelFor(5, [&](int64_t task, int) { loop += task; });
    sum += loop;
  }
  EXPECT_EQ(sum, 200'000);
}

}  // namespace
}  // namespace torpor::kernels
