// SPDX-License-Identifier: Apache-2.0
//
// The discrete choices of DeepSeek V4.1, by hand at their edges and against a
// sort of everything at random.

#include "tests/kernels/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "tests/testing/random.h"

namespace torpor::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Ids = std::vector<int32_t>;
using Floats = std::vector<float>;

// ---- top-k -----------------------------------------------------------------

TEST(TopKTest, TakesTheBestInAscendingOrder) {
  EXPECT_THAT(TopK(Floats{1, 5, -2, 4, 3}, 3), ElementsAre(1, 3, 4));
  EXPECT_THAT(TopK(Floats{1, 5, -2, 4, 3}, 1), ElementsAre(1));
}

TEST(TopKTest, FewerThanKAreAllOfThem) {
  EXPECT_THAT(TopK(Floats{}, 4), IsEmpty());
  EXPECT_THAT(TopK(Floats{-3}, 4), ElementsAre(0));
  EXPECT_THAT(TopK(Floats{7, -3, 2}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(TopK(Floats{7, -3, 2}, 1'000'000'000'000), ElementsAre(0, 1, 2));
  EXPECT_THAT(TopK(Floats{7, -3, 2}, 0), IsEmpty());
}

TEST(TopKTest, TiesGoToTheLowerId) {
  EXPECT_THAT(TopK(Floats{2, 3, 3, 3, 2}, 2), ElementsAre(1, 2));
  EXPECT_THAT(TopK(Floats{2, 3, 2, 3, 2}, 4), ElementsAre(0, 1, 2, 3));
  // Zeros of either sign are equal.
  EXPECT_THAT(TopK(Floats{-0.0f, 0.0f, -0.0f}, 2), ElementsAre(0, 1));
}

TEST(TopKTest, MinusInfinityIsNeverTaken) {
  EXPECT_THAT(TopK(Floats{-kInf, 1, -kInf, -1e38f}, 4), ElementsAre(1, 3));
  EXPECT_THAT(TopK(Floats{-kInf, -kInf}, 1), IsEmpty());
  EXPECT_THAT(TopK(Floats{kInf, 1, -kInf, kInf}, 2), ElementsAre(0, 3));
}

TEST(TopKTest, NanIsTheBest) {
  EXPECT_THAT(TopK(Floats{1, kInf, kNan, 3}, 1), ElementsAre(2));
  EXPECT_THAT(TopK(Floats{kNan, 9, -kNan, kNan}, 2), ElementsAre(0, 2));
  EXPECT_THAT(TopK(Floats{-kInf, kNan}, 2), ElementsAre(1));
}

// ---- blocks ----------------------------------------------------------------

TEST(CandidateBlocksTest, TakesTheBlocksOfTheBestScores) {
  // Blocks of three: largest 3, 9, 5 and 4.
  const Floats scores = {1, 2, 3, 9, 0, 0, 5, 5, 5, 4, 4};
  EXPECT_THAT(CandidateBlocks(scores, 3, 2), ElementsAre(1, 3));
  EXPECT_THAT(CandidateBlocks(scores, 3, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(CandidateBlocks(scores, 3, 4), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(CandidateBlocks(scores, 3, 99), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(CandidateBlocks(Floats{}, 3, 2), IsEmpty());
}

TEST(CandidateBlocksTest, TheNewestBlockIsAlwaysAmongThem) {
  const Floats scores = {9, 9, 8, 8, 7, 7, -5};
  EXPECT_THAT(CandidateBlocks(scores, 2, 1), ElementsAre(3));
  EXPECT_THAT(CandidateBlocks(scores, 2, 2), ElementsAre(0, 3));
  // A full last block is the newest; there is none behind it.
  EXPECT_THAT(CandidateBlocks(std::span(scores).first(6), 2, 2),
              ElementsAre(0, 2));
  // Even where none of its scores may be taken.
  EXPECT_THAT(CandidateBlocks(Floats{1, 1, -kInf}, 2, 1), ElementsAre(1));
  // And before a NaN, which takes what is left.
  EXPECT_THAT(CandidateBlocks(Floats{9, 9, kNan, 1, 0}, 2, 1), ElementsAre(2));
  EXPECT_THAT(CandidateBlocks(Floats{9, 9, 1, kNan, 0}, 2, 2),
              ElementsAre(1, 2));
}

TEST(CandidateBlocksTest, BlocksWithoutAScoreAreLeftOut) {
  EXPECT_THAT(CandidateBlocks(Floats{-kInf, -kInf, 1, -kInf, 0, 0}, 2, 3),
              ElementsAre(1, 2));
}

TEST(CandidateBlocksTest, TiesGoToTheLowerBlock) {
  EXPECT_THAT(CandidateBlocks(Floats{4, 1, 4, 2, 4, 3, 0}, 2, 3),
              ElementsAre(0, 1, 3));
}

TEST(KeepBlocksTest, OtherScoresBecomeMinusInfinity) {
  Floats scores = {0, 1, 2, 3, 4, 5, 6, 7};
  KeepBlocks(Ids{0, 2}, 3, scores);
  EXPECT_THAT(scores, ElementsAre(0, 1, 2, -kInf, -kInf, -kInf, 6, 7));
  KeepBlocks(Ids{1, 2}, 3, scores);
  EXPECT_THAT(scores,
              ElementsAre(-kInf, -kInf, -kInf, -kInf, -kInf, -kInf, 6, 7));
  Floats none = {0, 1, 2};
  KeepBlocks(Ids{}, 2, none);
  EXPECT_THAT(none, ElementsAre(-kInf, -kInf, -kInf));
  Floats all = {kNan, 1, 2};
  KeepBlocks(Ids{0, 1}, 2, all);
  EXPECT_TRUE(std::isnan(all[0]));
  EXPECT_EQ(all[2], 2);
}

// ---- experts ---------------------------------------------------------------

TEST(AffinityTest, IsTheRootOfTheSoftplus) {
  EXPECT_EQ(Affinity(0), static_cast<float>(std::sqrt(std::log(2.0))));
  for (const double x : {-3.0, -0.5, 0.25, 1.0, 7.5}) {
    EXPECT_FLOAT_EQ(Affinity(static_cast<float>(x)),
                    static_cast<float>(std::sqrt(std::log(1 + std::exp(x)))))
        << x;
  }
  // No overflow above; no underflow of what f32 can hold below.
  EXPECT_FLOAT_EQ(Affinity(1e30f), 1e15f);
  EXPECT_EQ(Affinity(kInf), kInf);
  EXPECT_FLOAT_EQ(Affinity(-100), static_cast<float>(std::exp(-50.0)));
  EXPECT_GT(Affinity(-150), 0);
  EXPECT_EQ(Affinity(-kInf), 0);
  EXPECT_TRUE(std::isnan(Affinity(kNan)));
  for (float x = -120; x < 120; x += 0.25f) {
    EXPECT_LT(Affinity(x), Affinity(x + 0.25f)) << x;
  }
}

TEST(ChooseExpertsTest, TheBiasChooses) {
  const Floats affinities = {3, 2, 1, 0};
  EXPECT_THAT(ChooseExperts(affinities, Floats(4), 2), ElementsAre(0, 1));
  EXPECT_THAT(ChooseExperts(affinities, Floats{-9, 0, 0, 5}, 2),
              ElementsAre(1, 3));
  EXPECT_THAT(ChooseExperts(affinities, Floats(4), 4), ElementsAre(0, 1, 2, 3));
  // Ties to the lower id; NaN first; -inf last but not left out.
  EXPECT_THAT(ChooseExperts(Floats{1, 2, 2, 2}, Floats(4), 2),
              ElementsAre(1, 2));
  EXPECT_THAT(ChooseExperts(Floats{1, 2, kNan, kInf}, Floats(4), 1),
              ElementsAre(2));
  EXPECT_THAT(ChooseExperts(Floats{1, 2}, Floats{-kInf, -kInf}, 2),
              ElementsAre(0, 1));
}

TEST(ExpertWeightsTest, AreSharesOfTheChosenAffinities) {
  const Floats affinities = {3, 100, 1, 4};
  // The bias and the experts that were not chosen weigh nothing.
  EXPECT_THAT(ExpertWeightsOf(affinities, Ids{0, 2, 3}, 1.5f),
              ElementsAre(3.0f / 8 * 1.5f, 1.0f / 8 * 1.5f, 4.0f / 8 * 1.5f));
  EXPECT_THAT(ExpertWeightsOf(affinities, Ids{1}, 1), ElementsAre(1));
  EXPECT_THAT(ExpertWeightsOf(affinities, Ids{}, 1), IsEmpty());
  // Nothing of nothing is nothing, not NaN.
  EXPECT_THAT(ExpertWeightsOf(Floats{0, 0}, Ids{0, 1}, 1.5f),
              ElementsAre(0, 0));
}

// ---- against a sort --------------------------------------------------------

// Ids by score, best first: NaN, then the larger score, then the lower id.
Ids Sorted(const Floats& scores) {
  Ids ids(scores.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto rank = [&](int32_t id) {
    const float v = scores[static_cast<size_t>(id)];
    return std::pair(std::isnan(v) ? 0 : 1, std::isnan(v) ? 0.0f : -v);
  };
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return rank(a) < rank(b); });
  return ids;
}

Ids SortedTopK(const Floats& scores, size_t k) {
  Ids ids = Sorted(scores);
  std::erase_if(ids, [&](int32_t id) {
    return scores[static_cast<size_t>(id)] == -kInf;
  });
  ids.resize(std::min(k, ids.size()));
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Few values, so that ties are many; now and then one that is no number.
Floats RandomScores(testing::Random& random, size_t n) {
  const uint64_t kinds = random.Between(1, 40);
  Floats scores(n);
  for (float& v : scores) {
    v = static_cast<float>(random.Between(0, kinds)) - 3.0f;
    if (random.OneIn(9)) v = -kInf;
    if (random.OneIn(40)) v = kNan;
    if (random.OneIn(40)) v = kInf;
  }
  return scores;
}

TEST(PicksPropertyTest, TopKIsTheFrontOfASort) {
  testing::Random random(1);
  for (int i = 0; i < 3000; ++i) {
    const Floats scores = RandomScores(random, random.Between(0, 70));
    const uint64_t k = random.Between(0, 80);
    ASSERT_EQ(TopK(scores, static_cast<int64_t>(k)), SortedTopK(scores, k));
  }
}

TEST(PicksPropertyTest, ExpertsAreTheFrontOfASort) {
  testing::Random random(2);
  for (int i = 0; i < 3000; ++i) {
    const Floats affinities = RandomScores(random, random.Between(1, 40));
    Floats bias = RandomScores(random, affinities.size());
    const uint64_t k = random.Between(1, affinities.size());
    Floats sums;
    for (size_t e = 0; e < bias.size(); ++e) {
      sums.push_back(affinities[e] + bias[e]);
    }
    Ids wanted = Sorted(sums);
    wanted.resize(k);
    std::sort(wanted.begin(), wanted.end());
    ASSERT_EQ(ChooseExperts(affinities, bias, static_cast<int64_t>(k)), wanted);
  }
}

TEST(PicksPropertyTest, BlocksHoldTheBestScores) {
  testing::Random random(3);
  for (int i = 0; i < 3000; ++i) {
    const Floats scores = RandomScores(random, random.Between(1, 70));
    const size_t size = random.Between(1, 9);
    const size_t n_blocks = random.Between(1, 9);
    const auto newest = static_cast<int32_t>((scores.size() - 1) / size);
    // Blocks in the order of a sort of all scores, the newest before them.
    Ids wanted = {newest};
    for (const int32_t id : Sorted(scores)) {
      const auto block = static_cast<int32_t>(static_cast<size_t>(id) / size);
      if (scores[static_cast<size_t>(id)] != -kInf &&
          !std::count(wanted.begin(), wanted.end(), block)) {
        wanted.push_back(block);
      }
    }
    // Of equal blocks the lower goes first, wherever in it the score stands.
    std::stable_sort(
        wanted.begin() + 1, wanted.end(), [&](int32_t a, int32_t b) {
          const auto best = [&](int32_t block) {
            const size_t begin = static_cast<size_t>(block) * size;
            const size_t end = std::min(begin + size, scores.size());
            const Floats part(scores.begin() + static_cast<ptrdiff_t>(begin),
                              scores.begin() + static_cast<ptrdiff_t>(end));
            const float v = part[static_cast<size_t>(Sorted(part)[0])];
            return std::pair(std::isnan(v) ? 0 : 1, std::isnan(v) ? 0.0f : -v);
          };
          return std::pair(best(a), a) < std::pair(best(b), b);
        });
    wanted.resize(std::min(n_blocks, wanted.size()));
    std::sort(wanted.begin(), wanted.end());
    const Ids blocks = CandidateBlocks(scores, static_cast<int64_t>(size),
                                       static_cast<int64_t>(n_blocks));
    ASSERT_EQ(blocks, wanted);

    Floats kept = scores;
    KeepBlocks(blocks, static_cast<int64_t>(size), kept);
    for (size_t at = 0; at < kept.size(); ++at) {
      const bool inside = std::count(blocks.begin(), blocks.end(),
                                     static_cast<int32_t>(at / size)) != 0;
      ASSERT_EQ(std::bit_cast<uint32_t>(kept[at]),
                std::bit_cast<uint32_t>(inside ? scores[at] : -kInf));
    }
  }
}

}  // namespace
}  // namespace torpor::kernels
