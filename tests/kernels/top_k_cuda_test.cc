// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels of top_k_cuda.h: the very picks of
// tests/kernels/choices.h.

#include "kernels/top_k_cuda.h"

#include <algorithm>

#include "tests/kernels/choices.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// What no run writes.
constexpr int32_t kUntouched = -77;

// Scores that are hard to tell apart in one way or another.
enum class Kind {
  kNormal,
  kFewValues,
  kAllEqual,
  kAllNever,
  kMixed,
  kAnyBits,
  kAscending,
  kNegative,
  kZeros,
  kLowBits
};
constexpr Kind kKinds[] = {Kind::kNormal,    Kind::kFewValues, Kind::kAllEqual,
                           Kind::kAllNever,  Kind::kMixed,     Kind::kAnyBits,
                           Kind::kAscending, Kind::kNegative,  Kind::kZeros,
                           Kind::kLowBits};

float DrawScore(testing::Random& random, Kind kind, size_t i) {
  switch (kind) {
    case Kind::kNormal:
      return random.Normal();
    case Kind::kFewValues:
      return static_cast<float>(random.Between(0, 6)) - 3.0f;
    case Kind::kAllEqual:
      return 0.25f;
    case Kind::kAllNever:
      return kNever;
    case Kind::kMixed: {
      constexpr float kSome[] = {kNever, kNan,      -kNan,      -kNever, 0.0f,
                                 -0.0f,  0x1p-149f, -0x1p-149f, 1.0f};
      return kSome[random.Between(0, std::size(kSome) - 1)];
    }
    case Kind::kAnyBits:
      return std::bit_cast<float>(static_cast<uint32_t>(random.engine()()));
    case Kind::kAscending:
      return static_cast<float>(i) - 1000.0f;
    case Kind::kNegative:
      return -std::abs(random.Normal());
    case Kind::kZeros:
      return random.OneIn(2) ? 0.0f : -0.0f;
    case Kind::kLowBits:
      // Apart in the last digit of the selection alone.
      return std::bit_cast<float>(
          0x3f800000u | static_cast<uint32_t>(random.Between(0, 1023)));
  }
  return 0.0f;
}

// Rows of different lengths, `stride` apart; nothing beyond a row's length was
// written, so that a read of it is seen.
struct Rows {
  Rows(testing::Random& random, std::vector<int64_t> lengths,
       int64_t stride_of_rows, Kind kind)
      : n_scores(std::move(lengths)), stride(stride_of_rows) {
    for (const int64_t n : n_scores) {
      scores.emplace_back();
      for (int64_t i = 0; i < n; ++i) {
        scores.back().push_back(
            DrawScore(random, kind, static_cast<size_t>(i)));
      }
    }
  }

  void Upload(const DeviceBuffer<float>& to) const {
    for (size_t r = 0; r < scores.size(); ++r) {
      if (scores[r].empty()) continue;
      to.Upload(scores[r], r * static_cast<size_t>(stride));
    }
  }
  [[nodiscard]] int64_t n_rows() const {
    return static_cast<int64_t>(n_scores.size());
  }
  [[nodiscard]] size_t size() const {
    return n_scores.size() * static_cast<size_t>(stride);
  }

  std::vector<int64_t> n_scores;
  int64_t stride;
  std::vector<std::vector<float>> scores;
};

using Lists = std::vector<std::vector<int32_t>>;

// [n_rows, width] ids, of which a row has n_ids; the others are untouched.
Lists ListsOf(const std::vector<int32_t>& ids,
              const std::vector<int32_t>& n_ids, int64_t width) {
  Lists out;
  auto at = ids.begin();
  for (const int32_t n : n_ids) {
    out.emplace_back(at, at + n);
    EXPECT_EQ(std::count(at + n, at + width, kUntouched), width - n);
    at += width;
  }
  return out;
}

class TopKCudaTest : public CudaTest {
 protected:
  static Lists TopK(const Rows& rows, int64_t k) {
    const DeviceBuffer<float> scores(rows.size(), "scores");
    rows.Upload(scores);
    const DeviceBuffer<int64_t> n_scores(rows.n_scores, "n_scores");
    const DeviceBuffer<int32_t> ids(
        std::vector<int32_t>(static_cast<size_t>(rows.n_rows() * k),
                             kUntouched),
        "ids");
    const DeviceBuffer<int32_t> n_ids(rows.n_scores.size(), "n_ids");
    EXPECT_EQ(TopKCuda({.scores = scores.data(),
                        .n_rows = rows.n_rows(),
                        .scores_stride = rows.stride,
                        .n_scores = n_scores.data(),
                        .k = k,
                        .ids = ids.data(),
                        .n_ids = n_ids.data()},
                       nullptr),
              0)
        << Reports();
    return ListsOf(ids.Download(), n_ids.Download(), k);
  }

  static Lists TopKOfReference(const Rows& rows, int64_t k) {
    Lists out;
    for (const auto& scores : rows.scores) {
      out.push_back(kernels::TopK(scores, k));
    }
    return out;
  }

