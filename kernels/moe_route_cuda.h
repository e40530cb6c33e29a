// SPDX-License-Identifier: Apache-2.0
//
// Which experts serve which rows (DeepSeek V4.1 section 2.10) on a GPU: each
// row's choice from the router's products, each expert's list of rows, and the
// sum of what the experts gave. Lists are in ascending order of rows whatever
// the schedule, sums in ascending order of experts. All pointers are the
// device's.

#ifndef TORPOR_KERNELS_MOE_ROUTE_CUDA_H_
#define TORPOR_KERNELS_MOE_ROUTE_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/experts.h"

namespace torpor::kernels {

inline constexpr int64_t kRouteExpertsMax = 1024;

//   affinity = sqrt(log(1 + e^(logit / temperature)))
//   experts  = the k of the highest affinity + bias; ties go to the lower id, a
//              NaN counts as the highest
//   weight   = affinity / (sum over the chosen, ascending, + 1e-20) * scale
// Floor: logits read once. Comparisons: n_experts^2 a row.
struct RouteParams {
  const float* logits = nullptr;  // [n_rows, n_experts]
  int64_t n_rows = 0;
  // REQUIRES: 1 <= k <= n_experts <= kRouteExpertsMax.
  int64_t n_experts = 0;
  int64_t k = 0;
  float temperature = 1.0f;
  float scale = 1.0f;
  const float* bias = nullptr;  // [n_experts]
  int32_t* experts = nullptr;   // [n_rows, k], ascending in each row
  float* weights = nullptr;     // [n_rows, k]
};

// kernels/experts.h; at most kRouteExpertsMax experts. Floor: logits read once,
// affinities written once. Comparisons: n_experts^2 a row.
int ChooseSoftmaxExpertsCuda(const ChooseSoftmaxExpertsParams& params,
                             CudaStream stream);
// Floor: x read once and written once.
int BiasExpertsCuda(const BiasExpertsParams& params, CudaStream stream);

// Entry i of the lists is entry_row[i] with entry_weight[i]; those of expert e
// are [group_begin[e], group_begin[e + 1]).
// Floor: n_rows * k ids, weights and places once; each expert's block reads all
// ids twice, from the second-level cache.
struct GroupByExpertParams {
  // As RouteParams has them; ids below n_experts, none twice in a row.
  // REQUIRES: n_rows * k < 2^31.
  const int32_t* experts = nullptr;
  const float* weights = nullptr;
  int64_t n_rows = 0;
  int64_t k = 0;
  int64_t n_experts = 0;
  int32_t* group_begin = nullptr;  // [n_experts + 1]
  int32_t* entry_row = nullptr;    // [n_rows * k]
  float* entry_weight = nullptr;   // [n_rows * k]
  // [n_rows, k]: the entry of each row's experts.
  int32_t* places = nullptr;
};

// y[r] = 0 + of_entry[places[r, 0]] + ... + of_entry[places[r, k - 1]], then
// + shared[r].
// Floor: every entry and shared row read once, every y written once.
struct SumExpertsCudaParams {
  const float* of_entry = nullptr;  // [n_rows * k, dim]
  const int32_t* places = nullptr;  // [n_rows, k]
  const float* shared = nullptr;    // [n_rows, dim], or null
  int64_t n_rows = 0;
  int64_t k = 0;
  int64_t dim = 0;
  float* y = nullptr;  // [n_rows, dim]; may be `shared`
};

// Launched on `stream`; 0, or CUDA's error number.
int RouteCuda(const RouteParams& params, CudaStream stream);
int GroupByExpertCuda(const GroupByExpertParams& params, CudaStream stream);
int SumExpertsCuda(const SumExpertsCudaParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_MOE_ROUTE_CUDA_H_
