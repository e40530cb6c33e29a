// SPDX-License-Identifier: Apache-2.0
//
// Rows to experts and back: choices and weights, lists by expert, their GEMM,
// and the sum. Expectations are written out here.

#include "kernels/experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/cpu_ops.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

class ExpertsTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, ExpertsTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

TEST_P(ExpertsTest, AffinitiesAreRootsOfSoftplus) {
  CpuOps ops(GetParam(), 2);
  // Far above 0 it is the root of the logit, far below the root of e^logit.
  std::vector<float> logits = {0.0f, 4.0f, 1e6f, -200.0f, kNan, -3.0f};
  const std::vector<float> bias(logits.size(), 0.0f);
  int32_t chosen = -1;
  ops.ChooseExperts({.affinities = logits.data(),
                     .n_rows = 1,
                     .n_experts = static_cast<int64_t>(logits.size()),
                     .temperature = 2.0f,
                     .bias = bias.data(),
                     .k = 1,
                     .experts = &chosen});
  EXPECT_FLOAT_EQ(logits[0], 0.83255461f);  // sqrt(ln 2)
  EXPECT_FLOAT_EQ(logits[1], 1.4583992f);   // sqrt(ln(1 + e^2))
  EXPECT_FLOAT_EQ(logits[2], 707.10678f);
  EXPECT_FLOAT_EQ(logits[3], 1.9287498e-22f);  // e^-50
  EXPECT_TRUE(std::isnan(logits[4]));
  // A NaN is the highest.
  EXPECT_EQ(chosen, 4);
}

TEST_P(ExpertsTest, TheHighestWithTheirBiasAreChosenAscending) {
  CpuOps ops(GetParam(), 3);
  constexpr int64_t kRows = 40;
  constexpr int64_t kExperts = 12;
  auto affinities = RandomFloats(random_, kRows * kExperts);
  auto bias = RandomFloats(random_, kExperts);
  // One that nobody wants must still be chosen where all are.
  bias[3] = -std::numeric_limits<float>::infinity();
  // Two that tie wherever the logits do.
  bias[7] = bias[8];
  for (int64_t r = 0; r < kRows; ++r) {
    affinities[r * kExperts + 8] = affinities[r * kExperts + 7];
  }
  const auto logits = affinities;
  // Some k stands between the two that tie.
  for (int64_t k = 1; k <= kExperts; ++k) {
    affinities = logits;
    std::vector<int32_t> experts(kRows * k, -1);
    ops.ChooseExperts({.affinities = affinities.data(),
                       .n_rows = kRows,
                       .n_experts = kExperts,
                       .temperature = 1.0f,
                       .bias = bias.data(),
                       .k = k,
                       .experts = experts.data()});
    for (int64_t r = 0; r < kRows; ++r) {
      const auto biased = [&](int64_t e) {
        return affinities[r * kExperts + e] + bias[e];
      };
      std::vector<int32_t> wanted;
      for (int64_t e = 0; e < kExperts; ++e) {
        int64_t better = 0;
        for (int64_t other = 0; other < kExperts; ++other) {
          if (biased(other) > biased(e) ||
              (biased(other) == biased(e) && other < e)) {
            ++better;
          }
        }
        if (better < k) wanted.push_back(static_cast<int32_t>(e));
      }
      EXPECT_EQ(std::vector<int32_t>(experts.begin() + r * k,
                                     experts.begin() + (r + 1) * k),
                wanted)
          << "row " << r << ", k " << k;
    }
  }
}

// Random choices, ascending in each row.
std::vector<int32_t> Choices(testing::Random& random, int64_t n_rows,
                             int64_t n_experts, int64_t k) {
  std::vector<int32_t> out;
  for (int64_t r = 0; r < n_rows; ++r) {
    std::vector<int32_t> ids(n_experts);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t i = 0; i < k; ++i) {
      std::swap(ids[i], ids[random.Between(i, n_experts - 1)]);
    }
    std::sort(ids.begin(), ids.begin() + k);
    out.insert(out.end(), ids.begin(), ids.begin() + k);
  }
  return out;
}

