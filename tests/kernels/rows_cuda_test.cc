// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of row_moves.h on the emulator, against plain loops.

#include "kernels/rows_cuda.h"

#include <algorithm>

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

TEST_F(RowsCudaTest, ScatteredRowsGoWhereTheirPointersSay) {
  for (const int64_t dim : kDims) {
    const int64_t stride = dim + 2;
    const auto x = RandomFloats(random_, 4 * stride);
    const auto* from = reinterpret_cast<const uint8_t*>(x.data());
    // Places that are aligned to 16 bytes, to 4 and to none, in another order.
    const auto row_bytes = static_cast<size_t>(dim) * sizeof(float);
    const size_t room = (row_bytes + 15) / 16 * 16 + 16;
    const std::vector<size_t> at = {3 * room, 4, room + 1, 2 * room};
    const std::vector<uint8_t> noise(4 * room, 0xab);
    auto wanted = noise;
    for (size_t row = 0; row < at.size(); ++row) {
      std::copy_n(from + row * static_cast<size_t>(stride) * sizeof(float),
                  row_bytes, wanted.begin() + static_cast<ptrdiff_t>(at[row]));
    }
    ForEachSchedule([&] {
      const DeviceBuffer<float> rows(x, "x");
      const DeviceBuffer<uint8_t> out(noise, "out");
      std::vector<uint8_t*> pointers;
      for (const size_t place : at) pointers.push_back(out.data() + place);
      const DeviceBuffer<uint8_t*> places(pointers, "places");
      EXPECT_EQ(ScatterRowsCuda({.x = rows.data(),
                                 .x_stride = stride,
                                 .n_rows = 4,
                                 .dim = dim,
                                 .out = places.data()},
                                nullptr),
                0);
      EXPECT_EQ(out.Download(), wanted) << dim;
    });
  }
}

TEST_F(RowsCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(EmbedRowsCuda({.dim = 4}, nullptr), 0);
  EXPECT_EQ(ScatterRowsCuda({.dim = 4}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
