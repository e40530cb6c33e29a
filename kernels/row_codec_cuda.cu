// SPDX-License-Identifier: Apache-2.0
//
// Wide: EncodeRowsKernel loads
// Wide: DecodeRowsKernel stores

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_row_codec.h"
#include "kernels/row_codec_cuda.h"

namespace torpor::kernels {
namespace {

using device::AbsMaxBits;
using device::BlockOf;
using device::BlockScale;
using device::CodeBytes;
using device::DecodeChannels;
using device::Fp4Code;
using device::Fp8Code;
using device::IsFp4Format;
using device::LoadBytes;
using device::LoadFloat4;
using device::ScaleOfLanes;
using device::StoreBytes;
using device::StoreValues;

constexpr int kThreads = 128;
constexpr int kRowsOfBlock = kThreads / 32;

TORPOR_DEVICE_ONLY int64_t RowOfWarp() {
  return int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32;
}

// Four coded channels from `at` to their bytes.
template <RowFormat kFormat>
TORPOR_DEVICE_ONLY void StoreCodes(const float4& v, float scale, int64_t at,
                                   uint8_t* out) {
  constexpr bool kFp4 = IsFp4Format(kFormat);
  const float values[4] = {v.x, v.y, v.z, v.w};
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t code =
        kFp4 ? Fp4Code(values[i], scale) : Fp8Code(values[i], scale);
    word |= code << (kFp4 ? 4 * i : 8 * i);
  }
  StoreBytes<CodeBytes(kFp4, 4)>(out + (kFp4 ? at / 2 : at), word);
}

TORPOR_DEVICE_ONLY uint64_t FourBf16(const float4& v) {
  const float values[4] = {v.x, v.y, v.z, v.w};
  uint64_t word = 0;
  for (int i = 0; i < 4; ++i) {
    word |= uint64_t{ToBf16(values[i]).bits} << (16 * i);
  }
  return word;
}

template <RowFormat kFormat>
TORPOR_KERNEL(kThreads)
void EncodeRowsKernel(EncodeRowsParams p, RowShape shape) {
  const int64_t row = RowOfWarp();
  if (row >= p.n_rows) return;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const float* x = p.x + row * p.x_stride;
  uint8_t* out = p.rows != nullptr ? p.rows[row] : p.out + row * p.out_stride;
  for (int64_t first = 0; first < p.dim; first += 128) {
    const int64_t at = first + 4 * lane;
    const bool coded = at < shape.n_coded;
    const float4 v = at < p.dim ? LoadFloat4(x + at) : make_float4(0, 0, 0, 0);
    // A block's other threads may hold the tail or nothing.
    const BlockScale scale =
        ScaleOfLanes<kFormat>(coded ? AbsMaxBits(v, IsFp4Format(kFormat)) : 0);
    if (coded) {
      StoreCodes<kFormat>(v, scale.value, at, out);
      if (at % BlockOf(kFormat) == 0) {
        out[shape.scales_at + at / BlockOf(kFormat)] = scale.byte;
      }
    } else if (at < p.dim) {
      StoreBytes<8>(out + shape.tail_at + 2 * (at - shape.n_coded),
                    FourBf16(v));
    }
  }
  const int64_t padding = shape.scales_at + shape.n_scales + lane;
  if (padding < shape.bytes) out[padding] = 0;
}

// Of the tail, bits as they are.
TORPOR_DEVICE_ONLY Bf16 TailAt(const uint8_t* tail, int64_t i) {
  return {static_cast<uint16_t>(LoadBytes<2>(tail + 2 * i))};
}
TORPOR_DEVICE_ONLY void PutTail(Bf16 v, float* out) { *out = ToFloat(v); }
TORPOR_DEVICE_ONLY void PutTail(Bf16 v, Bf16* out) { *out = v; }

template <RowFormat kFormat, typename Out>
TORPOR_KERNEL(kThreads)
void DecodeRowsKernel(DecodeRowsParams p, RowShape shape) {
  constexpr int kN = 16 / sizeof(Out);
  const int64_t row = RowOfWarp();
  if (row >= p.n_rows) return;
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const uint8_t* in = p.in + row * p.in_stride;
  Out* out = static_cast<Out*>(p.out) + row * p.out_stride;
  for (int64_t at = kN * lane; at < shape.n_coded; at += 32 * kN) {
    float values[kN];
    DecodeChannels<kFormat>(in, shape.scales_at, at, values);
    StoreValues(values, out + at);
  }
  for (int64_t i = lane; i < shape.n_tail; i += 32) {
    PutTail(TailAt(in + shape.tail_at, i), out + shape.n_coded + i);
  }
}

unsigned BlocksOf(int64_t n_rows) {
  return static_cast<unsigned>((n_rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

template <RowFormat kFormat>
int Encode(const EncodeRowsParams& p, CudaStream stream) {
  const RowShape shape = ShapeOf(kFormat, p.dim, p.rope_dim);
  return TORPOR_LAUNCH((EncodeRowsKernel<kFormat>), BlocksOf(p.n_rows),
                       kThreads, 0, stream, p, shape);
}

template <RowFormat kFormat>
int Decode(const DecodeRowsParams& p, CudaStream stream) {
  const RowShape shape = ShapeOf(kFormat, p.dim, p.rope_dim);
  if (p.out_dtype == DType::kF32) {
    return TORPOR_LAUNCH((DecodeRowsKernel<kFormat, float>), BlocksOf(p.n_rows),
                         kThreads, 0, stream, p, shape);
  }
  return TORPOR_LAUNCH((DecodeRowsKernel<kFormat, Bf16>), BlocksOf(p.n_rows),
                       kThreads, 0, stream, p, shape);
}

}  // namespace

int EncodeRowsCuda(const EncodeRowsParams& p, CudaStream stream) {
  assert(p.dim % 16 == 0 && p.rope_dim % 16 == 0);
  if (p.n_rows == 0) return 0;
  switch (p.format) {
    case RowFormat::kMainFp4:
      return Encode<RowFormat::kMainFp4>(p, stream);
    case RowFormat::kIndexFp4:
      return Encode<RowFormat::kIndexFp4>(p, stream);
    case RowFormat::kWindowFp8:
      return Encode<RowFormat::kWindowFp8>(p, stream);
    case RowFormat::kV4Record:
      break;
  }
  return Encode<RowFormat::kV4Record>(p, stream);
}

int DecodeRowsCuda(const DecodeRowsParams& p, CudaStream stream) {
  assert(p.dim % 16 == 0 && p.rope_dim % 16 == 0);
  if (p.n_rows == 0) return 0;
  switch (p.format) {
    case RowFormat::kMainFp4:
      return Decode<RowFormat::kMainFp4>(p, stream);
    case RowFormat::kIndexFp4:
      return Decode<RowFormat::kIndexFp4>(p, stream);
    case RowFormat::kWindowFp8:
      return Decode<RowFormat::kWindowFp8>(p, stream);
    case RowFormat::kV4Record:
      break;
  }
  return Decode<RowFormat::kV4Record>(p, stream);
}

}  // namespace torpor::kernels
