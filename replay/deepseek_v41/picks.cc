// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/picks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace torpor::replay::deepseek_v41 {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Strictly better: a total order, NaN first.
bool Better(float a, float b) {
  if (std::isnan(b)) return false;
  return std::isnan(a) || a > b;
}

// The `k` best ids of `ids` by `score_of`, ascending.
template <typename ScoreOf>
void KeepBest(int64_t k, const ScoreOf& score_of, std::vector<int32_t>* ids) {
  if (k < static_cast<int64_t>(ids->size())) {
    std::nth_element(ids->begin(), ids->begin() + k, ids->end(),
                     [&](int32_t a, int32_t b) {
                       const float of_a = score_of(a);
                       const float of_b = score_of(b);
                       if (Better(of_a, of_b)) return true;
                       if (Better(of_b, of_a)) return false;
                       return a < b;
                     });
    ids->resize(static_cast<size_t>(k));
  }
  std::sort(ids->begin(), ids->end());
}

}  // namespace

std::vector<int32_t> TopK(std::span<const float> scores, int64_t k) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] != kNever) ids.push_back(static_cast<int32_t>(i));
  }
  KeepBest(
      k, [&](int32_t id) { return scores[static_cast<size_t>(id)]; }, &ids);
  return ids;
}

std::vector<int32_t> CandidateBlocks(std::span<const float> scores,
                                     int64_t block_size, int64_t n_blocks) {
  if (scores.empty()) return {};
  std::vector<float> best;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i % static_cast<size_t>(block_size) == 0) best.push_back(kNever);
    if (Better(scores[i], best.back())) best.back() = scores[i];
  }
  // The newest block goes before all others, before a NaN too.
  best.pop_back();
  const auto newest = static_cast<int32_t>(best.size());
  std::vector<int32_t> blocks = TopK(best, n_blocks - 1);
  blocks.push_back(newest);
  return blocks;
}

void KeepBlocks(std::span<const int32_t> blocks, int64_t block_size,
                std::span<float> scores) {
  const auto size = static_cast<size_t>(block_size);
  size_t at = 0;
  for (const int32_t block : blocks) {
    const size_t begin = static_cast<size_t>(block) * size;
    std::fill(scores.begin() + static_cast<ptrdiff_t>(at),
              scores.begin() + static_cast<ptrdiff_t>(begin), kNever);
    at = std::min(begin + size, scores.size());
  }
  std::fill(scores.begin() + static_cast<ptrdiff_t>(at), scores.end(), kNever);
}

float Affinity(float logit) {
  // log(1 + e^x) without overflow above and without loss far below 0.
  const double x = logit;
  const double softplus =
      std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  return static_cast<float>(std::sqrt(std::isnan(logit) ? x : softplus));
}

std::vector<int32_t> ChooseExperts(std::span<const float> affinities,
                                   std::span<const float> bias, int64_t k) {
  std::vector<int32_t> experts(affinities.size());
  std::iota(experts.begin(), experts.end(), 0);
  KeepBest(
      k,
      [&](int32_t e) {
        return affinities[static_cast<size_t>(e)] +
               bias[static_cast<size_t>(e)];
      },
      &experts);
  return experts;
}

std::vector<float> ExpertWeightsOf(std::span<const float> affinities,
                                   std::span<const int32_t> experts,
                                   float scale) {
  float sum = 0;
  for (const int32_t e : experts) sum += affinities[static_cast<size_t>(e)];
  std::vector<float> weights;
  for (const int32_t e : experts) {
    weights.push_back(affinities[static_cast<size_t>(e)] / (sum + 1e-20f) *
                      scale);
  }
  return weights;
}

}  // namespace torpor::replay::deepseek_v41
