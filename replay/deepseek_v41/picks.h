// SPDX-License-Identifier: Apache-2.0
//
// Which compressed entries a row reads, and which experts: the discrete choices
// of DeepSeek V4.1 (sections 2.8 and 2.10), from their scores. Pure functions
// of one row. A NaN score counts as the highest, so that damage is seen and not
// passed over; ties go to the lower id.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace torpor::replay::deepseek_v41 {

// The `k` best of `scores`, ascending; all of them where there are fewer, none
// of -inf.
std::vector<int32_t> TopK(std::span<const float> scores, int64_t k);

// Blocks of `block_size` scores that hold the best ones, `n_blocks` at most,
// ascending. The block of the last score is always among them. REQUIRES:
// block_size and n_blocks are at least 1.
std::vector<int32_t> CandidateBlocks(std::span<const float> scores,
                                     int64_t block_size, int64_t n_blocks);

// Sets scores outside the blocks to -inf.
void KeepBlocks(std::span<const int32_t> blocks, int64_t block_size,
                std::span<float> scores);

// sqrt(softplus(logit)), the affinity of a row and an expert.
float Affinity(float logit);

// The `k` experts of the highest affinity + bias, ascending.
std::vector<int32_t> ChooseExperts(std::span<const float> affinities,
                                   std::span<const float> bias, int64_t k);
// The affinities of these experts over their sum (+ 1e-20), times `scale`.
std::vector<float> ExpertWeightsOf(std::span<const float> affinities,
                                   std::span<const int32_t> experts,
                                   float scale);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_
