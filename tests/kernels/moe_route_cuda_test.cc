// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of moe_route_cuda.h on the emulator against
// tests/kernels/choices.h.

#include "kernels/moe_route_cuda.h"

#include <algorithm>
#include <numeric>

#include "tests/kernels/choices.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

// An affinity is rounded a few times in f32, where the reference rounds once.
constexpr float kTolerance = 1e-5f;
// Scores that are further apart, or equal, are chosen alike.
constexpr float kMargin = 1e-4f;

struct Choice {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

struct RouteCase {
  int64_t n_rows;
  int64_t n_experts;
  int64_t k;
  float temperature = 1.0f;
};

class Router {
 public:
  Router(testing::Random& random, const RouteCase& c)
      : case_(c),
        bias(RandomFloats(random, static_cast<size_t>(c.n_experts), 0.3f)) {
    for (int64_t r = 0; r < c.n_rows; ++r) {
      std::vector<float> row;
      do {
        row = RandomFloats(random, static_cast<size_t>(c.n_experts), 2.0f);
      } while (!HasMargin(row));
      logits.insert(logits.end(), row.begin(), row.end());
    }
  }

  Choice Emulated() const { return Emulated(0, case_.n_rows); }
  Choice Emulated(int64_t first, int64_t n) const {
    const auto at = logits.begin() + first * case_.n_experts;
    const DeviceBuffer<float> rows(
        std::vector<float>(at, at + n * case_.n_experts), "logits");
    const DeviceBuffer<float> biases(bias, "bias");
    const auto size = static_cast<size_t>(n * case_.k);
    const DeviceBuffer<int32_t> experts(size, "experts");
    const DeviceBuffer<float> weights(size, "weights");
    EXPECT_EQ(RouteCuda({.logits = rows.data(),
                         .n_rows = n,
                         .n_experts = case_.n_experts,
                         .k = case_.k,
                         .temperature = case_.temperature,
                         .scale = 1.5f,
                         .bias = biases.data(),
                         .experts = experts.data(),
                         .weights = weights.data()},
                        nullptr),
              0)
        << Reports();
    return {experts.Download(), weights.Download()};
  }

  Choice Reference() const {
    Choice out;
    for (int64_t r = 0; r < case_.n_rows; ++r) {
      const auto at = logits.begin() + r * case_.n_experts;
      const auto affinities =
          Affinities(std::vector<float>(at, at + case_.n_experts));
      const auto experts = ChooseExperts(affinities, bias, case_.k);
      const auto weights = ExpertWeightsOf(affinities, experts, 1.5f);
      out.experts.insert(out.experts.end(), experts.begin(), experts.end());
      out.weights.insert(out.weights.end(), weights.begin(), weights.end());
    }
    return out;
  }

 private:
  std::vector<float> Affinities(const std::vector<float>& row) const {
    std::vector<float> out;
    for (const float v : row) out.push_back(Affinity(v / case_.temperature));
    return out;
  }

  // Whether rounding leaves no doubt about who is chosen.
  bool HasMargin(const std::vector<float>& row) const {
    std::vector<float> scores = Affinities(row);
    for (size_t e = 0; e < scores.size(); ++e) scores[e] += bias[e];
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const auto k = static_cast<size_t>(case_.k);
    return k == scores.size() || scores[k - 1] - scores[k] > kMargin;
  }

  const RouteCase case_;

 public:
  std::vector<float> bias;
  std::vector<float> logits;
};

class MoeRouteCudaTest : public CudaTest {
 protected:
  static void ExpectWeights(const Choice& got, const Choice& wanted) {
    ASSERT_EQ(got.weights.size(), wanted.weights.size());
    for (size_t i = 0; i < wanted.weights.size(); ++i) {
      if (std::isnan(wanted.weights[i])) {
        EXPECT_TRUE(std::isnan(got.weights[i])) << i;
      } else {
        EXPECT_NEAR(got.weights[i], wanted.weights[i],
                    kTolerance * std::abs(wanted.weights[i]))
            << i;
      }
    }
  }

