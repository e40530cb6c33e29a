// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of rope.h against their references, and
// against the bits of the CPU path.

#include "kernels/rope_cuda.h"

#include "kernels/cpu_ops.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

class RopeCudaTest : public CudaTest {
 protected:
  // [n_rows, dim] tables of scattered positions.
  static std::vector<float> Tables(int64_t n_rows, int64_t dim) {
    const auto inv_freq = RopeInvFreq(10000.0f, dim, 1.0f);
    std::vector<float> tables(static_cast<size_t>(n_rows * dim));
    for (int64_t r = 0; r < n_rows; ++r) {
      RopeTable(inv_freq, static_cast<uint64_t>(1000 * r + 3),
                tables.data() + r * dim);
    }
    return tables;
  }

  testing::Random random_;
  CpuOps cpu_{Isa::kPortable, 1};
};

TEST_F(RopeCudaTest, SplitHalvesTurnAsOnTheCpu) {
  for (const int64_t head_dim : {2, 6, 16, 80, 256}) {
    for (const int64_t n_rows : {1, 5}) {
      const auto tables = Tables(n_rows, head_dim);
      const auto x = RandomFloats(random_, n_rows * 3 * head_dim);
      auto wanted = x;
      RopeRef({wanted.data(), n_rows, 3, head_dim, tables.data()});
      auto cpu = x;
      cpu_.Rope({cpu.data(), n_rows, 3, head_dim, tables.data()});
      ForEachSchedule([&] {
        for (const size_t skip : {0, 1}) {
          const DeviceBuffer<float> at(x.size() + skip, "x");
          at.Upload(x, skip);
          const DeviceBuffer<float> table(tables, "tables");
          EXPECT_EQ(
              RopeCuda({at.data() + skip, n_rows, 3, head_dim, table.data()},
                       nullptr),
              0);
          const auto all = at.Download();
          const auto got = std::span(all).subspan(skip);
          EXPECT_TRUE(Near(got, wanted, 1e-6)) << head_dim;
          EXPECT_TRUE(SameBits(got, cpu)) << head_dim;
        }
      });
    }
  }
}

TEST_F(RopeCudaTest, TailsTurnAsOnTheCpuAndBack) {
  for (const auto& [head_dim, rope_dim] :
       std::vector<std::pair<int64_t, int64_t>>{
           {4, 4}, {16, 6}, {20, 8}, {192, 64}, {33, 10}}) {
    constexpr int64_t kRows = 3;
    const auto tables = Tables(kRows, rope_dim);
    const auto x = RandomFloats(random_, kRows * 2 * head_dim);
    for (const bool inverse : {false, true}) {
      RopeTailParams p{.n_rows = kRows,
                       .n_heads = 2,
                       .head_dim = head_dim,
                       .rope_dim = rope_dim,
                       .tables = tables.data(),
                       .inverse = inverse};
      auto wanted = x;
      p.x = wanted.data();
      RopeTailRef(p);
      auto cpu = x;
      p.x = cpu.data();
      cpu_.RopeTail(p);
      ForEachSchedule([&] {
        const DeviceBuffer<float> at(x, "x");
        const DeviceBuffer<float> table(tables, "tables");
        p.x = at.data();
        p.tables = table.data();
        EXPECT_EQ(RopeTailCuda(p, nullptr), 0);
        EXPECT_TRUE(Near(at.Download(), wanted, 1e-6)) << head_dim;
        EXPECT_TRUE(SameBits(at.Download(), cpu)) << head_dim;
      });
    }
  }
}

TEST_F(RopeCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(RopeCuda({nullptr, 0, 2, 16, nullptr}, nullptr), 0);
  EXPECT_EQ(
      RopeTailCuda({.n_heads = 2, .head_dim = 16, .rope_dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
