// SPDX-License-Identifier: Apache-2.0
//
// kernels/index_score.h on a GPU. All pointers are the device's, the pages in
// `pages` too. A block has one row and 128 keys, decoded as they meet 32 heads
// at a time; blocks beyond a row's visible keys leave at once.
// Floor: 2 * rows * keys * n_heads * dim operations; keys read once a row,
// which rows beside it find in the second-level cache.

#ifndef TORPOR_KERNELS_INDEX_SCORE_CUDA_H_
#define TORPOR_KERNELS_INDEX_SCORE_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/index_score.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number. REQUIRES: n_visible[r] <=
// scores_stride, q aligned to 16 bytes.
int IndexScoreCuda(const IndexScoreParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_INDEX_SCORE_CUDA_H_
