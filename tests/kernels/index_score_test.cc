// SPDX-License-Identifier: Apache-2.0

#include "kernels/index_score.h"

#include <gtest/gtest.h>

#include "kernels/cpu_ops.h"
#include "kernels/index_score_cpu.h"
#include "tests/kernels/encoded_rows.h"
#include "tests/kernels/index_score_testing.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

// Of a row's largest score: products of at most 160 terms and sums of at most
// 64 heads in f32 err by some 1e-7 of their terms' sizes.
constexpr double kTolerance = 1e-5;

class IndexScoreTest : public ::testing::TestWithParam<Isa> {
 protected:
  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, IndexScoreTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

struct Case {
  int64_t n_heads;
  int64_t dim;
  int64_t page_rows;
  // Of each row. The pages hold as many keys as the largest, and no more.
  std::vector<int64_t> n_visible;
};

class Fixture {
 public:
  Fixture(testing::Random& random, Case c)
      : case_(std::move(c)),
        n_rows_(static_cast<int64_t>(case_.n_visible.size())),
        n_keys_(
            *std::max_element(case_.n_visible.begin(), case_.n_visible.end())),
        q(RandomFloats(
            random, static_cast<size_t>(n_rows_ * case_.n_heads * case_.dim))),
        weights(RandomFloats(random,
                             static_cast<size_t>(n_rows_ * case_.n_heads))) {
    for (int64_t at = 0; at < n_keys_; at += case_.page_rows) {
      pages_.push_back(EncodedRows::Random(
          random, RowFormat::kIndexFp4, std::min(case_.page_rows, n_keys_ - at),
          case_.dim));
    }
  }

  // Rows [first, first + n), on `ops` or by the reference.
  std::vector<float> Run(CpuOps* ops, int64_t first, int64_t n) const {
    std::vector<const uint8_t*> pages;
    for (const EncodedRows& page : pages_) pages.push_back(page.row(0));
    std::vector<float> scores(static_cast<size_t>(n * stride()), kNoScore);
    const IndexScoreParams p{.n_rows = n,
                             .n_heads = case_.n_heads,
                             .dim = case_.dim,
                             .scale = 0.3f,
                             .q = q.data() + first * case_.n_heads * case_.dim,
                             .weights = weights.data() + first * case_.n_heads,
                             .pages = pages.data(),
                             .page_rows = case_.page_rows,
                             .n_visible = case_.n_visible.data() + first,
                             .scores = scores.data(),
                             .scores_stride = stride()};
    ops != nullptr ? ops->IndexScore(p) : IndexScoreRef(p);
    return scores;
  }

  // A few more than keys, so that a write beside them shows.
  [[nodiscard]] int64_t stride() const { return n_keys_ + 3; }
  [[nodiscard]] int64_t n_rows() const { return n_rows_; }
  void PutNan(int64_t key) {
    pages_[static_cast<size_t>(key / case_.page_rows)].PutNan(key %
                                                              case_.page_rows);
  }

 private:
  const Case case_;
  const int64_t n_rows_;
  const int64_t n_keys_;
  std::vector<EncodedRows> pages_;

 public:
  std::vector<float> q;
  std::vector<float> weights;
};

::testing::AssertionResult RowsAgree(const Fixture& fixture,
                                     const std::vector<float>& got,
                                     const std::vector<float>& wanted,
                                     const std::vector<int64_t>& n_visible) {
  return ScoresAgree(got, wanted, fixture.q, fixture.weights, n_visible,
                     kTolerance);
}

TEST_P(IndexScoreTest, AgreesWithTheReference) {
  CpuOps ops(GetParam(), 2);
  for (const Case& c : {Case{1, 32, 1, {1}},
                        {4, 32, 4, {0}},
                        {4, 32, 64, {0, 1, 0, 2}},
                        {3, 64, 5, {15, 16, 17, 3}},
                        {32, 128, 64, {47, 48, 49, 64, 65, 191, 192, 193}},
                        {9, 160, 16, {400, 1, 0, 385}},
                        {64, 32, 7, {31, 33, 5}}}) {
    const Fixture fixture(random_, c);
    EXPECT_TRUE(RowsAgree(fixture, fixture.Run(&ops, 0, fixture.n_rows()),
                          fixture.Run(nullptr, 0, fixture.n_rows()),
                          c.n_visible))
        << c.n_heads << " x " << c.dim << ", pages of " << c.page_rows;
  }
}

// Design D9: a score's bits ignore the rows, keys and threads beside it.
TEST_P(IndexScoreTest, ScoresIgnoreTheirCompany) {
  Case c{10, 64, 13, {}};
  for (int64_t r = 0; r < 2 * kIndexRows + 5; ++r) c.n_visible.push_back(3 * r);
  c.n_visible[40] = 2 * kIndexKeys + 20;
  const Fixture fixture(random_, c);
  CpuOps one(GetParam(), 1);
  const auto all = fixture.Run(&one, 0, fixture.n_rows());
  for (const int threads : {1, 2, 5}) {
    CpuOps ops(GetParam(), threads);
    for (const int64_t n : {1, 2, 31, 33}) {
      for (const int64_t first : {0, 1, 30, 35}) {
        const auto some = fixture.Run(&ops, first, n);
        ASSERT_TRUE(
            SameBits(some, std::span(all).subspan(first * fixture.stride(),
                                                  n * fixture.stride())))
            << n << " rows from " << first << " on " << threads << " threads";
      }
    }
  }
}

TEST_P(IndexScoreTest, ANanKeyIsItsOwnScoreAlone) {
  CpuOps ops(GetParam(), 1);
  const Case c{5, 64, 9, {100, 40, 41, 0}};
  Fixture fixture(random_, c);
  const auto clean = fixture.Run(&ops, 0, 4);
  fixture.PutNan(40);
  const auto got = fixture.Run(&ops, 0, 4);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t g = 0; g < fixture.stride(); ++g) {
      const auto at = static_cast<size_t>(r * fixture.stride() + g);
      if (g == 40 && c.n_visible[r] > 40) {
        EXPECT_TRUE(std::isnan(got[at])) << r;
      } else {
        EXPECT_EQ(got[at], clean[at]) << r << ", " << g;
      }
    }
  }
}

TEST_P(IndexScoreTest, ANanQueryIsItsOwnRowAlone) {
  CpuOps ops(GetParam(), 1);
  for (const int64_t head : {0, 4, 8}) {
    Fixture fixture(random_, {9, 32, 16, {20, 20, 20}});
    fixture.q[static_cast<size_t>((9 + head) * 32 + 31)] = kNan;
    const auto got = fixture.Run(&ops, 0, 3);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t g = 0; g < 20; ++g) {
        EXPECT_EQ(std::isnan(got[static_cast<size_t>(r * 23 + g)]), r == 1);
      }
    }
  }
}

TEST_P(IndexScoreTest, NegativeProductsCountForNothing) {
  CpuOps ops(GetParam(), 1);
  Fixture fixture(random_, {1, 32, 8, {8}});
  const auto scores = fixture.Run(&ops, 0, 1);
  for (float& v : fixture.q) v = -v;
  const auto negated = fixture.Run(&ops, 0, 1);
  for (size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(scores[g] == 0.0f, negated[g] != 0.0f) << g;
  }
}

}  // namespace
}  // namespace torpor::kernels
