// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernel of index_score.h against its reference.

#include "kernels/index_score_cuda.h"

#include <algorithm>

#include "tests/kernels/cuda_testing.h"
#include "tests/kernels/index_score_testing.h"

namespace torpor::kernels {
namespace {

// As tests/kernels/index_score_test.cc has it, and why.
constexpr double kTolerance = 1e-5;

class IndexScoreCudaTest : public CudaTest {
 protected:
  testing::Random random_;
};

struct Case {
  int64_t n_heads;
  int64_t dim;
  int64_t page_rows;
  // Of each row. The pages hold as many keys as the largest, and no more.
  std::vector<int64_t> n_visible;
  RowFormat format = RowFormat::kIndexFp4;
};

class Fixture {
 public:
  Fixture(testing::Random& random, Case c)
      : case_(std::move(c)),
        n_rows_(static_cast<int64_t>(case_.n_visible.size())),
        n_keys_(
            *std::max_element(case_.n_visible.begin(), case_.n_visible.end())),
        key_bytes_(RowBytes(case_.format, case_.dim, 0)),
        q(RandomFloats(
            random, static_cast<size_t>(n_rows_ * case_.n_heads * case_.dim))),
        weights(RandomFloats(random,
                             static_cast<size_t>(n_rows_ * case_.n_heads))) {
    for (int64_t at = 0; at < n_keys_; at += case_.page_rows) {
      const int64_t n = std::min(case_.page_rows, n_keys_ - at);
      const auto x = RandomFloats(random, static_cast<size_t>(n * case_.dim));
      pages_.emplace_back(static_cast<size_t>(n * key_bytes_));
      EncodeRowsRef({.format = case_.format,
                     .x = x.data(),
                     .n_rows = n,
                     .dim = case_.dim,
                     .x_stride = case_.dim,
                     .out = pages_.back().data(),
                     .out_stride = key_bytes_});
    }
  }

  std::vector<float> Emulated() const { return Emulated(0, n_rows_); }
  // Rows [first, first + n).
  std::vector<float> Emulated(int64_t first, int64_t n) const {
    std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> buffers;
    std::vector<const uint8_t*> pointers;
    for (const auto& page : pages_) {
      buffers.push_back(
          std::make_unique<DeviceBuffer<uint8_t>>(page, "page of keys"));
      pointers.push_back(buffers.back()->data());
    }
    const DeviceBuffer<const uint8_t*> pages(pointers, "pages");
    const int64_t row = case_.n_heads * case_.dim;
    const DeviceBuffer<float> queries(Part(q, first * row, n * row), "q");
    const DeviceBuffer<float> of_heads(
        Part(weights, first * case_.n_heads, n * case_.n_heads), "weights");
    const DeviceBuffer<int64_t> visible(
        std::span(case_.n_visible)
            .subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
        "n_visible");
    const DeviceBuffer<float> scores(
        std::vector<float>(static_cast<size_t>(n * stride()), kNoScore),
        "scores");
    EXPECT_EQ(
        IndexScoreCuda(Params(n, queries.data(), of_heads.data(), pages.data(),
                              visible.data(), scores.data()),
                       nullptr),
        0)
        << Reports();
    return scores.Download();
  }

  std::vector<float> Reference() const {
    std::vector<const uint8_t*> pages;
    for (const auto& page : pages_) pages.push_back(page.data());
    std::vector<float> scores(static_cast<size_t>(n_rows_ * stride()),
                              kNoScore);
    IndexScoreRef(Params(n_rows_, q.data(), weights.data(), pages.data(),
                         case_.n_visible.data(), scores.data()));
    return scores;
  }

  // A few more than keys, so that a write beside them shows.
  [[nodiscard]] int64_t stride() const { return n_keys_ + 3; }
  [[nodiscard]] int64_t n_rows() const { return n_rows_; }
  void PutNan(int64_t key) {
    auto& page = pages_[static_cast<size_t>(key / case_.page_rows)];
    std::fill_n(page.begin() + key % case_.page_rows * key_bytes_, key_bytes_,
                uint8_t{0xff});
  }

