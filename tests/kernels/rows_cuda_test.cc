// SPDX-License-Identifier: Apache-2.0
//
// Rows by index on the emulator, against plain loops.

#include "kernels/rows_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

class RowsCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

constexpr int64_t kDims[] = {1, 3, 8, 66, 1028};

TEST_F(RowsCudaTest, EmbedRowsReadsAndScales) {
  const std::vector<uint32_t> ids = {4, 0, 4, 9};
  for (const int64_t dim : kDims) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const auto table = RandomFloats(random_, 10 * dim);
      const auto half = ToBf16s(table);
      const size_t bytes = table.size() * DTypeBytes(dtype);
      std::vector<float> wanted;
      for (const uint32_t id : ids) {
        for (int64_t i = 0; i < dim; ++i) {
          const float v = table[id * dim + i];
          wanted.push_back((dtype == DType::kBf16 ? RoundToBf16(v) : v) * 3.3f);
        }
      }
      ForEachSchedule([&] {
        const DeviceBuffer<uint8_t> at(bytes, "table");
        at.Upload({dtype == DType::kBf16
                       ? reinterpret_cast<const uint8_t*>(half.data())
                       : reinterpret_cast<const uint8_t*>(table.data()),
                   bytes});
        const DeviceBuffer<uint32_t> rows(ids, "ids");
        const DeviceBuffer<float> out(wanted.size(), "out");
        EXPECT_EQ(EmbedRowsCuda({.table = at.data(),
                                 .dtype = dtype,
                                 .ids = rows.data(),
                                 .n_rows = 4,
                                 .dim = dim,
                                 .scale = 3.3f,
                                 .out = out.data()},
                                nullptr),
                  0);
        EXPECT_TRUE(SameBits(out.Download(), wanted)) << dim;
      });
    }
  }
}

TEST_F(RowsCudaTest, ScatteringUndoesGathering) {
  const std::vector<int32_t> index = {3, 0, 4, 1};
  for (const int64_t dim : kDims) {
    const auto x = RandomFloats(random_, 5 * dim);
    ForEachSchedule([&] {
      const DeviceBuffer<float> from(x, "x");
      const DeviceBuffer<int32_t> rows(index, "index");
      const DeviceBuffer<float> gathered(4 * dim, "gathered");
      EXPECT_EQ(
          GatherRowsCuda({from.data(), rows.data(), 4, dim, gathered.data()},
                         nullptr),
          0);
      const auto got = gathered.Download();
      const DeviceBuffer<float> back(5 * dim, "back");
      EXPECT_EQ(
          ScatterRowsCuda({gathered.data(), rows.data(), 4, dim, back.data()},
                          nullptr),
          0);
      const auto scattered = back.Download();
      for (int64_t i = 0; i < 4 * dim; ++i) {
        const int64_t at = index[i / dim] * dim + i % dim;
        ASSERT_EQ(got[i], x[at]);
        ASSERT_EQ(scattered[at], x[at]);
      }
      for (int64_t i = 2 * dim; i < 3 * dim; ++i) {
        ASSERT_TRUE(std::isnan(scattered[i])) << "a row that no index names";
      }
    });
  }
}

TEST_F(RowsCudaTest, AddRowsAddsInTheOrderOfItsPicks) {
  const std::vector<int32_t> index = {0, 1, 2, -1, 2, 2, -1, -1, -1, 1, 0, -1};
  for (const int64_t dim : kDims) {
    // Sizes apart, so that the order of additions shows.
    auto x = RandomFloats(random_, 3 * dim);
    for (int64_t i = 0; i < dim; ++i) x[i] *= 1e6f;
    const auto base = RandomFloats(random_, 4 * dim);
    auto wanted = base;
    for (int64_t row = 0; row < 4; ++row) {
      for (int64_t pick = 0; pick < 3; ++pick) {
        const int32_t from = index[row * 3 + pick];
        if (from < 0) continue;
        for (int64_t i = 0; i < dim; ++i) {
          wanted[row * dim + i] += x[from * dim + i];
        }
      }
    }
    ForEachSchedule([&] {
      const DeviceBuffer<float> from(x, "x");
      const DeviceBuffer<int32_t> rows(index, "index");
      const DeviceBuffer<float> out(base, "out");
      EXPECT_EQ(AddRowsCuda({from.data(), rows.data(), 4, dim, out.data(), 3},
                            nullptr),
                0);
      EXPECT_TRUE(SameBits(out.Download(), wanted)) << dim;
    });
  }
}

TEST_F(RowsCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(EmbedRowsCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(GatherRowsCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(ScatterRowsCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(AddRowsCuda({.dim = 4}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
