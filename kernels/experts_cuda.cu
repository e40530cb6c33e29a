// SPDX-License-Identifier: Apache-2.0
//
// Wide: GroupExpertsKernel loads
// Wide: BiasExpertsKernel loads stores
// Wide: SumExpertsKernel loads stores

#include <cassert>
#include <cmath>

#include "kernels/cuda_simt.h"
#include "kernels/device_block_scan.h"
#include "kernels/device_float4.h"
#include "kernels/device_score_order.h"
#include "kernels/experts_cuda.h"

namespace torpor::kernels {
namespace {

using device::IsAligned;
using device::LoadFloat4;
using device::OrderOf;
using device::Plus;
using device::StoreFloat4;
using device::SumBefore;
using device::Times;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// ---- a row's experts -------------------------------------------------------

// sqrt(log(1 + e^x)) without overflow above and without loss far below 0. A NaN
// stays one.
TORPOR_DEVICE_ONLY float Affinity(float logit) {
  const double x = logit;
  const double above = x > 0.0 ? x : 0.0;
  return static_cast<float>(sqrt(above + log1p(exp(-fabs(x)))));
}

struct ChooseShared {
  // Of affinity + bias.
  uint32_t orders[kRouteExpertsMax];
  uint32_t sums[kWarps];
};

// How many go before it.
TORPOR_DEVICE_ONLY int RankOf(const uint32_t* orders, int n, int expert) {
  const uint32_t own = orders[expert];
  int rank = 0;
  for (int other = 0; other < n; ++other) {
    const uint32_t order = orders[other];
    if (order > own || (order == own && other < expert)) ++rank;
  }
  return rank;
}

// The k that come first, ascending. All threads come here, and wait for each
// other.
TORPOR_DEVICE_ONLY void ListChosen(ChooseShared* shared, int n, int64_t k,
                                   int32_t* experts) {
  __syncthreads();
  uint32_t chosen = 0;
  for (int first = 0; first < n; first += kThreads) {
    const int expert = first + static_cast<int>(threadIdx.x);
    const bool is_chosen = expert < n && RankOf(shared->orders, n, expert) < k;
    uint32_t total;
    const uint32_t before =
        SumBefore<kThreads>(is_chosen ? 1 : 0, shared->sums, &total);
    if (is_chosen) experts[chosen + before] = expert;
    chosen += total;
  }
}

TORPOR_KERNEL(kThreads)
void ChooseExpertsKernel(ChooseExpertsParams p) {
  TORPOR_SHARED(ChooseShared, shared, 1);
  const auto n = static_cast<int>(p.n_experts);
  float* affinities = p.affinities + int64_t{blockIdx.x} * n;
  for (int e = static_cast<int>(threadIdx.x); e < n; e += kThreads) {
    const float affinity = Affinity(affinities[e] / p.temperature);
    affinities[e] = affinity;
    shared->orders[e] = OrderOf(affinity + p.bias[e]);
  }
  ListChosen(shared, n, p.k, p.experts + int64_t{blockIdx.x} * p.k);
}

TORPOR_KERNEL(kThreads)
void ChooseSoftmaxExpertsKernel(ChooseSoftmaxExpertsParams p) {
  TORPOR_SHARED(ChooseShared, shared, 1);
  const auto n = static_cast<int>(p.n_experts);
  const auto thread = static_cast<int>(threadIdx.x);
  float* affinities = p.affinities + int64_t{blockIdx.x} * n;
  float highest = -INFINITY;
  for (int e = 0; e < n; ++e) highest = fmaxf(highest, affinities[e]);
  for (int e = thread; e < n; e += kThreads) {
    shared->orders[e] = OrderOf(affinities[e]);
  }
  ListChosen(shared, n, p.k, p.experts + int64_t{blockIdx.x} * p.k);
  // Every thread has read every logit by now.
  for (int e = thread; e < n; e += kThreads) {
    affinities[e] = static_cast<float>(
        exp(static_cast<double>(affinities[e]) - static_cast<double>(highest)));
  }
}

// ---- an expert's rows ------------------------------------------------------

// Of entries [at, at + 4) of n; -1 beyond the last.
TORPOR_DEVICE_ONLY void LoadExperts(const int32_t* experts, int64_t n,
                                    int64_t at, int32_t (&out)[4]) {
  if (at + 4 <= n && IsAligned(experts + at, 16)) {
    const int4 v = *reinterpret_cast<const int4*>(experts + at);
    out[0] = v.x;
    out[1] = v.y;
    out[2] = v.z;
    out[3] = v.w;
    return;
  }
  for (int i = 0; i < 4; ++i) out[i] = at + i < n ? experts[at + i] : -1;
}

// Entries of all experts below this one.
TORPOR_DEVICE_ONLY uint32_t EntriesBelow(const int32_t* experts, int64_t n,
                                         int32_t expert, uint32_t* sums) {
  uint32_t own = 0;
  for (int64_t at = 4 * int64_t{threadIdx.x}; at < n; at += 4 * kThreads) {
    int32_t four[4];
    LoadExperts(experts, n, at, four);
    for (const int32_t e : four) own += e >= 0 && e < expert ? 1 : 0;
  }
  uint32_t total;
  SumBefore<kThreads>(own, sums, &total);
  return total;
}

// Of an expert of a row.
TORPOR_DEVICE_ONLY float WeightOf(const GroupExpertsParams& p, int64_t row,
                                  int32_t expert) {
  const int32_t* experts = p.experts + row * p.k;
  const float* affinities = p.affinities + row * p.n_experts;
  float sum = 0.0f;
  for (int64_t j = 0; j < p.k; ++j) sum += affinities[experts[j]];
  return affinities[expert] / (sum + 1e-20f) * p.scale;
}

TORPOR_KERNEL(kThreads)
void GroupExpertsKernel(GroupExpertsParams p) {
  TORPOR_SHARED(uint32_t, sums, kWarps);
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const int64_t n = p.n_rows * p.k;
  uint32_t begin = EntriesBelow(p.experts, n, expert, sums);
  if (threadIdx.x == 0) p.first[expert] = static_cast<int32_t>(begin);
  for (int64_t first = 0; first < n; first += 4 * kThreads) {
    const int64_t at = first + 4 * int64_t{threadIdx.x};
    int32_t four[4];
    LoadExperts(p.experts, n, at, four);
    uint32_t own = 0;
    for (const int32_t e : four) own += e == expert ? 1 : 0;
    uint32_t total;
    uint32_t entry = begin + SumBefore<kThreads>(own, sums, &total);
    for (int i = 0; i < 4; ++i) {
      if (four[i] != expert) continue;
      const uint32_t row =
          static_cast<uint32_t>(at + i) / static_cast<uint32_t>(p.k);
      p.rows[entry] = static_cast<int32_t>(row);
      p.weights[entry] = WeightOf(p, row, expert);
      p.entries[at + i] = static_cast<int32_t>(entry);
      ++entry;
    }
    begin += total;
  }
  if (threadIdx.x == 0 && expert == p.n_experts - 1) {
    p.first[p.n_experts] = static_cast<int32_t>(begin);
  }
}

// ---- what they gave --------------------------------------------------------

TORPOR_KERNEL(kThreads)
void BiasExpertsKernel(BiasExpertsParams p) {
  const int64_t entry = blockIdx.x;
  const int64_t i = 4 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
  if (i >= p.dim) return;
  // The last expert that begins at or before the entry.
  int64_t expert = 0;
  for (int64_t end = p.n_experts; end - expert > 1;) {
    const int64_t middle = (expert + end) / 2;
    (p.first[middle] <= entry ? expert : end) = middle;
  }
  const int64_t left = p.dim - i;
  float* x = p.x + entry * p.dim + i;
  const float weight = p.weights == nullptr ? 1.0f : p.weights[entry];
  const float4 sum =
      Plus(LoadFloat4(x, left), LoadFloat4(p.bias + expert * p.dim + i, left));
  StoreFloat4(x, Times(weight, sum), left);
}

TORPOR_KERNEL(kThreads)
void SumExpertsKernel(SumExpertsParams p) {
  const int64_t row = blockIdx.x;
  const int64_t i = 4 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
  if (i >= p.dim) return;
  const int64_t left = p.dim - i;
  float4 sum = make_float4(0, 0, 0, 0);
  for (int64_t j = 0; j < p.k; ++j) {
    const int64_t entry = p.entries[row * p.k + j];
    sum = Plus(sum, LoadFloat4(p.x + entry * p.dim + i, left));
  }
  if (p.shared != nullptr) {
    sum = Plus(sum, LoadFloat4(p.shared + row * p.dim + i, left));
  }
  StoreFloat4(p.out + row * p.dim + i, sum, left);
}

}  // namespace

int ChooseExpertsCuda(const ChooseExpertsParams& p, CudaStream stream) {
  assert(p.k >= 1 && p.k <= p.n_experts && p.n_experts <= kRouteExpertsMax);
  if (p.n_rows == 0) return 0;
  return TORPOR_LAUNCH(ChooseExpertsKernel, static_cast<unsigned>(p.n_rows),
                       kThreads, 0, stream, p);
}

int ChooseSoftmaxExpertsCuda(const ChooseSoftmaxExpertsParams& p,
                             CudaStream stream) {
  assert(p.k >= 1 && p.k <= p.n_experts && p.n_experts <= kRouteExpertsMax);
  if (p.n_rows == 0) return 0;
  return TORPOR_LAUNCH(ChooseSoftmaxExpertsKernel,
                       static_cast<unsigned>(p.n_rows), kThreads, 0, stream, p);
}

int BiasExpertsCuda(const BiasExpertsParams& p, CudaStream stream) {
  if (p.n_entries == 0 || p.dim == 0) return 0;
  const dim3 grid(
      static_cast<unsigned>(p.n_entries),
      static_cast<unsigned>((p.dim + 4 * kThreads - 1) / (4 * kThreads)));
  return TORPOR_LAUNCH(BiasExpertsKernel, grid, kThreads, 0, stream, p);
}

int GroupExpertsCuda(const GroupExpertsParams& p, CudaStream stream) {
  assert(p.k >= 1 && p.n_experts >= 1 && p.n_rows * p.k < int64_t{1} << 31);
  return TORPOR_LAUNCH(GroupExpertsKernel, static_cast<unsigned>(p.n_experts),
                       kThreads, 0, stream, p);
}

int SumExpertsCuda(const SumExpertsParams& p, CudaStream stream) {
  if (p.n_rows == 0 || p.dim == 0) return 0;
  const dim3 grid(
      static_cast<unsigned>(p.n_rows),
      static_cast<unsigned>((p.dim + 4 * kThreads - 1) / (4 * kThreads)));
  return TORPOR_LAUNCH(SumExpertsKernel, grid, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
