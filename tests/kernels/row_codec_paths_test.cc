// SPDX-License-Identifier: Apache-2.0
//
// Every path of the row and weight codecs against the reference, to the bit: on
// random bits and numbers of all magnitudes, misaligned, with strides, on
// threads, and without touching what is not theirs.

#include "tests/kernels/row_codec_paths.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cpu_ops.h"
#include "kernels/row_codec.h"
#include "kernels/small_float.h"
#include "kernels/weight_codec.h"
#include "tests/kernels/codec_values.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {
namespace {

class CodecPathsTest : public ::testing::TestWithParam<Isa> {
 protected:
  std::vector<float> Values(int64_t n) { return values_.Draw(random_, n); }

  testing::Random random_;
  CodecValues values_;
};

INSTANTIATE_TEST_SUITE_P(Paths, CodecPathsTest,
                         ::testing::ValuesIn(AvailableIsas()), IsaParamName);

TEST_P(CodecPathsTest, RowsEncodeAndDecodeAsTheReferenceDoes) {
  CpuOps ops(GetParam(), 2);
  // Sixteen million values in all.
  constexpr int64_t kValuesOfCase = 1'250'000;
  for (const CodecCase& c : kCodecCases) {
    const int64_t bytes = RowBytes(c.format, c.dim, c.rope_dim);
    int64_t left = kValuesOfCase;
    while (left > 0) {
      const int64_t n_rows = 1 + static_cast<int64_t>(random_.Between(0, 63));
      left -= n_rows * c.dim;
      const auto x = Values(n_rows * c.dim);
      std::vector<uint8_t> got(static_cast<size_t>(n_rows * bytes), 0xa5);
      auto wanted = got;
      EncodeRowsParams encode{.format = c.format,
                              .x = x.data(),
                              .n_rows = n_rows,
                              .dim = c.dim,
                              .rope_dim = c.rope_dim,
                              .x_stride = c.dim,
                              .out = got.data(),
                              .out_stride = bytes};
      ops.EncodeRows(encode);
      encode.out = wanted.data();
      EncodeRowsRef(encode);
      ASSERT_TRUE(SameValues(got, wanted))
          << FormatName(c.format) << " " << c.dim;

      // Rows that were encoded, and rows of noise.
      if (random_.OneIn(2)) random_.Fill(wanted);
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        std::vector<uint32_t> a(x.size(), 0x5a5a5a5a);
        auto b = a;
        DecodeRowsParams decode{.format = c.format,
                                .in = wanted.data(),
                                .n_rows = n_rows,
                                .dim = c.dim,
                                .rope_dim = c.rope_dim,
                                .in_stride = bytes,
                                .out = a.data(),
                                .out_stride = c.dim,
                                .out_dtype = dtype};
        ops.DecodeRows(decode);
        decode.out = b.data();
        DecodeRowsRef(decode);
        ASSERT_TRUE(SameValues(a, b)) << FormatName(c.format) << " " << c.dim;
      }
    }
  }
}

TEST_P(CodecPathsTest, StridesAndAlignmentsTouchNothingElse) {
  for (const CodecCase& c : kCodecCases) {
    const int64_t bytes = RowBytes(c.format, c.dim, c.rope_dim);
    constexpr int64_t kRows = 5;
    for (const int64_t gap : {0, 1, 7}) {
      const int64_t x_stride = c.dim + gap;
      const int64_t row_stride = bytes + gap;
      const auto x = Values(kRows * x_stride + 1);
      std::vector<uint8_t> got(static_cast<size_t>(kRows * row_stride + 9));
      random_.Fill(got);
      auto wanted = got;
      EncodeRowsParams encode{.format = c.format,
                              .x = x.data() + 1,
                              .n_rows = kRows,
                              .dim = c.dim,
                              .rope_dim = c.rope_dim,
                              .x_stride = x_stride,
                              .out = got.data() + 1,
                              .out_stride = row_stride};
      for (const int threads : {1, 3}) {
        CpuOps ops(GetParam(), threads);
        ops.EncodeRows(encode);
        encode.out = wanted.data() + 1;
        EncodeRowsRef(encode);
        encode.out = got.data() + 1;
        ASSERT_TRUE(SameValues(got, wanted))
            << FormatName(c.format) << " gap " << gap;
        for (const DType dtype : {DType::kF32, DType::kBf16}) {
          std::vector<uint16_t> a(static_cast<size_t>(2 * kRows * x_stride + 5),
                                  0x5a5a);
          auto b = a;
          const size_t first = dtype == DType::kF32 ? 2 : 1;
          DecodeRowsParams decode{.format = c.format,
                                  .in = wanted.data() + 1,
                                  .n_rows = kRows,
                                  .dim = c.dim,
                                  .rope_dim = c.rope_dim,
                                  .in_stride = row_stride,
                                  .out = a.data() + first,
                                  .out_stride = x_stride,
                                  .out_dtype = dtype};
          ops.DecodeRows(decode);
          decode.out = b.data() + first;
          DecodeRowsRef(decode);
          ASSERT_TRUE(SameValues(a, b))
              << FormatName(c.format) << " gap " << gap;
        }
      }
    }
  }
}

