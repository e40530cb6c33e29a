// SPDX-License-Identifier: Apache-2.0
//
// Hashes of rows against base/hash.h.

#include "kernels/row_hash_cuda.h"

#include "base/hash.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

class RowHashCudaTest : public CudaTest {
 protected:
  // Hashes of n_rows rows as the device has them, and as the host has.
  void Compare(int64_t n_rows, int64_t n_bytes, int64_t stride, size_t skip) {
    const auto used =
        static_cast<size_t>((n_rows - 1) * stride + n_bytes) + skip;
    std::vector<uint8_t> bytes(used);
    random_.Fill(bytes);
    const DeviceBuffer<uint8_t> rows(bytes, "rows");
    const DeviceBuffer<uint64_t> out(n_rows, "out");
    ASSERT_EQ(RowHashCuda({.rows = rows.data() + skip,
                           .n_rows = n_rows,
                           .n_bytes = n_bytes,
                           .stride = stride,
                           .out = out.data()},
                          nullptr),
              0);
    std::vector<uint64_t> wanted;
    for (int64_t row = 0; row < n_rows; ++row) {
      wanted.push_back(Xxh3(
          std::span(bytes).subspan(skip + static_cast<size_t>(row * stride),
                                   static_cast<size_t>(n_bytes))));
    }
    ASSERT_EQ(out.Download(), wanted) << n_bytes << " bytes";
  }

  testing::Random random_;
};

TEST_F(RowHashCudaTest, EveryLengthHasTheHashOfTheLibrary) {
  // Each length of the short forms, then around the edges of stripes and of
  // blocks of 16 of them.
  for (int64_t n = 0; n <= 340; ++n) Compare(2, n, n, n % 3);
  for (const int64_t edge : {1024, 2048, 3072, 4096}) {
    for (const int64_t off : {-65, -64, -1, 0, 1, 63, 64, 65}) {
      Compare(2, edge + off, edge + off, 0);
    }
  }
}

TEST_F(RowHashCudaTest, RowsMayLieApartUnderEverySchedule) {
  ForEachSchedule([&] {
    for (const int64_t n : {0, 3, 8, 100, 240, 241, 512, 2048, 4096}) {
      Compare(1, n, n, 0);
      Compare(33, n, n + 8, 0);
      Compare(5, n, n + 13, 1);
    }
  });
}

TEST_F(RowHashCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(RowHashCuda({}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
