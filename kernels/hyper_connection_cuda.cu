// SPDX-License-Identifier: Apache-2.0
//
// Wide: HyperMixKernel loads
// Wide: HyperCollapseKernel loads stores
// Wide: HyperExpandKernel loads stores

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_float4.h"
#include "kernels/hyper_connection_cuda.h"

namespace torpor::kernels {
namespace {

using device::Fma;
using device::kWholeWarp;
using device::LoadFloat4;
using device::StoreFloat4;
using device::Times;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
static_assert(kThreads >= kMaxStreams * kMaxStreams,
              "a thread has an element of comb");

// ---- mixes -----------------------------------------------------------------

// 1 / sqrt(mean of the squares + eps), the same in every thread: each adds
// every 256th four in ascending order, four sums apart, then a tree over the
// warp, then warps in ascending order. `sums` has room for kWarps.
TORPOR_DEVICE_ONLY float InverseNorm(const float* x, int64_t n, float eps,
                                     float* sums) {
  float4 squares = make_float4(0, 0, 0, 0);
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < n; i += 4 * kThreads) {
    const float4 v = LoadFloat4(x + i, n - i);
    squares = make_float4(fmaf(v.x, v.x, squares.x), fmaf(v.y, v.y, squares.y),
                          fmaf(v.z, v.z, squares.z), fmaf(v.w, v.w, squares.w));
  }
  float sum = (squares.x + squares.y) + (squares.z + squares.w);
  for (int step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, step);
  }
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) sum += sums[w];
  return 1.0f / sqrtf(sum / static_cast<float>(n) + eps);
}

TORPOR_DEVICE_ONLY float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One element [j, k] of an n x n matrix in a thread, all of them in shared
// memory; threads beyond the last only meet the barriers.
class SquareElement {
 public:
  TORPOR_DEVICE_ONLY SquareElement(int n, float value, float* shared)
      : n_(n),
        row_(static_cast<int>(threadIdx.x) / n),
        column_(static_cast<int>(threadIdx.x) % n),
        is_one_(static_cast<int>(threadIdx.x) < n * n),
        value_(value),
        shared_(shared) {
    Share();
  }

  TORPOR_DEVICE_ONLY void Softmax(float eps) {
    if (is_one_) {
      const float* row = shared_ + row_ * n_;
      float max = row[0];
      for (int k = 1; k < n_; ++k) max = fmaxf(max, row[k]);
      float sum = 0.0f;
      for (int k = 0; k < n_; ++k) sum += expf(row[k] - max);
      value_ = expf(value_ - max) / sum + eps;
    }
    Share();
  }
  TORPOR_DEVICE_ONLY void DivideByRowSum(float eps) {
    if (is_one_) DivideBySum(shared_ + row_ * n_, 1, eps);
    Share();
  }
  TORPOR_DEVICE_ONLY void DivideByColumnSum(float eps) {
    if (is_one_) DivideBySum(shared_ + column_, n_, eps);
    Share();
  }
  [[nodiscard]] TORPOR_DEVICE_ONLY float value() const { return value_; }

 private:
  TORPOR_DEVICE_ONLY void DivideBySum(const float* line, int step, float eps) {
    float sum = eps;
    for (int i = 0; i < n_; ++i) sum += line[i * step];
    value_ /= sum;
  }
  TORPOR_DEVICE_ONLY void Share() {
    __syncthreads();
    if (is_one_) shared_[threadIdx.x] = value_;
    __syncthreads();
  }

  const int n_;
  const int row_;
  const int column_;
  const bool is_one_;
  float value_;
  float* const shared_;
};

TORPOR_KERNEL(kThreads)
void HyperMixKernel(HyperMixParams p) {
  TORPOR_SHARED(float, sums, kWarps);
  TORPOR_SHARED(float, square, kMaxStreams* kMaxStreams);
  const int64_t row = blockIdx.x;
  const auto n = static_cast<int>(p.n_streams);
  const auto at = static_cast<int>(threadIdx.x);
  const float norm =
      InverseNorm(p.x + row * n * p.dim, n * p.dim, p.norm_eps, sums);
  const float* projection = p.projection + row * n * (2 + n);
  const auto m = [&](int i, int part) {
    return fmaf(projection[i] * norm, p.scale[part], p.base[i]);
  };
  if (at < n) {
    p.pre[row * n + at] = Sigmoid(m(at, 0)) + p.eps;
    p.post[row * n + at] = 2.0f * Sigmoid(m(n + at, 1));
  }
  SquareElement comb(n, at < n * n ? m(2 * n + at, 2) : 0.0f, square);
  comb.Softmax(p.eps);
  comb.DivideByColumnSum(p.eps);
  for (int64_t i = 1; i < p.n_iterations; ++i) {
    comb.DivideByRowSum(p.eps);
    comb.DivideByColumnSum(p.eps);
  }
  if (at < n * n) p.comb[row * n * n + at] = comb.value();
}