TEST_P(ExpertsTest, EntriesAreByExpertThenByRow) {
  CpuOps ops(GetParam(), 2);
  constexpr int64_t kExperts = 9;
  constexpr int64_t kActive = 3;
  for (const int64_t n_rows : {0, 1, 2, 50}) {
    const auto experts = Choices(random_, n_rows, kExperts, kActive);
    std::vector<float> affinities(n_rows * kExperts);
    for (float& v : affinities) v = std::abs(random_.Normal());
    std::vector<int32_t> first(kExperts + 1, -1);
    std::vector<int32_t> rows(n_rows * kActive, -1);
    std::vector<float> weights(n_rows * kActive, kNan);
    std::vector<int32_t> entries(n_rows * kActive, -1);
    ops.GroupExperts({.affinities = affinities.data(),
                      .n_rows = n_rows,
                      .n_experts = kExperts,
                      .scale = 2.5f,
                      .k = kActive,
                      .experts = experts.data(),
                      .first = first.data(),
                      .rows = rows.data(),
                      .weights = weights.data(),
                      .entries = entries.data()});
    int32_t at = 0;
    for (int32_t e = 0; e < kExperts; ++e) {
      EXPECT_EQ(first[e], at);
      for (int64_t r = 0; r < n_rows; ++r) {
        float sum = 0;
        for (int64_t i = 0; i < kActive; ++i) {
          sum += affinities[r * kExperts + experts[r * kActive + i]];
        }
        for (int64_t i = 0; i < kActive; ++i) {
          if (experts[r * kActive + i] != e) continue;
          EXPECT_EQ(rows[at], r);
          EXPECT_EQ(entries[r * kActive + i], at);
          EXPECT_FLOAT_EQ(weights[at],
                          2.5f * affinities[r * kExperts + e] / sum);
          ++at;
        }
      }
    }
    EXPECT_EQ(first[kExperts], n_rows * kActive);
  }
}

TEST_P(ExpertsTest, WeightsOfNothingAreZero) {
  CpuOps ops(GetParam(), 1);
  const std::vector<float> affinities(4, 0.0f);
  const std::vector<int32_t> experts = {1, 3};
  std::vector<int32_t> first(5);
  std::vector<int32_t> rows(2);
  std::vector<float> weights(2, kNan);
  std::vector<int32_t> entries(2);
  ops.GroupExperts({affinities.data(), 1, 4, 2.5f, 2, experts.data(),
                    first.data(), rows.data(), weights.data(), entries.data()});
  EXPECT_EQ(weights, std::vector<float>({0.0f, 0.0f}));
}

TEST_P(ExpertsTest, AGroupedGemmIsAGemmAGroup) {
  CpuOps ops(GetParam(), 2);
  constexpr int64_t kGroups = 4;
  constexpr int64_t kN = 24;
  constexpr int64_t kK = 64;
  // A group of none, of one, and of more rows than a tile.
  const std::vector<int32_t> begin = {0, 5, 5, 6, 40};
  const int64_t n_entries = begin.back();
  const auto a = RandomFloats(random_, 40 * kK);
  const auto a16 = ToBf16s(a);
  std::vector<int32_t> index(n_entries);
  for (int32_t& row : index) row = static_cast<int32_t>(random_.Between(0, 39));
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    std::vector<std::vector<float>> values;
    std::vector<PackedMatrix> matrices;
    std::vector<const PackedMatrix*> b;
    for (int64_t g = 0; g < kGroups; ++g) {
      values.push_back(RandomFloats(random_, kN * kK));
      matrices.push_back(
          PackedMatrix::Pack(values.back().data(), kN, kK, dtype));
    }
    for (const PackedMatrix& matrix : matrices) b.push_back(&matrix);
    for (const bool indexed : {false, true}) {
      std::vector<float> got(n_entries * kN, kNan);
      ops.GroupedGemm({.a = dtype == DType::kF32
                                ? static_cast<const void*>(a.data())
                                : a16.data(),
                       .row_index = indexed ? index.data() : nullptr,
                       .group_begin = begin.data(),
                       .n_groups = kGroups,
                       .n_entries = n_entries,
                       .b = b.data(),
                       .c = got.data()});
      std::vector<float> wanted(got.size());
      for (int64_t g = 0; g < kGroups; ++g) {
        for (int64_t i = begin[g]; i < begin[g + 1]; ++i) {
          const int64_t row = indexed ? index[i] : i;
          for (int64_t n = 0; n < kN; ++n) {
            double sum = 0;
            for (int64_t k = 0; k < kK; ++k) {
              const float x = a[row * kK + k];
              const float w = values[g][n * kK + k];
              sum += dtype == DType::kF32
                         ? static_cast<double>(x) * w
                         : static_cast<double>(RoundToBf16(x)) * RoundToBf16(w);
            }
            wanted[i * kN + n] = static_cast<float>(sum);
          }
        }
      }
      EXPECT_TRUE(Near(got, wanted, 1e-6)) << indexed;
      // A row alone is the same bits.
      std::vector<float> alone(kN);
      const int64_t row = indexed ? index[20] : 20;
      ops.Gemm({.a = dtype == DType::kF32
                         ? static_cast<const void*>(a.data() + row * kK)
                         : a16.data() + row * kK,
                .n_rows = 1,
                .b = b[3],
                .c = alone.data()});
      EXPECT_TRUE(SameBits(alone, std::span(got).subspan(20 * kN, kN)));
    }
  }
}

