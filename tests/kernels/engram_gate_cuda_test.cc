// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of engram_gate.h on the emulator: the reference's bits.

#include "kernels/engram_gate_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

struct Case {
  Case(testing::Random& random, int64_t rows, int64_t streams, int64_t dim_of)
      : n_rows(rows),
        n_streams(streams),
        dim(dim_of),
        x(RandomFloats(random, static_cast<size_t>(rows * streams * dim_of))),
        kv(RandomFloats(random,
                        static_cast<size_t>(rows * (streams + 1) * dim_of))),
        qk(RandomFloats(random, static_cast<size_t>(streams * dim_of))) {}

  [[nodiscard]] EngramGateParams Params() const {
    return {.n_rows = n_rows, .n_streams = n_streams, .dim = dim, .eps = 1e-5f};
  }
  [[nodiscard]] std::vector<float> Reference() const {
    std::vector<float> out = x;
    EngramGateParams p = Params();
    p.x = out.data();
    p.kv = kv.data();
    p.qk = qk.data();
    EngramGateRef(p);
    return out;
  }
  // The streams stand `skip` floats into their buffer.
  [[nodiscard]] std::vector<float> Emulated(size_t skip) const {
    const DeviceBuffer<float> streams(x.size() + skip, "x");
    streams.Upload(x, skip);
    const DeviceBuffer<float> keys(kv, "kv");
    const DeviceBuffer<float> weights(qk, "qk");
    EngramGateParams p = Params();
    p.x = streams.data() + skip;
    p.kv = keys.data();
    p.qk = weights.data();
    EXPECT_EQ(EngramGateCuda(p, nullptr), 0) << Reports();
    auto out = streams.Download();
    out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(skip));
    return out;
  }

  int64_t n_rows;
  int64_t n_streams;
  int64_t dim;
  std::vector<float> x;
  std::vector<float> kv;
  std::vector<float> qk;
};

class EngramGateCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

TEST_F(EngramGateCudaTest, GatesAreTheReferencesUnderEverySchedule) {
  for (const auto& [n_rows, n_streams, dim] : {std::array<int64_t, 3>{1, 1, 1},
                                               {2, 3, 17},
                                               {3, 4, 64},
                                               {1, 2, 1024},
                                               {2, 2, 1030},
                                               {1, 1, 3000}}) {
    const Case c(random_, n_rows, n_streams, dim);
    const auto wanted = c.Reference();
    ForEachSchedule([&] {
      for (const size_t skip : {0, 1}) {
        EXPECT_TRUE(SameBits(c.Emulated(skip), wanted)) << dim;
      }
    });
  }
}

TEST_F(EngramGateCudaTest, KeysOfZerosAndNanAreTheReferences) {
  Case c(random_, 3, 2, 40);
  // The gate of the least size, of a key that has none.
  std::fill_n(c.kv.begin(), 40, 0.0f);
  c.kv[3 * 40 + 5] = kNan;
  c.x[2 * 2 * 40 + 7] = kNan;
  const auto wanted = c.Reference();
  const auto got = c.Emulated(0);
  EXPECT_TRUE(Near(got, wanted, 1e-6));
  EXPECT_TRUE(std::isnan(wanted[2 * 40]));
  EXPECT_TRUE(std::isfinite(wanted[3 * 40]));
}

TEST_F(EngramGateCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(EngramGateCuda({.n_streams = 2, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