// ---- streams ---------------------------------------------------------------

// The first of the four channels that a thread has of row blockIdx.x.
TORPOR_DEVICE_ONLY int64_t ChannelOfThread() {
  return 4 * (int64_t{blockIdx.y} * kThreads + threadIdx.x);
}

TORPOR_KERNEL(kThreads)
void HyperCollapseKernel(HyperCollapseParams p) {
  const int64_t row = blockIdx.x;
  const int64_t i = ChannelOfThread();
  if (i >= p.dim) return;
  const int64_t left = p.dim - i;
  const float* x = p.x + row * p.n_streams * p.dim + i;
  const float* mix = p.mix + row * p.n_streams;
  float4 sum = Times(mix[0], LoadFloat4(x, left));
  for (int64_t j = 1; j < p.n_streams; ++j) {
    sum = Fma(mix[j], LoadFloat4(x + j * p.dim, left), sum);
  }
  StoreFloat4(p.out + row * p.dim + i, sum, left);
}

// kMost >= n_streams: streams are all read before one is written.
template <int kMost>
TORPOR_KERNEL(kThreads)
void HyperExpandKernel(HyperExpandParams p) {
  const int64_t row = blockIdx.x;
  const int64_t i = ChannelOfThread();
  if (i >= p.dim) return;
  const int64_t left = p.dim - i;
  const auto n = static_cast<int>(p.n_streams);
  float* x = p.x + row * n * p.dim + i;
  const float* comb = p.comb + row * n * n;
  float4 streams[kMost];
  for (int j = 0; j < kMost; ++j) {
    if (j < n) streams[j] = LoadFloat4(x + j * p.dim, left);
  }
  const float4 y = LoadFloat4(p.y + row * p.dim + i, left);
  for (int k = 0; k < n; ++k) {
    float4 sum = Times(p.post[row * n + k], y);
    for (int j = 0; j < kMost; ++j) {
      if (j < n) sum = Fma(comb[j * n + k], streams[j], sum);
    }
    StoreFloat4(x + k * p.dim, sum, left);
  }
}

dim3 GridOf(int64_t n_rows, int64_t dim) {
  return {static_cast<unsigned>(n_rows),
          static_cast<unsigned>((dim + 4 * kThreads - 1) / (4 * kThreads))};
}

}  // namespace

int HyperMixCuda(const HyperMixParams& p, CudaStream stream) {
  assert(p.n_streams >= 1 && p.n_streams <= kMaxStreams);
  if (p.n_rows == 0) return 0;
  return TORPOR_LAUNCH(HyperMixKernel, static_cast<unsigned>(p.n_rows),
                       kThreads, 0, stream, p);
}

int HyperCollapseCuda(const HyperCollapseParams& p, CudaStream stream) {
  assert(p.n_streams >= 1 && p.n_streams <= kMaxStreams);
  if (p.n_rows == 0 || p.dim == 0) return 0;
  return TORPOR_LAUNCH(HyperCollapseKernel, GridOf(p.n_rows, p.dim), kThreads,
                       0, stream, p);
}

int HyperExpandCuda(const HyperExpandParams& p, CudaStream stream) {
  assert(p.n_streams >= 1 && p.n_streams <= kMaxStreams);
  if (p.n_rows == 0 || p.dim == 0) return 0;
  const dim3 grid = GridOf(p.n_rows, p.dim);
  if (p.n_streams <= 4) {
    return TORPOR_LAUNCH((HyperExpandKernel<4>), grid, kThreads, 0, stream, p);
  }
  return TORPOR_LAUNCH((HyperExpandKernel<kMaxStreams>), grid, kThreads, 0,
                       stream, p);
}

}  // namespace torpor::kernels