  testing::Random random_;
};

TEST_F(MoeRouteCudaTest, ExpertsAreTheReferences) {
  for (const RouteCase& c : {RouteCase{1, 1, 1},
                             {4, 2, 1},
                             {5, 7, 7},
                             {20, 384, 6, 0.7f},
                             {3, 256, 8},
                             {3, 257, 40},
                             {2, 1024, 6}}) {
    const Router router(random_, c);
    const Choice wanted = router.Reference();
    ForEachSchedule([&] {
      const Choice got = router.Emulated();
      EXPECT_EQ(got.experts, wanted.experts) << c.n_experts;
      ExpectWeights(got, wanted);
    });
  }
}

// Design D9.
TEST_F(MoeRouteCudaTest, RowsIgnoreTheirCompany) {
  const Router router(random_, {5, 384, 6});
  const Choice all = router.Emulated();
  for (int64_t r = 0; r < 5; ++r) {
    const Choice one = router.Emulated(r, 1);
    EXPECT_TRUE(std::equal(one.experts.begin(), one.experts.end(),
                           all.experts.begin() + 6 * r));
    EXPECT_TRUE(SameBits(
        one.weights,
        std::span(all.weights).subspan(static_cast<size_t>(6 * r), 6)));
  }
}

TEST_F(MoeRouteCudaTest, TiesGoToTheLowerExpertAndNanFirst) {
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
  const Choice got = router.Emulated();
  const Choice wanted = router.Reference();
  EXPECT_EQ(got.experts, wanted.experts);
  ExpectWeights(got, wanted);
}

// Beside an affinity of about 1, so that each one's own shows in its weight.
TEST_F(MoeRouteCudaTest, AffinitiesOfAnySizeAreTheReferences) {
  const std::vector<float> logits = {
      -170.0f, -120.0f, -104.0f, -88.0f, -30.0f, -17.01f, -16.99f, -5.0f,
      -1e-3f,  0.0f,    1e-30f,  0.5f,   17.0f,  88.0f,   1e4f,    1e30f};
  Router router(random_, {static_cast<int64_t>(logits.size()), 2, 2});
  for (size_t i = 0; i < logits.size(); ++i) {
    router.logits[2 * i] = logits[i];
    router.logits[2 * i + 1] = 0.8f;
  }
  ExpectWeights(router.Emulated(), router.Reference());
}

// Choices of k experts a row, and the lists that follow from them.
struct Groups {
  Groups(testing::Random& random, int64_t rows, int64_t n_experts, int64_t k_of)
      : n_rows(rows), k(k_of), begin(static_cast<size_t>(n_experts) + 1) {
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
    weights = RandomFloats(random, experts.size());
    places.resize(experts.size());
    for (int32_t e = 0; e < n_experts; ++e) {
      begin[static_cast<size_t>(e)] = static_cast<int32_t>(rows_of.size());
      for (size_t i = 0; i < experts.size(); ++i) {
        if (experts[i] != e) continue;
        places[i] = static_cast<int32_t>(rows_of.size());
        rows_of.push_back(static_cast<int32_t>(i) / static_cast<int32_t>(k));
        weights_of.push_back(weights[i]);
      }
    }
    begin.back() = static_cast<int32_t>(rows_of.size());
  }

  int64_t n_rows;
  int64_t k;
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<int32_t> begin;
  std::vector<int32_t> rows_of;
  std::vector<float> weights_of;
  std::vector<int32_t> places;
};

TEST_F(MoeRouteCudaTest, ListsAreInOrderOfRowsUnderEverySchedule) {
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
      const DeviceBuffer<int32_t> experts(groups.experts, "experts");
      const DeviceBuffer<float> weights(groups.weights, "weights");
      const DeviceBuffer<int32_t> begin(groups.begin.size(), "group_begin");
      const DeviceBuffer<int32_t> row(groups.experts.size(), "entry_row");
      const DeviceBuffer<float> weight(groups.experts.size(), "entry_weight");
      const DeviceBuffer<int32_t> places(groups.experts.size(), "places");
      ASSERT_EQ(GroupByExpertCuda({.experts = experts.data(),
                                   .weights = weights.data(),
                                   .n_rows = s.n_rows,
                                   .k = s.k,
                                   .n_experts = s.n_experts,
                                   .group_begin = begin.data(),
                                   .entry_row = row.data(),
                                   .entry_weight = weight.data(),
                                   .places = places.data()},
                                  nullptr),
                0)
          << Reports();
      EXPECT_EQ(begin.Download(), groups.begin);
      EXPECT_EQ(row.Download(), groups.rows_of);
      EXPECT_EQ(weight.Download(), groups.weights_of);
      EXPECT_EQ(places.Download(), groups.places);
    });
  }
}