TEST_P(ExpertsTest, SoftmaxExpertsWeighAsASoftmaxOverTheChosen) {
  CpuOps ops(GetParam(), 3);
  const float inf = std::numeric_limits<float>::infinity();
  constexpr int64_t kExperts = 5;
  constexpr int64_t kActive = 3;
  // The second row ties: the lower id. Far below the highest nothing is left.
  // The last two are no numbers.
  std::vector<float> affinities = {0.5f,  2.0f,  -1.0f, 1.0f,    3.0f,  //
                                   1.0f,  1.0f,  1.0f,  1.0f,    1.0f,  //
                                   -inf,  90.0f, -inf,  -200.0f, -inf,  //
                                   -1.0f, kNan,  2.0f,  3.0f,    0.0f,  //
                                   1.0f,  inf,   2.0f,  3.0f,    0.0f};
  const std::vector<float> logits = affinities;
  std::vector<int32_t> experts(5 * kActive, -1);
  ops.ChooseSoftmaxExperts({.affinities = affinities.data(),
                            .n_rows = 5,
                            .n_experts = kExperts,
                            .k = kActive,
                            .experts = experts.data()});
  EXPECT_EQ(experts, (std::vector<int32_t>{1, 3, 4, 0, 1, 2, 0, 1, 3, 1, 2, 3,
                                           1, 2, 3}));
  std::vector<int32_t> first(kExperts + 1);
  std::vector<int32_t> rows(5 * kActive);
  std::vector<int32_t> entries(5 * kActive);
  std::vector<float> weights(5 * kActive);
  ops.GroupExperts({.affinities = affinities.data(),
                    .n_rows = 5,
                    .n_experts = kExperts,
                    .k = kActive,
                    .experts = experts.data(),
                    .first = first.data(),
                    .rows = rows.data(),
                    .weights = weights.data(),
                    .entries = entries.data()});
  for (size_t row = 0; row < 5; ++row) {
    double sum = 0;
    for (size_t i = 0; i < kActive; ++i) {
      const auto e = static_cast<size_t>(experts[row * kActive + i]);
      sum += std::exp(double{logits[row * kExperts + e]} - 90.0);
    }
    for (size_t i = 0; i < kActive; ++i) {
      const auto e = static_cast<size_t>(experts[row * kActive + i]);
      const float got =
          weights[static_cast<size_t>(entries[row * kActive + i])];
      if (row > 2) {
        EXPECT_TRUE(std::isnan(got)) << row;
        continue;
      }
      EXPECT_NEAR(
          got, std::exp(double{logits[row * kExperts + e]} - 90.0) / sum, 1e-6)
          << row << " " << e;
    }
  }
}

TEST_P(ExpertsTest, EntriesTakeTheBiasOfTheirExpertAndTheirWeight) {
  CpuOps ops(GetParam(), 3);
  constexpr int64_t kDim = 2000;
  // One expert serves nobody, the last one most.
  const std::vector<int32_t> first = {0, 2, 2, 3, 40};
  const auto x = RandomFloats(random_, 40 * kDim);
  const auto bias = RandomFloats(random_, 4 * kDim);
  const auto weights = RandomFloats(random_, 40);
  for (const bool weighed : {false, true}) {
    auto got = x;
    ops.BiasExperts({.x = got.data(),
                     .first = first.data(),
                     .n_experts = 4,
                     .n_entries = 40,
                     .dim = kDim,
                     .bias = bias.data(),
                     .weights = weighed ? weights.data() : nullptr});
    for (int64_t i = 0; i < 40 * kDim; ++i) {
      const int64_t entry = i / kDim;
      const int64_t expert = entry < 2 ? 0 : entry < 3 ? 2 : 3;
      const float sum = x[i] + bias[expert * kDim + i % kDim];
      ASSERT_EQ(got[i], weighed ? sum * weights[entry] : sum) << i;
    }
  }
}

TEST_P(ExpertsTest, ARowIsTheSumOfItsEntriesInTheirOrder) {
  CpuOps ops(GetParam(), 3);
  constexpr int64_t kRows = 700;
  constexpr int64_t kActive = 3;
  constexpr int64_t kDim = 37;
  // Sums that depend on the order of their terms.
  auto x = RandomFloats(random_, kRows * kActive * kDim);
  for (float& v : x) v *= random_.OneIn(2) ? 1e7f : 1.0f;
  const auto shared = RandomFloats(random_, kRows * kDim, 1e4f);
  std::vector<int32_t> entries(kRows * kActive);
  std::iota(entries.begin(), entries.end(), 0);
  std::reverse(entries.begin(), entries.end());
  for (const bool with_shared : {false, true}) {
    std::vector<float> got(kRows * kDim, kNan);
    ops.SumExperts({.x = x.data(),
                    .entries = entries.data(),
                    .n_rows = kRows,
                    .k = kActive,
                    .dim = kDim,
                    .shared = with_shared ? shared.data() : nullptr,
                    .out = got.data()});
    std::vector<float> wanted(got.size());
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t j = 0; j < kDim; ++j) {
        const auto term = [&](int64_t i) {
          return x[entries[r * kActive + i] * kDim + j];
        };
        float sum = ((0.0f + term(0)) + term(1)) + term(2);
        if (with_shared) sum += shared[r * kDim + j];
        wanted[r * kDim + j] = sum;
      }
    }
    EXPECT_TRUE(SameBits(got, wanted)) << with_shared;
  }
}

}  // namespace
}  // namespace torpor::kernels