  // Blocks, and the scores that they keep.
  static Lists Candidates(const Rows& rows, int64_t block_size,
                          int64_t n_blocks, std::vector<float>* kept) {
    const DeviceBuffer<float> scores(rows.size(), "scores");
    rows.Upload(scores);
    const DeviceBuffer<int64_t> n_scores(rows.n_scores, "n_scores");
    const DeviceBuffer<int32_t> blocks(
        std::vector<int32_t>(static_cast<size_t>(rows.n_rows() * n_blocks),
                             kUntouched),
        "blocks");
    const DeviceBuffer<int32_t> n_chosen(rows.n_scores.size(), "n_chosen");
    const CandidateBlocksParams candidates{.scores = scores.data(),
                                           .n_rows = rows.n_rows(),
                                           .scores_stride = rows.stride,
                                           .n_scores = n_scores.data(),
                                           .block_size = block_size,
                                           .n_blocks = n_blocks,
                                           .blocks = blocks.data(),
                                           .n_chosen = n_chosen.data()};
    const DeviceBuffer<uint8_t> scratch(CandidateBlocksScratchBytes(candidates),
                                        "scratch");
    EXPECT_EQ(CandidateBlocksCuda(candidates, scratch.data(), nullptr), 0)
        << Reports();
    EXPECT_EQ(KeepBlocksCuda({.scores = scores.data(),
                              .n_rows = rows.n_rows(),
                              .scores_stride = rows.stride,
                              .n_scores = n_scores.data(),
                              .block_size = block_size,
                              .blocks = blocks.data(),
                              .n_blocks = n_blocks,
                              .n_chosen = n_chosen.data()},
                             nullptr),
              0)
        << Reports();
    *kept = scores.Download();
    return ListsOf(blocks.Download(), n_chosen.Download(), n_blocks);
  }

  testing::Random random_;
};

TEST_F(TopKCudaTest, PicksAreTheReferences) {
  for (const Kind kind : kKinds) {
    const Rows rows(random_,
                    {0, 1, 2, 3, 5, 511, 512, 513, 2047, 2048, 2049, 4111},
                    4113, kind);
    for (const int64_t k : {1, 2, 64, 512}) {
      EXPECT_EQ(TopK(rows, k), TopKOfReference(rows, k))
          << "kind " << static_cast<int>(kind) << ", k " << k;
    }
  }
}

TEST_F(TopKCudaTest, PicksOfLongRowsAreTheReferences) {
  for (const Kind kind : {Kind::kNormal, Kind::kFewValues, Kind::kLowBits}) {
    const Rows rows(random_, {100'003, 131'072}, 131'072, kind);
    EXPECT_EQ(TopK(rows, 512), TopKOfReference(rows, 512))
        << "kind " << static_cast<int>(kind);
  }
}

TEST_F(TopKCudaTest, NoScheduleChangesAPick) {
  for (const Kind kind : {Kind::kFewValues, Kind::kMixed, Kind::kLowBits}) {
    const Rows rows(random_, {700, 2500, 0, 33}, 2502, kind);
    const Lists wanted = TopKOfReference(rows, 100);
    ForEachSchedule([&] { EXPECT_EQ(TopK(rows, 100), wanted); });
  }
}

TEST_F(TopKCudaTest, BlocksAndWhatTheyKeepAreTheReferences) {
  for (const Kind kind : kKinds) {
    const Rows rows(random_, {0, 1, 7, 8, 9, 100, 2051, 3000}, 3001, kind);
    for (const auto& [block_size, n_blocks] :
         {std::pair<int64_t, int64_t>{8, 1},
          {8, 16},
          {8, 2048},
          {3, 5},
          {1, 9},
          {4096, 2}}) {
      std::vector<float> kept;
      const Lists blocks = Candidates(rows, block_size, n_blocks, &kept);
      for (size_t r = 0; r < rows.scores.size(); ++r) {
        std::vector<float> scores = rows.scores[r];
        EXPECT_EQ(blocks[r],
                  kernels::CandidateBlocks(scores, block_size, n_blocks))
            << "kind " << static_cast<int>(kind) << ", row " << r
            << ", blocks of " << block_size;
        KeepBlocks(blocks[r], block_size, scores);
        EXPECT_TRUE(
            SameBits(std::span(kept).subspan(
                         r * static_cast<size_t>(rows.stride), scores.size()),
                     scores));
      }
    }
  }
}

TEST_F(TopKCudaTest, NoScheduleChangesABlock) {
  const Rows rows(random_, {2051, 17, 0}, 2052, Kind::kFewValues);
  std::vector<float> kept_first;
  const Lists first = Candidates(rows, 8, 50, &kept_first);
  ForEachSchedule([&] {
    std::vector<float> kept;
    EXPECT_EQ(Candidates(rows, 8, 50, &kept), first);
    EXPECT_TRUE(SameBits(kept, kept_first));
  });
}

TEST_F(TopKCudaTest, NoRowsAreNoLaunch) {
  EXPECT_EQ(TopKCuda({.k = 3}, nullptr), 0);
  EXPECT_EQ(
      CandidateBlocksCuda({.block_size = 8, .n_blocks = 2}, nullptr, nullptr),
      0);
  EXPECT_EQ(KeepBlocksCuda({.block_size = 8}, nullptr), 0);
}

}  // namespace
}  // namespace torpor::kernels