TEST_F(MoeRouteCudaTest, SoftmaxExpertsAreTheReferences) {
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
      EXPECT_TRUE(Near(affinities.Download(), wanted, 1e-6)) << c.n_experts;
    });
  }
}

TEST_F(MoeRouteCudaTest, EntriesTakeTheBiasOfTheirExpertAndTheirWeight) {
  for (const int64_t dim : {1, 7, 64, 1030}) {
    const Groups groups(random_, 5, 9, 4);
    const auto x =
        RandomFloats(random_, groups.experts.size() * static_cast<size_t>(dim));
    const auto bias = RandomFloats(random_, static_cast<size_t>(9 * dim));
    for (const bool weighed : {false, true}) {
      std::vector<float> wanted = x;
      BiasExpertsRef({.x = wanted.data(),
                      .first = groups.begin.data(),
                      .n_experts = 9,
                      .n_entries = 20,
                      .dim = dim,
                      .bias = bias.data(),
                      .weights = weighed ? groups.weights_of.data() : nullptr});
      ForEachSchedule([&] {
        const DeviceBuffer<float> sums(x, "x");
        const DeviceBuffer<int32_t> first(groups.begin, "first");
        const DeviceBuffer<float> biases(bias, "bias");
        const DeviceBuffer<float> weights(groups.weights_of, "weights");
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

TEST_F(MoeRouteCudaTest, SumsAreInOrderOfExperts) {
  for (const int64_t dim : {1, 7, 64, 1030}) {
    const Groups groups(random_, 5, 9, 4);
    const auto of_entry =
        RandomFloats(random_, groups.experts.size() * static_cast<size_t>(dim));
    const auto shared =
        RandomFloats(random_, static_cast<size_t>(groups.n_rows * dim));
    for (const bool has_shared : {false, true}) {
      std::vector<float> wanted(shared.size(), 0.0f);
      for (size_t i = 0; i < wanted.size(); ++i) {
        const size_t row = i / static_cast<size_t>(dim);
        for (size_t j = 0; j < 4; ++j) {
          const auto entry = static_cast<size_t>(groups.places[row * 4 + j]);
          wanted[i] += of_entry[entry * static_cast<size_t>(dim) +
                                i % static_cast<size_t>(dim)];
        }
        if (has_shared) wanted[i] += shared[i];
      }
      const DeviceBuffer<float> entries(of_entry, "of_entry");
      const DeviceBuffer<int32_t> places(groups.places, "places");
      const DeviceBuffer<float> y(shared, "y");
      ASSERT_EQ(SumExpertsCuda({.of_entry = entries.data(),
                                .places = places.data(),
                                .shared = has_shared ? y.data() : nullptr,
                                .n_rows = groups.n_rows,
                                .k = 4,
                                .dim = dim,
                                .y = y.data()},
                               nullptr),
                0)
          << Reports();
      EXPECT_TRUE(SameBits(y.Download(), wanted)) << dim;
    }
  }
}

TEST_F(MoeRouteCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(RouteCuda({.n_experts = 4, .k = 2}, nullptr), 0);
  EXPECT_EQ(ChooseSoftmaxExpertsCuda({.n_experts = 4, .k = 2}, nullptr), 0);
  EXPECT_EQ(BiasExpertsCuda({.n_experts = 4, .dim = 8}, nullptr), 0);
  EXPECT_EQ(SumExpertsCuda({.k = 2, .dim = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
