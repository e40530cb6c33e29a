// SPDX-License-Identifier: Apache-2.0
//
// Pooled groups and the Engram's gate against the formulas in double.

#include "kernels/pool_members.h"

#include <cstring>

#include "kernels/cpu_ops.h"
#include "kernels/engram_gate.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

class PoolMembersTest : public ::testing::TestWithParam<int> {
 protected:
  testing::Random random_;
  CpuOps ops_{Isa::kPortable, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Threads, PoolMembersTest, ::testing::Values(1, 3));

TEST_P(PoolMembersTest, AChannelIsTheMeanOfItsValuesByTheSoftmaxOfItsGates) {
  constexpr int64_t kGroups = 40;
  constexpr int64_t kDim = 33;
  for (const int64_t n : {1, 2, 5}) {
    const size_t row_bytes = 2 * kDim * sizeof(float);
    auto values = RandomFloats(random_, kGroups * n * 2 * kDim, 3.0f);
    // Gates beyond what e^x holds.
    for (int64_t i = 0; i < kDim; ++i) values[kDim + i] += 200.0f;
    // Members at odd addresses, in no order.
    std::vector<uint8_t> bytes(1 + values.size() * sizeof(float));
    std::memcpy(bytes.data() + 1, values.data(), bytes.size() - 1);
    std::vector<const uint8_t*> members;
    for (int64_t i = 0; i < kGroups * n; ++i) {
      const int64_t place = kGroups * n - 1 - i;
      members.push_back(bytes.data() + 1 +
                        static_cast<size_t>(place) * row_bytes);
    }
    std::vector<float> got(kGroups * kDim, kNan);
    ops_.PoolMembers({.members = members.data(),
                      .n_groups = kGroups,
                      .n_members = n,
                      .dim = kDim,
                      .out = got.data()});
    std::vector<float> wanted(got.size());
    for (int64_t g = 0; g < kGroups; ++g) {
      for (int64_t i = 0; i < kDim; ++i) {
        const auto at = [&](int64_t t, int64_t channel) -> double {
          return values[(kGroups * n - 1 - (g * n + t)) * 2 * kDim + channel];
        };
        double sum = 0;
        double acc = 0;
        for (int64_t t = 0; t < n; ++t) {
          const double e = std::exp(at(t, kDim + i) - at(0, kDim + i));
          sum += e;
          acc += e * at(t, i);
        }
        wanted[g * kDim + i] = static_cast<float>(acc / sum);
      }
    }
    EXPECT_TRUE(Near(got, wanted, 1e-6)) << n << " members";
  }
}

TEST_P(PoolMembersTest, TheGateAddsTheValueByItsSigmoid) {
  constexpr int64_t kRows = 50;
  constexpr int64_t kStreams = 3;
  constexpr int64_t kDim = 45;
  constexpr float kEps = 1e-5f;
  const auto x = RandomFloats(random_, kRows * kStreams * kDim);
  auto kv = RandomFloats(random_, kRows * (kStreams + 1) * kDim);
  // A key of zeros: the gate is that of the least size, which is not 0.
  std::fill_n(kv.begin(), kDim, 0.0f);
  const auto qk = RandomFloats(random_, kStreams * kDim);
  std::vector<float> got = x;
  ops_.EngramGate({.x = got.data(),
                   .n_rows = kRows,
                   .n_streams = kStreams,
                   .dim = kDim,
                   .kv = kv.data(),
                   .qk = qk.data(),
                   .eps = kEps});
  std::vector<float> wanted(x.size());
  for (int64_t r = 0; r < kRows; ++r) {
    const float* keys = kv.data() + r * (kStreams + 1) * kDim;
    for (int64_t j = 0; j < kStreams; ++j) {
      const float* stream = x.data() + (r * kStreams + j) * kDim;
      double dot = 0;
      double xx = 0;
      double kk = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        const double key = keys[j * kDim + i];
        dot += stream[i] * key * qk[j * kDim + i];
        xx += static_cast<double>(stream[i]) * stream[i];
        kk += key * key;
      }
      const double t = dot / std::sqrt(xx / kDim + kEps) /
                       std::sqrt(kk / kDim + kEps) / std::sqrt(kDim);
      const double root =
          std::copysign(std::sqrt(std::max(std::abs(t), 1e-6)), t);
      const double gate = 1.0 / (1.0 + std::exp(-root));
      for (int64_t i = 0; i < kDim; ++i) {
        wanted[(r * kStreams + j) * kDim + i] =
            static_cast<float>(stream[i] + gate * keys[kStreams * kDim + i]);
      }
    }
  }
  EXPECT_TRUE(Near(got, wanted, 1e-6));
}

}  // namespace
}  // namespace torpor::kernels
