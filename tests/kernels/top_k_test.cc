// SPDX-License-Identifier: Apache-2.0
//
// Choices by scores. What is wanted is found by asking of each id how many are
// better, not by sorting.

#include "kernels/top_k.h"

#include <algorithm>

#include "kernels/cpu_ops.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

bool GoesBefore(float a, float b, bool lower_id) {
  if (std::isnan(a) != std::isnan(b)) return std::isnan(a);
  if (std::isnan(a) || a == b) return lower_id;
  return a > b;
}

std::vector<int32_t> WantedTopK(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> out;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] == kNever) continue;
    int64_t better = 0;
    for (size_t j = 0; j < scores.size(); ++j) {
      if (j != i && scores[j] != kNever &&
          GoesBefore(scores[j], scores[i], j < i)) {
        ++better;
      }
    }
    if (better < k) out.push_back(static_cast<int32_t>(i));
  }
  return out;
}

std::vector<int32_t> WantedBlocks(std::span<const float> scores, int64_t size,
                                  int64_t n_blocks) {
  std::vector<float> best;
  for (size_t at = 0; at < scores.size(); at += static_cast<size_t>(size)) {
    float of_block = kNever;
    for (const float score : scores.subspan(
             at, std::min(static_cast<size_t>(size), scores.size() - at))) {
      if (GoesBefore(score, of_block, false)) of_block = score;
    }
    best.push_back(of_block);
  }
  if (best.empty()) return {};
  // The newest block is one of them, whatever stands in the others.
  const auto newest = static_cast<int32_t>(best.size() - 1);
  best.pop_back();
  std::vector<int32_t> wanted = WantedTopK(best, n_blocks - 1);
  wanted.push_back(newest);
  return wanted;
}

// Few values, so that many tie; some NaN, some -inf.
std::vector<float> Scores(testing::Random& random, size_t n) {
  std::vector<float> out(n);
  for (float& v : out) {
    v = static_cast<float>(random.Between(0, 9)) - 4.0f;
    if (random.OneIn(15)) v = kNan;
    if (random.OneIn(7)) v = kNever;
  }
  return out;
}

class TopKTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kRows = 9;
  static constexpr int64_t kStride = 80;

  TopKTest() : ops_(Isa::kPortable, GetParam()) {
    scores_ = Scores(random_, kRows * kStride);
    for (int64_t row = 0; row < kRows; ++row) {
      // Row 0 has none, the last one all.
      n_scores_.push_back(row * (kStride / (kRows - 1)));
    }
  }
  [[nodiscard]] std::span<const float> Row(int64_t row) const {
    return std::span(scores_).subspan(
        static_cast<size_t>(row * kStride),
        static_cast<size_t>(n_scores_[static_cast<size_t>(row)]));
  }
  static std::vector<int32_t> IdsOf(const std::vector<int32_t>& ids,
                                    const std::vector<int32_t>& n, int64_t row,
                                    int64_t stride) {
    const auto at = ids.begin() + row * stride;
    return {at, at + n[static_cast<size_t>(row)]};
  }

  testing::Random random_;
  CpuOps ops_;
  std::vector<float> scores_;
  std::vector<int64_t> n_scores_;
};

INSTANTIATE_TEST_SUITE_P(Threads, TopKTest, ::testing::Values(1, 3));

TEST_P(TopKTest, TheBestAreChosenAndNoPlaceBehindThemIsTouched) {
  for (const int64_t k : {1, 2, 7, 80, 100}) {
    std::vector<int32_t> ids(static_cast<size_t>(kRows * k), -7);
    std::vector<int32_t> n(kRows, -7);
    ops_.TopK({.scores = scores_.data(),
               .n_rows = kRows,
               .scores_stride = kStride,
               .n_scores = n_scores_.data(),
               .k = k,
               .ids = ids.data(),
               .n_ids = n.data()});
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(IdsOf(ids, n, row, k), WantedTopK(Row(row), k))
          << "row " << row << ", k " << k;
      for (int64_t i = n[static_cast<size_t>(row)]; i < k; ++i) {
        EXPECT_EQ(ids[static_cast<size_t>(row * k + i)], -7);
      }
    }
  }
}

TEST_P(TopKTest, BlocksOfTheBestAndTheNewestAreKept) {
  for (const int64_t size : {1, 4, 7, 100}) {
    for (const int64_t n_blocks : {1, 3, 30}) {
      std::vector<int32_t> blocks(static_cast<size_t>(kRows * n_blocks), -7);
      std::vector<int32_t> n(kRows, -7);
      ops_.CandidateBlocks({.scores = scores_.data(),
                            .n_rows = kRows,
                            .scores_stride = kStride,
                            .n_scores = n_scores_.data(),
                            .block_size = size,
                            .n_blocks = n_blocks,
                            .blocks = blocks.data(),
                            .n_chosen = n.data()});
      std::vector<float> kept = scores_;
      ops_.KeepBlocks({.scores = kept.data(),
                       .n_rows = kRows,
                       .scores_stride = kStride,
                       .n_scores = n_scores_.data(),
                       .block_size = size,
                       .blocks = blocks.data(),
                       .n_blocks = n_blocks,
                       .n_chosen = n.data()});
      std::vector<float> wanted = scores_;
      for (int64_t row = 0; row < kRows; ++row) {
        const auto chosen = IdsOf(blocks, n, row, n_blocks);
        EXPECT_EQ(chosen, WantedBlocks(Row(row), size, n_blocks))
            << "row " << row << ", " << n_blocks << " blocks of " << size;
        for (int64_t i = 0; i < n_scores_[static_cast<size_t>(row)]; ++i) {
          if (std::find(chosen.begin(), chosen.end(), i / size) ==
              chosen.end()) {
            wanted[static_cast<size_t>(row * kStride + i)] = kNever;
          }
        }
      }
      EXPECT_TRUE(SameBits(kept, wanted)) << n_blocks << " blocks of " << size;
    }
  }
}

}  // namespace
}  // namespace torpor::kernels
