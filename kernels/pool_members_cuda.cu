// SPDX-License-Identifier: Apache-2.0

#include <cassert>
#include <cmath>

#include "kernels/cuda_simt.h"
#include "kernels/pool_members_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 128;

TORPOR_KERNEL(kThreads)
void PoolMembersKernel(PoolMembersParams p) {
  const int64_t group = blockIdx.x;
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= p.dim) return;
  const uint8_t* const* members = p.members + group * p.n_members;
  const auto value = [&](int64_t t, int64_t at) {
    return reinterpret_cast<const float*>(members[t])[at];
  };
  float max = value(0, p.dim + i);
  for (int64_t t = 1; t < p.n_members; ++t) {
    max = fmaxf(max, value(t, p.dim + i));
  }
  float sum = 0.0f;
  float acc = 0.0f;
  for (int64_t t = 0; t < p.n_members; ++t) {
    const auto e =
        static_cast<float>(exp(static_cast<double>(value(t, p.dim + i) - max)));
    sum += e;
    acc += e * value(t, i);
  }
  p.out[group * p.dim + i] = acc / sum;
}

}  // namespace

int PoolMembersCuda(const PoolMembersParams& p, CudaStream stream) {
  assert(p.n_members >= 1);
  if (p.n_groups == 0 || p.dim == 0) return 0;
  const dim3 grid(static_cast<unsigned>(p.n_groups),
                  static_cast<unsigned>((p.dim + kThreads - 1) / kThreads));
  return TORPOR_LAUNCH(PoolMembersKernel, grid, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
