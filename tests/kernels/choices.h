// SPDX-License-Identifier: Apache-2.0
//
// The discrete choices of DeepSeek V4.1 of one row, as vectors: the references
// of kernels/top_k.h and kernels/experts.h.

#ifndef TORPOR_TESTS_KERNELS_CHOICES_H_
#define TORPOR_TESTS_KERNELS_CHOICES_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/experts.h"
#include "kernels/top_k.h"

namespace torpor::kernels {

inline std::vector<int32_t> TopK(std::span<const float> scores, int64_t k) {
  const auto n = static_cast<int64_t>(scores.size());
  // No more room than there are scores.
  const int64_t kept = std::min(k, n);
  if (kept <= 0) return {};
  std::vector<int32_t> ids(static_cast<size_t>(kept));
  int32_t n_ids = 0;
  TopKRef({.scores = scores.data(),
           .n_rows = 1,
           .scores_stride = n,
           .n_scores = &n,
           .k = kept,
           .ids = ids.data(),
           .n_ids = &n_ids});
  ids.resize(static_cast<size_t>(n_ids));
  return ids;
}

inline std::vector<int32_t> CandidateBlocks(std::span<const float> scores,
                                            int64_t block_size,
                                            int64_t n_blocks) {
  const auto n = static_cast<int64_t>(scores.size());
  std::vector<int32_t> blocks(static_cast<size_t>(
      std::min(n_blocks, (n + block_size - 1) / block_size + 1)));
  int32_t n_chosen = 0;
  CandidateBlocksRef({.scores = scores.data(),
                      .n_rows = 1,
                      .scores_stride = n,
                      .n_scores = &n,
                      .block_size = block_size,
                      .n_blocks = static_cast<int64_t>(blocks.size()),
                      .blocks = blocks.data(),
                      .n_chosen = &n_chosen});
  blocks.resize(static_cast<size_t>(n_chosen));
  return blocks;
}

inline void KeepBlocks(std::span<const int32_t> blocks, int64_t block_size,
                       std::span<float> scores) {
  const auto n = static_cast<int64_t>(scores.size());
  const auto n_chosen = static_cast<int32_t>(blocks.size());
  KeepBlocksRef({.scores = scores.data(),
                 .n_rows = 1,
                 .scores_stride = n,
                 .n_scores = &n,
                 .block_size = block_size,
                 .blocks = blocks.data(),
                 .n_blocks = n_chosen,
                 .n_chosen = &n_chosen});
}

// sqrt(softplus(logit)).
inline float Affinity(float logit) {
  float affinity = logit;
  const float bias = 0;
  int32_t expert = 0;
  ChooseExpertsRef({.affinities = &affinity,
                    .n_rows = 1,
                    .n_experts = 1,
                    .bias = &bias,
                    .k = 1,
                    .experts = &expert});
  return affinity;
}

// The `k` experts of the highest affinity + bias, ascending.
inline std::vector<int32_t> ChooseExperts(std::span<const float> affinities,
                                          std::span<const float> bias,
                                          int64_t k) {
  std::vector<float> biased;
  std::vector<int32_t> ids;
  for (size_t e = 0; e < affinities.size(); ++e) {
    biased.push_back(affinities[e] + bias[e]);
    ids.push_back(static_cast<int32_t>(e));
  }
  KeepBest(biased.data(), k, &ids);
  return ids;
}

// Their affinities over their sum (+ 1e-20), times `scale`.
inline std::vector<float> ExpertWeightsOf(std::span<const float> affinities,
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

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_CHOICES_H_
