// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_errors.h"
#include "kernels/device_quads.h"
#include "kernels/device_tiles.h"
#include "kernels/rms_norm_cuda.h"

namespace torpor::kernels {
namespace {

using device::LoadQuad;
using device::Quad;
using device::StoreQuad;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
// Rows of up to this many lanes are a warp's, longer ones a block's.
constexpr int64_t kWarpDimMax = 1024;

struct Aligned {
  bool x;
  bool weight;
  bool out;
};

TORPOR_DEVICE_ONLY inline float WarpSum(float v) {
  for (int half = 16; half > 0; half /= 2) {
    v += __shfl_xor_sync(device::kAllLanes, v, half);
  }
  return v;
}

// The sum over the block's threads, to each of them.
TORPOR_DEVICE_ONLY inline float BlockSum(float v) {
  TORPOR_SHARED(float, partial, kWarps);
  const unsigned warp = threadIdx.x / 32;
  v = WarpSum(v);
  if (threadIdx.x % 32 == 0) partial[warp] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kWarps ? partial[threadIdx.x % 32] : 0.0f;
  return WarpSum(v);
}

template <RowSink kSink>
TORPOR_DEVICE_ONLY inline void Store(Quad y, const RmsNormParams& p,
                                     int64_t row, int64_t i, bool aligned) {
  const int64_t at = row * p.out_stride + i;
  const int64_t n = p.dim - i;
  if constexpr (kSink == RowSink::kStoreBf16) {
    StoreQuad(y, static_cast<Bf16*>(p.out) + at, n, aligned);
  } else {
    float* out = static_cast<float*>(p.out) + at;
    if constexpr (kSink == RowSink::kAddF32) {
      const Quad was = LoadQuad(out, n, aligned);
      for (int j = 0; j < 4; ++j) y.v[j] += was.v[j];
    }
    StoreQuad(y, out, n, aligned);
  }
}

// kN threads take a row, this one being `thread` of them; sum_of(v) gives each
// the sum over all.
template <RowSink kSink, int kN, typename SumOf>
TORPOR_DEVICE_ONLY inline void NormRow(const RmsNormParams& p, int64_t row,
                                       int thread, const Aligned& aligned,
                                       SumOf sum_of) {
  const float* x = p.x + row * p.x_stride;
  float squares = 0.0f;
  for (int64_t i = 4 * thread; i < p.dim; i += 4 * kN) {
    const Quad q = LoadQuad(x + i, p.dim - i, aligned.x);
    for (const float v : q.v) squares = fmaf(v, v, squares);
  }
  const float mean = sum_of(squares) / static_cast<float>(p.dim);
  const float scale = 1.0f / __fsqrt_rn(mean + p.eps);
  for (int64_t i = 4 * thread; i < p.dim; i += 4 * kN) {
    Quad y = LoadQuad(x + i, p.dim - i, aligned.x);
    const Quad weight = LoadQuad(p.weight + i, p.dim - i, aligned.weight);
    for (int j = 0; j < 4; ++j) {
      y.v[j] = y.v[j] * scale * (p.offset + weight.v[j]);
    }
    Store<kSink>(y, p, row, i, aligned.out);
  }
}

// Wide: RmsNormKernel loads
// Wide: RmsNormKernel<0> stores
// Wide: RmsNormKernel<2> stores
//
// Grid: a block a row.
template <RowSink kSink>
TORPOR_KERNEL(kThreads)
void RmsNormKernel(RmsNormParams p, Aligned aligned) {
  NormRow<kSink, kThreads>(p, blockIdx.x, static_cast<int>(threadIdx.x),
                           aligned, [](float v) { return BlockSum(v); });
}

// Wide: RmsNormWarpKernel loads
// Wide: RmsNormWarpKernel<0> stores
// Wide: RmsNormWarpKernel<2> stores
//
// Grid: a block eight rows.
template <RowSink kSink>
TORPOR_KERNEL(kThreads)
void RmsNormWarpKernel(RmsNormParams p, Aligned aligned) {
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= p.n_rows) return;
  NormRow<kSink, 32>(p, row, static_cast<int>(threadIdx.x % 32), aligned,
                     [](float v) { return WarpSum(v); });
}

template <RowSink kSink>
int Launch(const RmsNormParams& p, CudaStream stream) {
  const DType out_dtype =
      kSink == RowSink::kStoreBf16 ? DType::kBf16 : DType::kF32;
  const Aligned aligned{device::QuadsAligned(p.x, p.x_stride),
                        device::QuadsAligned(p.weight, 4),
                        device::QuadsAligned(p.out, out_dtype, p.out_stride)};
  if (p.dim <= kWarpDimMax) {
    const auto blocks = static_cast<unsigned>((p.n_rows + kWarps - 1) / kWarps);
    return TORPOR_LAUNCH(RmsNormWarpKernel<kSink>, blocks, kThreads, 0, stream,
                         p, aligned);
  }
  return TORPOR_LAUNCH(RmsNormKernel<kSink>, static_cast<unsigned>(p.n_rows),
                       kThreads, 0, stream, p, aligned);
}

}  // namespace

int RmsNormCuda(const RmsNormParams& p, CudaStream stream) {
  if (p.n_rows == 0) return 0;
  switch (p.sink) {
    case RowSink::kStoreF32:
      return Launch<RowSink::kStoreF32>(p, stream);
    case RowSink::kStoreBf16:
      return Launch<RowSink::kStoreBf16>(p, stream);
    case RowSink::kAddF32:
      return Launch<RowSink::kAddF32>(p, stream);
  }
  return kCudaInvalidValue;
}

}  // namespace torpor::kernels