 private:
  static std::span<const float> Part(const std::vector<float>& of, int64_t at,
                                     int64_t n) {
    return std::span(of).subspan(static_cast<size_t>(at),
                                 static_cast<size_t>(n));
  }
  IndexScoreParams Params(int64_t n, const float* q_at, const float* weights_at,
                          const uint8_t* const* pages, const int64_t* n_visible,
                          float* scores) const {
    return {.n_rows = n,
            .n_heads = case_.n_heads,
            .dim = case_.dim,
            .scale = 0.3f,
            .q = q_at,
            .weights = weights_at,
            .key_format = case_.format,
            .pages = pages,
            .page_rows = case_.page_rows,
            .n_visible = n_visible,
            .scores = scores,
            .scores_stride = stride()};
  }

  const Case case_;
  const int64_t n_rows_;
  const int64_t n_keys_;
  const int64_t key_bytes_;
  std::vector<std::vector<uint8_t>> pages_;

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

TEST_F(IndexScoreCudaTest, AgreesWithTheReference) {
  for (const Case& c : {Case{1, 32, 1, {1}},
                        {4, 32, 4, {0}},
                        {4, 32, 64, {0, 1, 0, 2}},
                        {3, 64, 5, {15, 16, 17, 3}},
                        {32, 128, 64, {127, 128, 129, 255, 256, 257}},
                        {9, 160, 16, {400, 1, 0, 385}},
                        {64, 32, 7, {31, 33, 5}},
                        {37, 96, 16, {40, 130}},
                        {5, 64, 16, {40, 21}, RowFormat::kWindowFp8},
                        {5, 48, 16, {40, 21}, RowFormat::kMainFp4}}) {
    const Fixture fixture(random_, c);
    EXPECT_TRUE(RowsAgree(fixture, fixture.Emulated(), fixture.Reference(),
                          c.n_visible))
        << c.n_heads << " x " << c.dim << ", pages of " << c.page_rows;
  }
}

// Design D9: a score's bits ignore the rows and keys beside it, and schedules.
TEST_F(IndexScoreCudaTest, ScoresIgnoreTheirCompanyAndSchedules) {
  const Case c{33, 64, 13, {130, 7, 0, 129, 300}};
  const Fixture fixture(random_, c);
  const auto all = fixture.Emulated();
  for (const int64_t n : {1, 2, 4}) {
    for (int64_t first = 0; first + n <= fixture.n_rows(); ++first) {
      EXPECT_TRUE(SameBits(
          fixture.Emulated(first, n),
          std::span(all).subspan(static_cast<size_t>(first * fixture.stride()),
                                 static_cast<size_t>(n * fixture.stride()))))
          << n << " rows from " << first;
    }
  }
  ForEachSchedule([&] { EXPECT_TRUE(SameBits(fixture.Emulated(), all)); });
}

TEST_F(IndexScoreCudaTest, ANanKeyIsItsOwnScoreAlone) {
  const Case c{5, 64, 9, {100, 40, 41, 0}};
  Fixture fixture(random_, c);
  const auto clean = fixture.Emulated();
  fixture.PutNan(40);
  const auto got = fixture.Emulated();
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t g = 0; g < fixture.stride(); ++g) {
      const auto at = static_cast<size_t>(r * fixture.stride() + g);
      if (g == 40 && c.n_visible[static_cast<size_t>(r)] > 40) {
        EXPECT_TRUE(std::isnan(got[at])) << r;
      } else {
        EXPECT_EQ(got[at], clean[at]) << r << ", " << g;
      }
    }
  }
}

TEST_F(IndexScoreCudaTest, ANanQueryIsItsOwnRowAlone) {
  for (const int64_t head : {0, 4, 8}) {
    Fixture fixture(random_, {9, 32, 16, {20, 20, 20}});
    fixture.q[static_cast<size_t>((9 + head) * 32 + 31)] = kNan;
    const auto got = fixture.Emulated();
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t g = 0; g < 20; ++g) {
        EXPECT_EQ(std::isnan(got[static_cast<size_t>(r * 23 + g)]), r == 1);
      }
    }
  }
}

TEST_F(IndexScoreCudaTest, NegativeProductsCountForNothing) {
  Fixture fixture(random_, {1, 32, 8, {8}});
  const auto scores = fixture.Emulated();
  for (float& v : fixture.q) v = -v;
  const auto negated = fixture.Emulated();
  for (size_t g = 0; g < 8; ++g) {
    EXPECT_EQ(scores[g] == 0.0f, negated[g] != 0.0f) << g;
  }
}

TEST_F(IndexScoreCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(IndexScoreCuda({.n_heads = 4, .dim = 64}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
