// SPDX-License-Identifier: Apache-2.0
//
// The discrete choices of DeepSeek V4.1's indexer (section 2.8) on a GPU, row
// by row: picks are integers, the same whatever the schedule. All pointers are
// the device's. A NaN counts as the highest score and -inf as none; ties go to
// the lower id; ids come out ascending.

#ifndef TORPOR_KERNELS_TOP_K_CUDA_H_
#define TORPOR_KERNELS_TOP_K_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"

namespace torpor::kernels {

// The `k` best of each row, fewer where fewer are above -inf.
// A block has a row: three passes count the scores by 11, 11 and 10 bits of
// their order, which gives the k-th score; a fourth writes the ids.
// Floor: the scores read four times, of which three find them in the
// second-level cache; k ids written.
struct TopKCudaParams {
  // [n_rows, scores_stride] f32, of which row r has n_scores[r], each count
  // below 2^31.
  const float* scores = nullptr;
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows]
  // REQUIRES: at least 1.
  int64_t k = 0;
  int32_t* ids = nullptr;    // [n_rows, k]; those beyond n_ids[r] stay
  int32_t* n_ids = nullptr;  // [n_rows]
};

// Blocks of `block_size` scores that hold the best ones, `n_blocks` at most;
// the block of the last score is always among them.
// Floor: the scores read once.
struct CandidateBlocksCudaParams {
  const float* scores = nullptr;  // as above
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows]
  int64_t block_size = 0;
  // REQUIRES: at least 1.
  int64_t n_blocks = 0;
  // Scratch: [n_rows, ceil(scores_stride / block_size)] and [n_rows].
  float* best = nullptr;
  int64_t* n_best = nullptr;
  int32_t* blocks = nullptr;    // [n_rows, n_blocks]; the rest stays
  int32_t* n_chosen = nullptr;  // [n_rows]
};

// Sets scores outside the blocks to -inf.
// Floor: the scores outside written once.
struct KeepBlocksCudaParams {
  float* scores = nullptr;  // as above
  int64_t n_rows = 0;
  int64_t scores_stride = 0;
  const int64_t* n_scores = nullptr;  // [n_rows]
  int64_t block_size = 0;
  // Ascending in each row.
  const int32_t* blocks = nullptr;  // [n_rows, n_blocks]
  int64_t n_blocks = 0;
  const int32_t* n_chosen = nullptr;  // [n_rows]
};

// Launched on `stream`; 0, or CUDA's error number.
int TopKCuda(const TopKCudaParams& params, CudaStream stream);
int CandidateBlocksCuda(const CandidateBlocksCudaParams& params,
                        CudaStream stream);
int KeepBlocksCuda(const KeepBlocksCudaParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_TOP_K_CUDA_H_
