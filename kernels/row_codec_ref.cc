// SPDX-License-Identifier: Apache-2.0

#include "kernels/row_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/small_float.h"

namespace torpor::kernels {
namespace {

// A block's scale as its byte and its value.
struct Scale {
  uint8_t byte;
  float value;
};

// NaN where `nan_counts` and any is; the others do not see it.
float AbsMax(const float* x, int64_t n, bool nan_counts) {
  float amax = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (nan_counts && std::isnan(x[i])) return x[i];
    // Not fmax: that of a signalling NaN is NaN.
    if (std::fabs(x[i]) > amax) amax = std::fabs(x[i]);
  }
  return amax;
}

Scale MainScale(const float* x, int64_t n) {
  const float amax = AbsMax(x, n, /*nan_counts=*/true);
  if (std::isnan(amax)) {
    return {kE4m3NanCode, E4m3ToFloat(kE4m3NanCode)};
  }
  const uint8_t byte =
      FloatToE4m3(std::fmax(amax, kE2m1Max * kE4m3Min) / kE2m1Max);
  return {byte, E4m3ToFloat(byte)};
}

Scale IndexScale(const float* x, int64_t n) {
  constexpr float kSixth = 1.0f / 6.0f;
  const float amax = AbsMax(x, n, /*nan_counts=*/true);
  if (std::isnan(amax)) {
    return {kUe8m0NanCode, Ue8m0ToFloat(kUe8m0NanCode)};
  }
  const uint8_t byte = CeilToUe8m0(std::fmax(amax, 6 * 0x1p-126f) * kSixth);
  return {byte, Ue8m0ToFloat(byte)};
}

Scale Fp8Scale(const float* x, int64_t n) {
  constexpr float kInverse = 1.0f / 448.0f;
  const float amax = AbsMax(x, n, /*nan_counts=*/false);
  const uint8_t byte = CeilToUe8m0(std::fmax(amax, 1e-4f) * kInverse);
  return {byte, Ue8m0ToFloat(byte)};
}

Scale ScaleOf(RowFormat format, const float* x, int64_t n) {
  switch (format) {
    case RowFormat::kMainFp4:
      return MainScale(x, n);
    case RowFormat::kIndexFp4:
      return IndexScale(x, n);
    case RowFormat::kWindowFp8:
    case RowFormat::kV4Record:
      break;
  }
  return Fp8Scale(x, n);
}

// NaN, the scale's too, saturates with x's sign.
uint8_t ToFp4(float x, float scale) {
  return FloatToE2m1(std::copysign(x / scale, x));
}
uint8_t ToFp8(float x, float scale) { return FloatToE4m3(x / scale); }

bool IsFp4(RowFormat format) {
  return format == RowFormat::kMainFp4 || format == RowFormat::kIndexFp4;
}

void EncodeRow(RowFormat format, const RowShape& shape, const float* x,
               uint8_t* out) {
  uint8_t* scales = out + shape.scales_at;
  for (int64_t b = 0; b < shape.n_scales; ++b) {
    const int64_t at = b * shape.block;
    const int64_t n = std::min(shape.block, shape.n_coded - at);
    const Scale scale = ScaleOf(format, x + at, n);
    scales[b] = scale.byte;
    for (int64_t i = at; i < at + n; ++i) {
      if (!IsFp4(format)) {
        out[i] = ToFp8(x[i], scale.value);
      } else if (i % 2 == 0) {
        out[i / 2] = static_cast<uint8_t>(ToFp4(x[i], scale.value) |
                                          ToFp4(x[i + 1], scale.value) << 4);
      }
    }
  }
  for (int64_t i = 0; i < shape.n_tail; ++i) {
    const Bf16 v = ToBf16(x[shape.n_coded + i]);
    std::memcpy(out + shape.tail_at + 2 * i, &v.bits, 2);
  }
  for (int64_t i = shape.scales_at + shape.n_scales; i < shape.bytes; ++i) {
    out[i] = 0;
  }
}

// One value to where out[i] of its type is.
void Put(float value, DType dtype, void* out, int64_t i) {
  if (std::isnan(value)) value = std::bit_cast<float>(kDecodedNanBits);
  if (dtype == DType::kF32) {
    static_cast<float*>(out)[i] = value;
  } else {
    static_cast<Bf16*>(out)[i] = ToBf16(value);
  }
}

void DecodeRow(const DecodeRowsParams& p, const RowShape& shape,
               const uint8_t* in, int64_t out_at) {
  for (int64_t i = 0; i < shape.n_coded; ++i) {
    const uint8_t byte = in[shape.scales_at + i / shape.block];
    const float scale = p.format == RowFormat::kMainFp4 ? E4m3ToFloat(byte)
                                                        : Ue8m0ToFloat(byte);
    const float code =
        IsFp4(p.format)
            ? E2m1ToFloat(static_cast<uint8_t>(in[i / 2] >> (i % 2 * 4)))
            : E4m3ToFloat(in[i]);
    Put(code * scale, p.out_dtype, p.out, out_at + i);
  }
  for (int64_t i = 0; i < shape.n_tail; ++i) {
    Bf16 v;
    std::memcpy(&v.bits, in + shape.tail_at + 2 * i, 2);
    const int64_t at = out_at + shape.n_coded + i;
    if (p.out_dtype == DType::kF32) {
      static_cast<float*>(p.out)[at] = ToFloat(v);
    } else {
      static_cast<Bf16*>(p.out)[at] = v;
    }
  }
}

}  // namespace

void EncodeRowsRef(const EncodeRowsParams& p) {
  const RowShape shape = ShapeOf(p.format, p.dim, p.rope_dim);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    EncodeRow(p.format, shape, p.x + row * p.x_stride,
              p.rows != nullptr ? p.rows[row] : p.out + row * p.out_stride);
  }
}

void DecodeRowsRef(const DecodeRowsParams& p) {
  const RowShape shape = ShapeOf(p.format, p.dim, p.rope_dim);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    DecodeRow(p, shape, p.in + row * p.in_stride, row * p.out_stride);
  }
}

}  // namespace torpor::kernels
