// SPDX-License-Identifier: Apache-2.0
//
// Wide: DecodeWeightsKernel stores
// Wide: FakeQuantFp8Kernel loads stores

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_row_codec.h"
#include "kernels/weight_codec_cuda.h"

namespace torpor::kernels {
namespace {

using device::AbsMaxBits;
using device::BlockScale;
using device::CanonicalNan;
using device::DecodeCodes;
using device::E4m3Value;
using device::Fp8Code;
using device::LoadFloat4;
using device::ScaleOfLanes;
using device::StoreValues;

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

TORPOR_DEVICE_ONLY int64_t RowOfWarp() {
  return int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
}

template <bool kFp4, typename Out>
TORPOR_KERNEL(kThreads)
void DecodeWeightsKernel(DecodeWeightsParams p) {
  constexpr int kN = 16 / sizeof(Out);
  const int64_t row = RowOfWarp();
  if (row >= p.n_rows) return;
  const uint8_t* codes = p.codes + row * p.codes_stride;
  const uint8_t* scales = p.scales + row / p.block_rows * p.scales_stride;
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride;
  // Columns fit 32 bits, whose division is the faster.
  const auto dim = static_cast<uint32_t>(p.dim);
  const auto block = static_cast<uint32_t>(p.block_columns);
  for (uint32_t at = kN * (threadIdx.x % 32); at < dim; at += 32 * kN) {
    float values[kN];
    DecodeCodes<kFp4>(codes + (kFp4 ? at / 2 : at),
                      Ue8m0ToFloat(scales[at / block]), values);
    StoreValues(values, out + at);
  }
}

// A warp's 128 channels at a time, eight threads to a block of 32.
TORPOR_KERNEL(kThreads)
void FakeQuantFp8Kernel(FakeQuantFp8Params p) {
  const int64_t row = RowOfWarp();
  if (row >= p.n_rows) return;
  float* x = p.x + row * p.x_stride;
  for (int64_t first = 0; first < p.dim; first += 128) {
    const int64_t at = first + 4 * static_cast<int64_t>(threadIdx.x % 32);
    const float4 v = at < p.dim ? LoadFloat4(x + at) : make_float4(0, 0, 0, 0);
    const BlockScale scale = ScaleOfLanes<RowFormat::kWindowFp8>(
        AbsMaxBits(v, /*nan_counts=*/false));
    float values[4] = {v.x, v.y, v.z, v.w};
    for (float& value : values) {
      value =
          CanonicalNan(E4m3Value(Fp8Code(value, scale.value)) * scale.value);
    }
    if (at < p.dim) StoreValues(values, x + at);
  }
}

unsigned BlocksOf(int64_t n_rows) {
  return static_cast<unsigned>((n_rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

template <bool kFp4, typename Out>
int Decode(const DecodeWeightsParams& p, CudaStream stream) {
  return TORPOR_LAUNCH((DecodeWeightsKernel<kFp4, Out>), BlocksOf(p.n_rows),
                       kThreads, 0, stream, p);
}

}  // namespace

int DecodeWeightsCuda(const DecodeWeightsParams& p, CudaStream stream) {
  assert(p.dim % 16 == 0 && p.block_columns % 16 == 0);
  if (p.n_rows == 0) return 0;
  const bool f32 = p.out_dtype == DType::kF32;
  if (p.format == WeightFormat::kFp4) {
    return f32 ? Decode<true, float>(p, stream) : Decode<true, Bf16>(p, stream);
  }
  return f32 ? Decode<false, float>(p, stream) : Decode<false, Bf16>(p, stream);
}

int FakeQuantFp8Cuda(const FakeQuantFp8Params& p, CudaStream stream) {
  assert(p.dim % 32 == 0);
  if (p.n_rows == 0) return 0;
  return TORPOR_LAUNCH(FakeQuantFp8Kernel, BlocksOf(p.n_rows), kThreads, 0,
                       stream, p);
}

}  // namespace torpor::kernels
