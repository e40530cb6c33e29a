// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of experts.h on the emulator against the references: here
// the library's double functions are the same, so are the bits.

#include "kernels/experts_cuda.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> affinities;
};

struct RouteCase {
  int64_t n_rows;
  int64_t n_experts;
  int64_t k;
  float temperature = 1.0f;
};

struct Router {
  Router(testing::Random& random, const RouteCase& c)
      : shape(c),
        bias(RandomFloats(random, static_cast<size_t>(c.n_experts), 0.3f)),
        logits(RandomFloats(random, static_cast<size_t>(c.n_rows * c.n_experts),
                            2.0f)) {}

  [[nodiscard]] ChooseExpertsParams Params(int64_t n_rows) const {
    return {.n_rows = n_rows,
            .n_experts = shape.n_experts,
            .temperature = shape.temperature,
            .k = shape.k};
  }
  [[nodiscard]] Choice Emulated() const { return Emulated(0, shape.n_rows); }
  [[nodiscard]] Choice Emulated(int64_t first, int64_t n) const {
    const auto at = logits.begin() + first * shape.n_experts;
    const DeviceBuffer<float> affinities(
        std::vector<float>(at, at + n * shape.n_experts), "affinities");
    const DeviceBuffer<float> biases(bias, "bias");
    const DeviceBuffer<int32_t> experts(static_cast<size_t>(n * shape.k),
                                        "experts");
    ChooseExpertsParams p = Params(n);
    p.affinities = affinities.data();
    p.bias = biases.data();
    p.experts = experts.data();
    EXPECT_EQ(ChooseExpertsCuda(p, nullptr), 0) << Reports();
    return {experts.Download(), affinities.Download()};
  }
  [[nodiscard]] Choice Reference() const {
    Choice out{
        std::vector<int32_t>(static_cast<size_t>(shape.n_rows * shape.k)),
        logits};
    ChooseExpertsParams p = Params(shape.n_rows);
    p.affinities = out.affinities.data();
    p.bias = bias.data();
    p.experts = out.experts.data();
    ChooseExpertsRef(p);
    return out;
  }

  RouteCase shape;
  std::vector<float> bias;
  std::vector<float> logits;
};

class ExpertsCudaTest : public CudaTest {
 protected:
  // NaN may have other bits.
  static void ExpectChoice(const Choice& got, const Choice& wanted) {
    EXPECT_EQ(got.experts, wanted.experts);
    EXPECT_TRUE(Near(got.affinities, wanted.affinities, 0));
  }

  testing::Random random_;
};

TEST_F(ExpertsCudaTest, ExpertsAreTheReferences) {
  for (const RouteCase& c : {RouteCase{1, 1, 1},
                             {4, 2, 1},
                             {5, 7, 7},
                             {20, 384, 6, 0.7f},
                             {3, 256, 8},
                             {3, 257, 40},
                             {2, 1024, 6}}) {
    const Router router(random_, c);
    const Choice wanted = router.Reference();
    ForEachSchedule([&] { ExpectChoice(router.Emulated(), wanted); });
  }
}

// Design D9.
TEST_F(ExpertsCudaTest, RowsIgnoreTheirCompany) {
  const Router router(random_, {5, 384, 6});
  const Choice all = router.Emulated();
  for (int64_t r = 0; r < 5; ++r) {
    const Choice one = router.Emulated(r, 1);
    EXPECT_TRUE(std::equal(one.experts.begin(), one.experts.end(),
                           all.experts.begin() + 6 * r));
    EXPECT_TRUE(SameBits(
        one.affinities,
        std::span(all.affinities).subspan(static_cast<size_t>(384 * r), 384)));
  }
}

TEST_F(ExpertsCudaTest, TiesGoToTheLowerExpertAndNanFirst) {
  Router router(random_, {6, 40, 3});
  std::fill(router.bias.begin(), router.bias.end(), 0.5f);
  for (size_t i = 0; i < router.logits.size(); ++i) {
    router.logits[i] = static_cast<float>(random_.Between(0, 2));
  }
  router.logits[2 * 40 + 39] = kNan;
  // Minus infinity is an affinity of 0, and a bias that nobody else beats.
  router.bias[17] = -std::numeric_limits<float>::infinity();
  std::fill_n(router.logits.begin() + 3 * 40, 40,
              -std::numeric_limits<float>::infinity());
  std::fill_n(router.logits.begin() + 4 * 40, 40,
              std::numeric_limits<float>::infinity());
  ExpectChoice(router.Emulated(), router.Reference());
}

