// SPDX-License-Identifier: Apache-2.0
//
// kernels/experts.h on a GPU. All pointers are the device's. Choosing: a block
// has a row, and counts for each expert how many go before it, n_experts^2
// comparisons a row. Grouping: a block has an expert, and reads all choices
// twice, from the second-level cache; lists are in ascending order of rows
// whatever the schedule. Summing: a thread has four channels of a row.
// Floor: each array read once and written once.

#ifndef TORPOR_KERNELS_EXPERTS_CUDA_H_
#define TORPOR_KERNELS_EXPERTS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/experts.h"

namespace torpor::kernels {

// Experts of a router at most.
inline constexpr int64_t kRouteExpertsMax = 1024;

// Launched on `stream`; 0, or CUDA's error number. REQUIRES: n_experts at most
// kRouteExpertsMax; n_rows * k below 2^31, no expert twice in a row.
int ChooseExpertsCuda(const ChooseExpertsParams& params, CudaStream stream);
int GroupExpertsCuda(const GroupExpertsParams& params, CudaStream stream);
// `out` may be `shared`.
int SumExpertsCuda(const SumExpertsParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_EXPERTS_CUDA_H_
