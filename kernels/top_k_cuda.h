// SPDX-License-Identifier: Apache-2.0
//
// kernels/top_k.h on a GPU: picks are integers, the same whatever the schedule.
// All pointers are the device's, counts of scores too.
// Picking: a block has a row; three passes count the scores by 11, 11 and 10
// bits of their order, which gives the k-th score, and a fourth writes the ids:
// four reads of the scores, of which three find them in the second-level cache.
// Blocks: a thread has a block of scores.
// Floor: the scores read once, ids written; keeping blocks writes the scores
// outside once.

#ifndef TORPOR_KERNELS_TOP_K_CUDA_H_
#define TORPOR_KERNELS_TOP_K_CUDA_H_

#include <cstddef>

#include "kernels/cuda_stream.h"
#include "kernels/top_k.h"

namespace torpor::kernels {

// What choosing of candidate blocks works in.
size_t CandidateBlocksScratchBytes(const CandidateBlocksParams& params);

// Launched on `stream`; 0, or CUDA's error number. `scratch`: so many bytes as
// said above, aligned to 16.
int TopKCuda(const TopKParams& params, CudaStream stream);
int CandidateBlocksCuda(const CandidateBlocksParams& params, void* scratch,
                        CudaStream stream);
int KeepBlocksCuda(const KeepBlocksParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_TOP_K_CUDA_H_