TEST_F(ExpertsCudaTest, AffinitiesOfAnySizeAreTheReferences) {
  Router router(random_, {1, 16, 2});
  router.logits = {-170.0f, -120.0f, -104.0f, -88.0f, -30.0f, -17.01f,
                   -16.99f, -5.0f,   -1e-3f,  0.0f,   1e-30f, 0.5f,
                   17.0f,   88.0f,   1e4f,    1e30f};
  ExpectChoice(router.Emulated(), router.Reference());
}

// Choices of k experts a row, and the lists that follow from them.
struct Groups {
  Groups(testing::Random& random, int64_t rows, int64_t experts_of,
         int64_t k_of)
      : n_rows(rows),
        n_experts(experts_of),
        k(k_of),
        affinities(
            RandomFloats(random, static_cast<size_t>(rows * experts_of))),
        first(static_cast<size_t>(experts_of) + 1) {
    std::vector<int32_t> all(static_cast<size_t>(n_experts));
    std::iota(all.begin(), all.end(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      // Some experts are in favour, some serve nobody.
      std::shuffle(all.begin(), all.begin() + (r % 2 == 0 ? n_experts : k),
                   random.engine());
      std::vector<int32_t> row(all.begin(), all.begin() + k);
      std::sort(row.begin(), row.end());
      experts.insert(experts.end(), row.begin(), row.end());
    }
    rows_of.resize(experts.size());
    weights.resize(experts.size());
    entries.resize(experts.size());
    GroupExpertsParams p = Params();
    p.affinities = affinities.data();
    p.experts = experts.data();
    p.first = first.data();
    p.rows = rows_of.data();
    p.weights = weights.data();
    p.entries = entries.data();
    GroupExpertsRef(p);
  }

  [[nodiscard]] GroupExpertsParams Params() const {
    return {.n_rows = n_rows, .n_experts = n_experts, .scale = 1.5f, .k = k};
  }

  int64_t n_rows;
  int64_t n_experts;
  int64_t k;
  std::vector<float> affinities;
  std::vector<int32_t> experts;
  std::vector<int32_t> first;
  std::vector<int32_t> rows_of;
  std::vector<float> weights;
  std::vector<int32_t> entries;
};

TEST_F(ExpertsCudaTest, ListsAreTheReferencesUnderEverySchedule) {
  struct Shape {
    int64_t n_rows, n_experts, k;
  };
  for (const Shape& s : {Shape{0, 3, 2},
                         {1, 1, 1},
                         {1, 384, 6},
                         {7, 5, 5},
                         {300, 12, 6},
                         {1100, 3, 1}}) {
    const Groups groups(random_, s.n_rows, s.n_experts, s.k);
    ForEachSchedule([&] {
      const DeviceBuffer<float> affinities(groups.affinities, "affinities");
      const DeviceBuffer<int32_t> experts(groups.experts, "experts");
      const DeviceBuffer<int32_t> first(groups.first.size(), "first");
      const DeviceBuffer<int32_t> rows(groups.experts.size(), "rows");
      const DeviceBuffer<float> weights(groups.experts.size(), "weights");
      const DeviceBuffer<int32_t> entries(groups.experts.size(), "entries");
      GroupExpertsParams p = groups.Params();
      p.affinities = affinities.data();
      p.experts = experts.data();
      p.first = first.data();
      p.rows = rows.data();
      p.weights = weights.data();
      p.entries = entries.data();
      ASSERT_EQ(GroupExpertsCuda(p, nullptr), 0) << Reports();
      EXPECT_EQ(first.Download(), groups.first);
      EXPECT_EQ(rows.Download(), groups.rows_of);
      EXPECT_TRUE(SameBits(weights.Download(), groups.weights));
      EXPECT_EQ(entries.Download(), groups.entries);
    });
  }
}

TEST_F(ExpertsCudaTest, SoftmaxExpertsAreTheReferences) {
  for (const RouteCase& c :
       {RouteCase{1, 1, 1}, {5, 7, 7}, {6, 32, 4}, {3, 257, 40}}) {
    auto logits = RandomFloats(
        random_, static_cast<size_t>(c.n_rows * c.n_experts), 4.0f);
    // Ties, and in the last rows what is no number.
    for (int64_t e = 0; e < c.n_experts; e += 2) {
      logits[static_cast<size_t>(e)] = 1.5f;
    }
    if (c.n_rows > 4) {
      const float inf = std::numeric_limits<float>::infinity();
      logits[static_cast<size_t>(3 * c.n_experts) + 2] = kNan;
      logits[static_cast<size_t>(4 * c.n_experts) + 3] = -inf;
    }
    std::vector<float> wanted = logits;
    std::vector<int32_t> chosen(static_cast<size_t>(c.n_rows * c.k));
    ChooseSoftmaxExpertsRef({.affinities = wanted.data(),
                             .n_rows = c.n_rows,
                             .n_experts = c.n_experts,
                             .k = c.k,
                             .experts = chosen.data()});
    ForEachSchedule([&] {
      const DeviceBuffer<float> affinities(logits, "affinities");
      const DeviceBuffer<int32_t> experts(chosen.size(), "experts");
      ASSERT_EQ(ChooseSoftmaxExpertsCuda({.affinities = affinities.data(),
                                          .n_rows = c.n_rows,
                                          .n_experts = c.n_experts,
                                          .k = c.k,
                                          .experts = experts.data()},
                                         nullptr),
                0)
          << Reports();
      EXPECT_EQ(experts.Download(), chosen) << c.n_experts;
      EXPECT_TRUE(Near(affinities.Download(), wanted, 0)) << c.n_experts;
    });
  }
}

TEST_F(ExpertsCudaTest, EntriesTakeTheBiasOfTheirExpertAndTheirWeight) {
  for (const int64_t dim : {1, 7, 64, 1030}) {
    const Groups groups(random_, 5, 9, 4);
    const auto x =
        RandomFloats(random_, groups.experts.size() * static_cast<size_t>(dim));
    const auto bias = RandomFloats(random_, static_cast<size_t>(9 * dim));
    for (const bool weighed : {false, true}) {
      std::vector<float> wanted = x;
      BiasExpertsRef({.x = wanted.data(),
                      .first = groups.first.data(),
                      .n_experts = 9,
                      .n_entries = 20,
                      .dim = dim,
                      .bias = bias.data(),
                      .weights = weighed ? groups.weights.data() : nullptr});
      ForEachSchedule([&] {
        const DeviceBuffer<float> sums(x, "x");
        const DeviceBuffer<int32_t> first(groups.first, "first");
        const DeviceBuffer<float> biases(bias, "bias");
        const DeviceBuffer<float> weights(groups.weights, "weights");
        ASSERT_EQ(
            BiasExpertsCuda({.x = sums.data(),
                             .first = first.data(),
                             .n_experts = 9,
                             .n_entries = 20,
                             .dim = dim,
                             .bias = biases.data(),
                             .weights = weighed ? weights.data() : nullptr},
                            nullptr),
            0)
            << Reports();
        EXPECT_TRUE(SameBits(sums.Download(), wanted)) << dim;
      });
    }
  }
}

TEST_F(ExpertsCudaTest, SumsAreTheReferences) {
  for (const int64_t dim : {1, 7, 64, 1030}) {
    const Groups groups(random_, 5, 9, 4);
    const auto x =
        RandomFloats(random_, groups.experts.size() * static_cast<size_t>(dim));
    const auto shared =
        RandomFloats(random_, static_cast<size_t>(groups.n_rows * dim));
    for (const bool has_shared : {false, true}) {
      SumExpertsParams p{.x = x.data(),
                         .entries = groups.entries.data(),
                         .n_rows = groups.n_rows,
                         .k = 4,
                         .dim = dim,
                         .shared = has_shared ? shared.data() : nullptr};
      std::vector<float> wanted(shared.size());
      p.out = wanted.data();
      SumExpertsRef(p);
      const DeviceBuffer<float> by_entry(x, "x");
      const DeviceBuffer<int32_t> entries(groups.entries, "entries");
      const DeviceBuffer<float> out(shared, "out");
      p.x = by_entry.data();
      p.entries = entries.data();
      p.out = out.data();
      // In place.
      if (has_shared) p.shared = out.data();
      ASSERT_EQ(SumExpertsCuda(p, nullptr), 0) << Reports();
      EXPECT_TRUE(SameBits(out.Download(), wanted)) << dim;
    }
  }
}

TEST_F(ExpertsCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(ChooseExpertsCuda({.n_experts = 4, .k = 2}, nullptr), 0);
  EXPECT_EQ(ChooseSoftmaxExpertsCuda({.n_experts = 4, .k = 2}, nullptr), 0);
  EXPECT_EQ(BiasExpertsCuda({.n_experts = 4, .dim = 8}, nullptr), 0);
  EXPECT_EQ(SumExpertsCuda({.k = 2, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
