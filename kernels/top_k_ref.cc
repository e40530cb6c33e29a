// SPDX-License-Identifier: Apache-2.0

#include "kernels/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace torpor::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Strictly better: a total order, NaN first.
bool Better(float a, float b) {
  if (std::isnan(b)) return false;
  return std::isnan(a) || a > b;
}

// The best score of each block; the newest block goes before all others.
std::vector<float> BestOfBlocks(const float* scores, int64_t n,
                                int64_t block_size) {
  std::vector<float> best;
  for (int64_t i = 0; i < n; ++i) {
    if (i % block_size == 0) best.push_back(kNever);
    if (Better(scores[i], best.back())) best.back() = scores[i];
  }
  if (n > 0) best.back() = std::numeric_limits<float>::quiet_NaN();
  return best;
}

// Gives the number of ids that it wrote.
int32_t PutBest(const float* scores, int64_t n, int64_t k, int32_t* out) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    if (scores[i] != kNever) ids.push_back(static_cast<int32_t>(i));
  }
  KeepBest(scores, k, &ids);
  std::copy(ids.begin(), ids.end(), out);
  return static_cast<int32_t>(ids.size());
}

}  // namespace

void KeepBest(const float* scores, int64_t k, std::vector<int32_t>* ids) {
  if (k < static_cast<int64_t>(ids->size())) {
    std::nth_element(ids->begin(), ids->begin() + k, ids->end(),
                     [&](int32_t a, int32_t b) {
                       if (Better(scores[a], scores[b])) return true;
                       if (Better(scores[b], scores[a])) return false;
                       return a < b;
                     });
    ids->resize(static_cast<size_t>(k));
  }
  std::sort(ids->begin(), ids->end());
}

void TopKRef(const TopKParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    p.n_ids[row] = PutBest(p.scores + row * p.scores_stride, p.n_scores[row],
                           p.k, p.ids + row * p.k);
  }
}

void CandidateBlocksRef(const CandidateBlocksParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const std::vector<float> best = BestOfBlocks(
        p.scores + row * p.scores_stride, p.n_scores[row], p.block_size);
    int32_t* blocks = p.blocks + row * p.n_blocks;
    const auto n = static_cast<int64_t>(best.size());
    p.n_chosen[row] = PutBest(best.data(), n, p.n_blocks, blocks);
    // It goes before a NaN too, whose lower id would win.
    if (n > 0) blocks[p.n_chosen[row] - 1] = static_cast<int32_t>(n - 1);
  }
}

void KeepBlocksRef(const KeepBlocksParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    float* scores = p.scores + row * p.scores_stride;
    const int32_t* blocks = p.blocks + row * p.n_blocks;
    const int64_t n = p.n_scores[row];
    int64_t at = 0;
    for (int64_t i = 0; i < p.n_chosen[row]; ++i) {
      const int64_t begin = blocks[i] * p.block_size;
      std::fill(scores + at, scores + begin, kNever);
      at = std::min(begin + p.block_size, n);
    }
    std::fill(scores + at, scores + n, kNever);
  }
}

}  // namespace torpor::kernels
