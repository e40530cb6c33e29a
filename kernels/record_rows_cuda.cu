// SPDX-License-Identifier: Apache-2.0
//
// Wide: RecordRowsKernel loads stores

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_float4.h"
#include "kernels/record_rows_cuda.h"

namespace torpor::kernels {
namespace {

using device::IsAligned;

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

// n bytes by a warp, as wide as both ends and n are aligned.
TORPOR_DEVICE_ONLY void CopyByWarp(const uint8_t* from, uint8_t* to,
                                   int64_t n) {
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const auto fits = [&](unsigned bytes) {
    return IsAligned(from, bytes) && IsAligned(to, bytes) && n % bytes == 0;
  };
  if (fits(16)) {
    for (int64_t i = lane; i < n / 16; i += 32) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else if (fits(4)) {
    for (int64_t i = lane; i < n / 4; i += 32) {
      reinterpret_cast<uint32_t*>(to)[i] =
          reinterpret_cast<const uint32_t*>(from)[i];
    }
  } else {
    for (int64_t i = lane; i < n; i += 32) to[i] = from[i];
  }
}

template <bool kPut>
TORPOR_KERNEL(kThreads)
void RecordRowsKernel(RecordRowsParams p) {
  const int64_t i = int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
  if (i >= p.n_rows) return;
  const int64_t row = p.rows[i];
  uint8_t* paged = p.pages[row / p.page_rows] + row % p.page_rows * p.row_bytes;
  uint8_t* data = p.data + i * p.data_stride;
  CopyByWarp(kPut ? data : paged, kPut ? paged : data, p.row_bytes);
}

// A thread has a channel of a group.
TORPOR_KERNEL(kThreads)
void PoolMembersKernel(PoolMembersCudaParams p) {
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
    const float e = expf(value(t, p.dim + i) - max);
    sum += e;
    acc += e * value(t, i);
  }
  p.out[group * p.dim + i] = acc / sum;
}

template <bool kPut>
int Copy(const RecordRowsParams& p, CudaStream stream) {
  assert(p.page_rows >= 1);
  if (p.n_rows == 0) return 0;
  const auto blocks =
      static_cast<unsigned>((p.n_rows + kRowsOfBlock - 1) / kRowsOfBlock);
  return TORPOR_LAUNCH((RecordRowsKernel<kPut>), blocks, kThreads, 0, stream,
                       p);
}

}  // namespace

int PutRecordRowsCuda(const RecordRowsParams& p, CudaStream stream) {
  return Copy<true>(p, stream);
}

int GetRecordRowsCuda(const RecordRowsParams& p, CudaStream stream) {
  return Copy<false>(p, stream);
}

int PoolMembersCuda(const PoolMembersCudaParams& p, CudaStream stream) {
  assert(p.n_members >= 1);
  if (p.n_groups == 0 || p.dim == 0) return 0;
  const dim3 grid(static_cast<unsigned>(p.n_groups),
                  static_cast<unsigned>((p.dim + kThreads - 1) / kThreads));
  return TORPOR_LAUNCH(PoolMembersKernel, grid, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
