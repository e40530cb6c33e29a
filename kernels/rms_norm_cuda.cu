// SPDX-License-Identifier: Apache-2.0

#include "kernels/bf16.h"
#include "kernels/cuda_simt.h"
#include "kernels/rms_norm_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;

TORPOR_DEVICE_ONLY float WarpSum(float v) {
  for (int half = 16; half > 0; half /= 2) {
    v += __shfl_xor_sync(kAllLanes, v, half);
  }
  return v;
}

// The sum over the block's threads, to each of them.
TORPOR_DEVICE_ONLY float BlockSum(float v) {
  TORPOR_SHARED(float, partial, kWarps);
  const unsigned warp = threadIdx.x / 32;
  v = WarpSum(v);
  if (threadIdx.x % 32 == 0) partial[warp] = v;
  __syncthreads();
  v = threadIdx.x % 32 < kWarps ? partial[threadIdx.x % 32] : 0.0f;
  return WarpSum(v);
}

TORPOR_DEVICE_ONLY float SumOfSquares(float4 v, float sum) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  return fmaf(v.w, v.w, sum);
}

// Lanes [i, i + 4) of a row; zeros past its end.
TORPOR_DEVICE_ONLY float4 Load(const float* row, int64_t i, int64_t dim,
                               bool aligned) {
  if (aligned && i + 4 <= dim) {
    return *reinterpret_cast<const float4*>(row + i);
  }
  return make_float4(row[i], i + 1 < dim ? row[i + 1] : 0.0f,
                     i + 2 < dim ? row[i + 2] : 0.0f,
                     i + 3 < dim ? row[i + 3] : 0.0f);
}

TORPOR_DEVICE_ONLY void StoreF32(float4 y, float* out, int64_t n,
                                 bool aligned) {
  if (aligned && n >= 4) {
    *reinterpret_cast<float4*>(out) = y;
    return;
  }
  out[0] = y.x;
  if (n > 1) out[1] = y.y;
  if (n > 2) out[2] = y.z;
  if (n > 3) out[3] = y.w;
}

TORPOR_DEVICE_ONLY uint32_t Bf16Pair(float low, float high) {
  return ToBf16(low).bits | static_cast<uint32_t>(ToBf16(high).bits) << 16;
}

TORPOR_DEVICE_ONLY void StoreBf16(float4 y, Bf16* out, int64_t n,
                                  bool aligned) {
  if (aligned && n >= 4) {
    *reinterpret_cast<uint2*>(out) =
        make_uint2(Bf16Pair(y.x, y.y), Bf16Pair(y.z, y.w));
    return;
  }
  out[0] = ToBf16(y.x);
  if (n > 1) out[1] = ToBf16(y.y);
  if (n > 2) out[2] = ToBf16(y.z);
  if (n > 3) out[3] = ToBf16(y.w);
}

template <RowSink kSink>
TORPOR_DEVICE_ONLY void Store(float4 y, const RmsNormParams& p, int64_t row,
                              int64_t i, bool aligned) {
  const int64_t at = row * p.out_stride + i;
  const int64_t n = p.dim - i;
  if constexpr (kSink == RowSink::kStoreBf16) {
    StoreBf16(y, static_cast<Bf16*>(p.out) + at, n, aligned);
  } else {
    float* out = static_cast<float*>(p.out) + at;
    if constexpr (kSink == RowSink::kAddF32) {
      const float4 was = Load(out, 0, n, aligned);
      y = make_float4(was.x + y.x, was.y + y.y, was.z + y.z, was.w + y.w);
    }
    StoreF32(y, out, n, aligned);
  }
}

TORPOR_DEVICE_ONLY bool IsAligned(const void* at, unsigned bytes) {
  return reinterpret_cast<uintptr_t>(at) % bytes == 0;
}

// Wide: RmsNormKernel loads
// Wide: RmsNormKernel<0> stores
// Wide: RmsNormKernel<2> stores
//
// Grid: a block a row.
template <RowSink kSink>
TORPOR_KERNEL(kThreads)
void RmsNormKernel(const RmsNormParams p) {
  const int64_t row = blockIdx.x;
  const float* x = p.x + row * p.x_stride;
  constexpr unsigned kOutBytes = kSink == RowSink::kStoreBf16 ? 2 : 4;
  const char* out =
      static_cast<const char*>(p.out) + row * p.out_stride * kOutBytes;
  const bool x_aligned = IsAligned(x, 16);
  const bool weight_aligned = IsAligned(p.weight, 16);
  const bool out_aligned = IsAligned(out, 4 * kOutBytes);
  float sum = 0.0f;
  for (int64_t i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    sum = SumOfSquares(Load(x, i, p.dim, x_aligned), sum);
  }
  const float mean = BlockSum(sum) / static_cast<float>(p.dim);
  const float scale = 1.0f / __fsqrt_rn(mean + p.eps);
  for (int64_t i = 4 * threadIdx.x; i < p.dim; i += 4 * kThreads) {
    const float4 v = Load(x, i, p.dim, x_aligned);
    const float4 w = Load(p.weight, i, p.dim, weight_aligned);
    const float4 y = make_float4(
        v.x * scale * (p.offset + w.x), v.y * scale * (p.offset + w.y),
        v.z * scale * (p.offset + w.z), v.w * scale * (p.offset + w.w));
    Store<kSink>(y, p, row, i, out_aligned);
  }
}

}  // namespace

int RmsNormCuda(const RmsNormParams& p, CudaStream stream) {
  if (p.n_rows == 0) return 0;
  const dim3 grid(static_cast<unsigned>(p.n_rows));
  switch (p.sink) {
    case RowSink::kStoreF32:
      return TORPOR_LAUNCH(RmsNormKernel<RowSink::kStoreF32>, grid, kThreads, 0,
                           stream, p);
    case RowSink::kStoreBf16:
      return TORPOR_LAUNCH(RmsNormKernel<RowSink::kStoreBf16>, grid, kThreads,
                           0, stream, p);
    case RowSink::kAddF32:
      return TORPOR_LAUNCH(RmsNormKernel<RowSink::kAddF32>, grid, kThreads, 0,
                           stream, p);
  }
  return 1;  // cudaErrorInvalidValue
}

}  // namespace torpor::kernels