TEST_P(CodecPathsTest, NoRowsAreNothing) {
  CpuOps ops(GetParam(), 2);
  for (const CodecCase& c : kCodecCases) {
    ops.EncodeRows({.format = c.format, .dim = c.dim, .rope_dim = c.rope_dim});
    ops.DecodeRows({.format = c.format, .dim = c.dim, .rope_dim = c.rope_dim});
  }
  ops.DecodeWeights({.dim = 32});
  ops.FakeQuantFp8({.dim = 32});
}

TEST_P(CodecPathsTest, RowsDoNotDependOnThreads) {
  constexpr int64_t kRows = 300;
  const auto x = Values(kRows * 512);
  std::vector<uint8_t> first;
  for (const int threads : {1, 2, 5}) {
    CpuOps ops(GetParam(), threads);
    std::vector<uint8_t> rows(kRows * 288);
    ops.EncodeRows({.format = RowFormat::kMainFp4,
                    .x = x.data(),
                    .n_rows = kRows,
                    .dim = 512,
                    .x_stride = 512,
                    .out = rows.data(),
                    .out_stride = 288});
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << threads;
  }
}

struct WeightCase {
  WeightFormat format;
  int64_t block_rows;
  int64_t block_columns;
  int64_t n_rows;
  int64_t dim;
};

TEST_P(CodecPathsTest, WeightsDecodeAsTheReferenceDoes) {
  CpuOps ops(GetParam(), 2);
  for (const WeightCase& c : {WeightCase{WeightFormat::kFp8, 32, 32, 70, 96},
                              {WeightFormat::kFp8, 1, 32, 9, 640},
                              {WeightFormat::kFp8, 128, 128, 130, 272},
                              {WeightFormat::kFp8, 32, 32, 33, 48},
                              {WeightFormat::kFp4, 1, 32, 11, 544},
                              {WeightFormat::kFp4, 1, 32, 3, 16},
                              {WeightFormat::kFp4, 2, 64, 5, 128}}) {
    const int64_t codes_stride =
        c.dim / (c.format == WeightFormat::kFp4 ? 2 : 1) + 3;
    const int64_t scales_stride = (c.dim - 1) / c.block_columns + 1 + 2;
    std::vector<uint8_t> codes(static_cast<size_t>(c.n_rows * codes_stride));
    std::vector<uint8_t> scales(static_cast<size_t>(
        ((c.n_rows - 1) / c.block_rows + 1) * scales_stride));
    for (int round = 0; round < 20; ++round) {
      random_.Fill(codes);
      random_.Fill(scales);
      // Without NaN too, which is a path of its own.
      if (round % 2 == 0) {
        for (uint8_t& code : codes) code &= 0xbf;
      }
      for (const DType dtype : {DType::kF32, DType::kBf16}) {
        std::vector<uint32_t> a(static_cast<size_t>(c.n_rows * (c.dim + 1)), 1);
        auto b = a;
        DecodeWeightsParams p{.format = c.format,
                              .codes = codes.data(),
                              .codes_stride = codes_stride,
                              .scales = scales.data(),
                              .scales_stride = scales_stride,
                              .block_rows = c.block_rows,
                              .block_columns = c.block_columns,
                              .n_rows = c.n_rows,
                              .dim = c.dim,
                              .out = a.data(),
                              .out_stride = c.dim + 1,
                              .out_dtype = dtype};
        ops.DecodeWeights(p);
        p.out = b.data();
        DecodeWeightsRef(p);
        ASSERT_TRUE(SameValues(a, b)) << c.block_rows << "x" << c.block_columns;
      }
    }
  }
}

TEST_P(CodecPathsTest, FakeQuantIsEncodeThenDecodeInPlace) {
  CpuOps ops(GetParam(), 2);
  for (const int64_t dim : {32, 512, 1056}) {
    for (int round = 0; round < 30; ++round) {
      constexpr int64_t kRows = 7;
      const int64_t stride = dim + 3;
      auto got = Values(kRows * stride);
      auto wanted = got;
      FakeQuantFp8Params p{
          .x = got.data(), .n_rows = kRows, .dim = dim, .x_stride = stride};
      ops.FakeQuantFp8(p);
      p.x = wanted.data();
      FakeQuantFp8Ref(p);
      ASSERT_TRUE(SameBits(got, wanted)) << dim;
      // Exact values stay.
      if (round != 0) continue;
      std::vector<float> x(32, 1.75f);
      ops.FakeQuantFp8({.x = x.data(), .n_rows = 1, .dim = 32, .x_stride = 32});
      EXPECT_EQ(x, std::vector<float>(32, 1.75f));
    }
  }
}

// A scale of a block of rows and columns reaches its corner and no further.
TEST(WeightCodecTest, AScaleCoversItsBlock) {
  const std::vector<uint8_t> ones(40 * 64, 0x38);
  const std::vector<uint8_t> scales = {127, 128, 129, 130};
  std::vector<float> out(40 * 64);
  DecodeWeightsRef({.codes = ones.data(),
                    .codes_stride = 64,
                    .scales = scales.data(),
                    .scales_stride = 2,
                    .block_rows = 32,
                    .n_rows = 40,
                    .dim = 64,
                    .out = out.data(),
                    .out_stride = 64});
  for (int64_t row = 0; row < 40; ++row) {
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(out[row * 64 + i], 1 << (row / 32 * 2 + i / 32));
    }
  }
}

}  // namespace
}  // namespace torpor::kernels
