// SPDX-License-Identifier: Apache-2.0
//
// Which compressed entries a row reads: the discrete choices of DeepSeek V4.1's
// indexer (section 2.8), from its scores, row by row. A NaN score counts as the
// highest, so that damage is seen and not passed over, and -inf as none; ties
// go to the lower id; ids come out ascending. Integers, the same on every
// backend.

#ifndef TORPOR_KERNELS_TOP_K_H_
#define TORPOR_KERNELS_TOP_K_H_

#include <cstdint>
#include <vector>

namespace torpor::kernels {

// The `k` best of each row, fewer where fewer are above -inf.
// Floor: the scores read once; k ids written.
struct TopKParams {
  // [n_rows, scores_stride] f32, of which row r has n_scores[r], each count
  // below 2^31.
  const float* scores = nullptr;
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows], the host's
  // REQUIRES: at least 1.
  int64_t k = 0;
  int32_t* ids = nullptr;    // [n_rows, k]; those beyond n_ids[r] stay
  int32_t* n_ids = nullptr;  // [n_rows]
};

// Blocks of `block_size` scores that hold the best ones, `n_blocks` at most;
// the block of the last score is always among them.
// Floor: the scores read once.
struct CandidateBlocksParams {
  const float* scores = nullptr;  // as above
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows], the host's
  int64_t block_size = 0;
  // REQUIRES: at least 1.
  int64_t n_blocks = 0;
  int32_t* blocks = nullptr;    // [n_rows, n_blocks]; the rest stays
  int32_t* n_chosen = nullptr;  // [n_rows]
};

// Sets scores outside the blocks to -inf.
// Floor: the scores outside written once.
struct KeepBlocksParams {
  float* scores = nullptr;  // as above
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows], the host's
  int64_t block_size = 0;
  // Ascending in each row.
  const int32_t* blocks = nullptr;  // [n_rows, n_blocks]
  int64_t n_blocks = 0;
  const int32_t* n_chosen = nullptr;  // [n_rows]
};

void TopKRef(const TopKParams& params);
void CandidateBlocksRef(const CandidateBlocksParams& params);
void KeepBlocksRef(const KeepBlocksParams& params);

// Leaves the `k` ids of the best scores, ascending: how all the above choose.
void KeepBest(const float* scores, int64_t k, std::vector<int32_t>* ids);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_TOP_K_H_
