// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of pool_members.h on the emulator: the reference's bits, and
// sums in double.

#include "kernels/pool_members_cuda.h"

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// A few roundings of f32.
constexpr double kTolerance = 1e-6;

class PoolMembersCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

// Groups of members, each [values | gates].
struct Groups {
  Groups(testing::Random& random, int64_t n, int64_t n_of, int64_t dim_of)
      : n_groups(n),
        n_members(n_of),
        dim(dim_of),
        members(RandomFloats(random, static_cast<size_t>(n * n_of * 2 * dim_of),
                             4.0f)) {}

  std::vector<float> Emulated(int64_t first, int64_t n) const {
    const DeviceBuffer<float> floats(members, "members");
    std::vector<const uint8_t*> pointers;
    for (int64_t m = first * n_members; m < (first + n) * n_members; ++m) {
      pointers.push_back(
          reinterpret_cast<const uint8_t*>(floats.data() + m * 2 * dim));
    }
    const DeviceBuffer<const uint8_t*> lists(pointers, "lists");
    const DeviceBuffer<float> out(static_cast<size_t>(n * dim), "out");
    EXPECT_EQ(PoolMembersCuda({.members = lists.data(),
                               .n_groups = n,
                               .n_members = n_members,
                               .dim = dim,
                               .out = out.data()},
                              nullptr),
              0)
        << Reports();
    return out.Download();
  }

  std::vector<float> Reference() const {
    std::vector<const uint8_t*> pointers;
    for (int64_t m = 0; m < n_groups * n_members; ++m) {
      pointers.push_back(
          reinterpret_cast<const uint8_t*>(members.data() + m * 2 * dim));
    }
    std::vector<float> out(static_cast<size_t>(n_groups * dim));
    PoolMembersRef({.members = pointers.data(),
                    .n_groups = n_groups,
                    .n_members = n_members,
                    .dim = dim,
                    .out = out.data()});
    return out;
  }
  std::vector<float> InDouble() const {
    std::vector<float> out;
    for (int64_t i = 0; i < n_groups * dim; ++i) {
      const float* group = members.data() + i / dim * n_members * 2 * dim;
      double sum = 0;
      double acc = 0;
      for (int64_t t = 0; t < n_members; ++t) {
        const float* member = group + t * 2 * dim + i % dim;
        const double e = std::exp(static_cast<double>(member[dim]));
        sum += e;
        acc += e * member[0];
      }
      out.push_back(static_cast<float>(acc / sum));
    }
    return out;
  }

  int64_t n_groups, n_members, dim;
  std::vector<float> members;
};

TEST_F(PoolMembersCudaTest, GroupsPoolAsTheirSoftmaxSays) {
  for (const auto& [n, n_members, dim] : {std::array<int64_t, 3>{1, 1, 1},
                                          {3, 2, 512},
                                          {2, 2, 37},
                                          {4, 4, 130},
                                          {1, 128, 20}}) {
    const Groups groups(random_, n, n_members, dim);
    const auto all = groups.Emulated(0, n);
    EXPECT_TRUE(SameBits(all, groups.Reference())) << dim;
    EXPECT_TRUE(Near(all, groups.InDouble(), kTolerance)) << dim;
    // Design D9.
    for (int64_t g = 0; g < n; ++g) {
      EXPECT_TRUE(SameBits(groups.Emulated(g, 1),
                           std::span(all).subspan(static_cast<size_t>(g * dim),
                                                  static_cast<size_t>(dim))));
    }
    ForEachSchedule([&] { EXPECT_TRUE(SameBits(groups.Emulated(0, n), all)); });
  }
}

TEST_F(PoolMembersCudaTest, GatesOfAnySizeStayFiniteAndNanStaysInItsChannel) {
  Groups groups(random_, 1, 2, 8);
  for (size_t i = 0; i < 8; ++i) {
    groups.members[8 + i] = i % 2 == 0 ? 1e30f : -1e30f;
  }
  for (const float v : groups.Emulated(0, 1)) EXPECT_TRUE(std::isfinite(v));
  // A gate of the first member, one of the second, a value.
  for (const size_t at : {8 + 1, 24 + 2, 16 + 3}) groups.members[at] = kNan;
  const auto got = groups.Emulated(0, 1);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::isnan(got[i]), i >= 1 && i <= 3) << i;
  }
}

TEST_F(PoolMembersCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(PoolMembersCuda({.n_members = 2, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
