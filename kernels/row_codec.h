// SPDX-License-Identifier: Apache-2.0
//
// The quantised KV rows of DeepSeek V4.1 and V4: encode and decode. Bytes are
// those of docs/ROW_FORMATS.md, the same on every path. Section numbers are of
// the fact sheet deepseek-v41.md.
//
//   kMainFp4    E2M1, an E4M3 scale per 16 channels (V4.1's main KV, 6.2):
//     scale = E4M3(max(amax, 6 2^-9) / 6), divided and rounded to nearest even
//     code  = E2M1(x / scale), divided in f32, then nearest even, at most 6
//   kIndexFp4   E2M1, a UE8M0 scale per 32 (index keys, MXFP4, 6.3):
//     scale = 2^ceil(log2(max(amax, 6 2^-126) * f32(1/6))): the product rounds
//             in f32, the ceiling is of its bits (6.2, last point; 6.4)
//     code  = E2M1(x / scale): the quotient is exact but where it is subnormal
//   kWindowFp8  E4M3, a UE8M0 scale per 32 (V4.1's window KV, MXFP8, 6.4):
//     scale = 2^ceil(log2(max(amax, 1e-4) * f32(1/448))), rounding likewise
//     code  = E4M3(x / scale), nearest even, at most 448
//   kV4Record   the same per 64 channels, but the last rope_dim channels bf16,
//               rounded to nearest even (6.4, 3.1)
//
// Encoding quantises the f32 it is given. DeepSeek's own code rounds a row to
// bf16 after rope and before kMainFp4 and kIndexFp4: so must a caller who wants
// its bytes. Never decode and encode again: bytes and even values may change.
//
// Not finite: an infinity is the largest code under the largest scale its type
// has (448; 2^127). A NaN under E4M3 stays one and counts for nothing in its
// block's amax; bf16 keeps it. E2M1 has none: a NaN makes its block's scale NaN
// (E4M3 0x7f, UE8M0 0xff) and all magnitudes of the block code 7, so the block
// decodes to NaN. Zeros keep their sign.

#ifndef TORPOR_KERNELS_ROW_CODEC_H_
#define TORPOR_KERNELS_ROW_CODEC_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

enum class RowFormat : uint8_t { kMainFp4, kIndexFp4, kWindowFp8, kV4Record };

// How a row of channels becomes bytes: codes, bf16 tail, scales, padding, in
// that order, channels ascending. Of two FP4 codes in a byte the even channel's
// is the low nibble.
struct RowShape {
  // Channels of a scale; a V4 record's last may have fewer.
  int64_t block = 0;
  // Channels with a code, and those after them in bf16.
  int64_t n_coded = 0;
  int64_t n_tail = 0;
  int64_t n_scales = 0;
  // Offsets, and bytes of all; the zeros after the scales fill the row.
  int64_t tail_at = 0;
  int64_t scales_at = 0;
  int64_t bytes = 0;
};

// `dim` channels, the last `rope_dim` of them bf16 in a V4 record; the others
// have no use for it. REQUIRES: dim a multiple of 16 (main), 32 (index,
// window), 16 (V4); rope_dim a multiple of 16, at most dim.
constexpr RowShape ShapeOf(RowFormat format, int64_t dim, int64_t rope_dim) {
  RowShape s;
  const bool fp4 =
      format == RowFormat::kMainFp4 || format == RowFormat::kIndexFp4;
  s.n_tail = format == RowFormat::kV4Record ? rope_dim : 0;
  s.n_coded = dim - s.n_tail;
  s.block = format == RowFormat::kMainFp4    ? 16
            : format == RowFormat::kV4Record ? 64
                                             : 32;
  s.n_scales = (s.n_coded + s.block - 1) / s.block;
  s.tail_at = fp4 ? s.n_coded / 2 : s.n_coded;
  s.scales_at = s.tail_at + 2 * s.n_tail;
  s.bytes = s.scales_at + s.n_scales;
  if (format == RowFormat::kV4Record) s.bytes = (s.bytes + 7) / 8 * 8;
  return s;
}

// 288 and 528 B of 512 channels, 68 B of 128, 584 B of 512 with 64 in bf16.
constexpr int64_t RowBytes(RowFormat format, int64_t dim, int64_t rope_dim) {
  return ShapeOf(format, dim, rope_dim).bytes;
}

struct EncodeRowsParams {
  RowFormat format = RowFormat::kMainFp4;
  // [n_rows, dim] f32, `x_stride` floats apart.
  const float* x = nullptr;
  int64_t n_rows = 0;
  // As ShapeOf wants them.
  int64_t dim = 0;
  int64_t rope_dim = 0;
  int64_t x_stride = 0;
  // [n_rows, RowBytes] of any alignment, `out_stride` bytes apart; bytes
  // between rows stay.
  uint8_t* out = nullptr;
  int64_t out_stride = 0;
  // In place of both: [n_rows], the host's, where each row goes. No two
  // overlap.
  uint8_t* const* rows = nullptr;
};

// value = code * scale. In f32 that is exact but beyond 2^128, which gives an
// infinity: UE8M0 scales above 2^125 under E2M1, above 2^119 under E4M3. In
// bf16 (rounded to nearest even) the same holds and E4M3 under a scale below
// 2^-124 rounds; the encoder makes no such scale (2^-22 is its least there).
// All NaN are 0x7fc00000 (bf16 0x7fc0); a bf16 tail is copied as it is.
struct DecodeRowsParams {
  RowFormat format = RowFormat::kMainFp4;
  // [n_rows, RowBytes], `in_stride` bytes apart.
  const uint8_t* in = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  int64_t rope_dim = 0;
  int64_t in_stride = 0;
  // [n_rows, dim] of `out_dtype`, `out_stride` elements apart.
  void* out = nullptr;
  int64_t out_stride = 0;
  DType out_dtype = DType::kF32;
};

void EncodeRowsRef(const EncodeRowsParams& params);
void DecodeRowsRef(const DecodeRowsParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_CODEC_H_
