// SPDX-License-Identifier: Apache-2.0
//
// The numbers of stored rows against what their formats say.

#include "replay/row_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/row_codec.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::replay {
namespace {

using kernels::RowFormat;
using kernels::SameBits;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<uint8_t> Words(const std::vector<uint16_t>& words) {
  std::vector<uint8_t> bytes;
  for (const uint16_t w : words) {
    bytes.push_back(static_cast<uint8_t>(w));
    bytes.push_back(static_cast<uint8_t>(w >> 8));
  }
  return bytes;
}

TEST(RowValuesTest, Bf16IsTheUpperHalfOfAFloat) {
  std::vector<uint16_t> words;
  std::vector<float> wanted;
  for (uint32_t w = 0; w < 0x10000; ++w) {
    words.push_back(static_cast<uint16_t>(w));
    wanted.push_back(std::bit_cast<float>(w << 16));
  }
  const auto got = RowValues("bf16", 8, Words(words));
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(SameBits(*got, wanted));
}

// The compiler's own half is the reference.
TEST(RowValuesTest, EveryHalfHasItsValue) {
  std::vector<uint16_t> words;
  for (uint32_t w = 0; w < 0x10000; ++w) {
    words.push_back(static_cast<uint16_t>(w));
  }
  const auto got = RowValues("f16", 2, Words(words));
  ASSERT_TRUE(got.has_value());
  ASSERT_EQ(got->size(), words.size());
  for (const uint16_t w : words) {
    const auto wanted = static_cast<float>(std::bit_cast<_Float16>(w));
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan((*got)[w])) << w;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>((*got)[w]),
                std::bit_cast<uint32_t>(wanted))
          << w;
    }
  }
  EXPECT_THAT(RowValues("f16", 2, Words({0x3c00, 0xc000, 0x0001, 0x7c00})),
              Optional(ElementsAre(1.0f, -2.0f, 0x1p-24f, kInf)));
}

TEST(RowValuesTest, F32IsItself) {
  const std::vector<float> x = {1.5f, -0.0f, kInf, 1e-45f, 3e38f, -7.0f};
  std::vector<uint8_t> bytes(x.size() * sizeof(float));
  std::memcpy(bytes.data(), x.data(), bytes.size());
  const auto got = RowValues("f32", 12, bytes);
  ASSERT_TRUE(got.has_value());
  EXPECT_TRUE(SameBits(*got, x));
}

struct RecordCase {
  const char* format;
  RowFormat codec;
  // Channels of a row, and its bytes.
  int64_t dim;
  uint64_t row_bytes;
};

constexpr RecordCase kRecords[] = {
    {"e4m3+ue8m0x32", RowFormat::kWindowFp8, 512, 528},
    {"e2m1+e4m3x16", RowFormat::kMainFp4, 512, 288},
    {"e2m1+ue8m0x32", RowFormat::kIndexFp4, 128, 68},
    {"e4m3+ue8m0x32", RowFormat::kWindowFp8, 32, 33},
    {"e2m1+e4m3x16", RowFormat::kMainFp4, 16, 9},
    {"e2m1+ue8m0x32", RowFormat::kIndexFp4, 32, 17},
};

TEST(RowValuesTest, RecordsAreWhatTheirCodecDecodes) {
  testing::Random random;
  for (const RecordCase& c : kRecords) {
    SCOPED_TRACE(c.format);
    ASSERT_EQ(kernels::RowBytes(c.codec, c.dim, 0), c.row_bytes);
    constexpr int64_t kRows = 3;
    std::vector<uint8_t> rows(kRows * c.row_bytes);
    random.Fill(rows);
    std::vector<float> wanted(static_cast<size_t>(kRows * c.dim));
    kernels::DecodeRowsRef({.format = c.codec,
                            .in = rows.data(),
                            .n_rows = kRows,
                            .dim = c.dim,
                            .in_stride = static_cast<int64_t>(c.row_bytes),
                            .out = wanted.data(),
                            .out_stride = c.dim});
    const auto got = RowValues(c.format, c.row_bytes, rows);
    ASSERT_TRUE(got.has_value());
    EXPECT_TRUE(SameBits(*got, wanted));
  }
}

TEST(RowValuesTest, ValuesThatWereEncodedComeBack) {
  // Small whole numbers under scales of powers of two.
  std::vector<float> x;
  for (int c = 0; c < 32; ++c) x.push_back(static_cast<float>(c % 13 - 6));
  for (const RecordCase& c : kRecords) {
    if (c.dim != 32) continue;
    std::vector<uint8_t> row(c.row_bytes);
    kernels::EncodeRowsRef({.format = c.codec,
                            .x = x.data(),
                            .n_rows = 1,
                            .dim = c.dim,
                            .x_stride = c.dim,
                            .out = row.data(),
                            .out_stride = static_cast<int64_t>(c.row_bytes)});
    const auto got = RowValues(c.format, c.row_bytes, row);
    ASSERT_TRUE(got.has_value());
    for (size_t i = 0; i < x.size(); ++i) {
      // FP4 has no 5: it goes to the even 4.
      const bool five =
          std::fabs(x[i]) == 5 && c.codec != RowFormat::kWindowFp8;
      EXPECT_EQ((*got)[i], five ? std::copysign(4.0f, x[i]) : x[i]) << i;
    }
  }
}

TEST(RowValuesTest, NoRowsOfAKnownFormatAreNoValues) {
  for (const char* format : {"bf16", "f16", "f32", "e4m3+ue8m0x32",
                             "e2m1+e4m3x16", "e2m1+ue8m0x32"}) {
    EXPECT_THAT(RowValues(format, 0, {}), Optional(IsEmpty())) << format;
    EXPECT_THAT(RowValues(format, 7, {}), Optional(IsEmpty())) << format;
  }
}

TEST(RowValuesTest, WhatIsNoRowsIsNothing) {
  const std::vector<uint8_t> bytes(12 * 68);
  const auto values = [&](const char* format, uint64_t row_bytes, size_t n) {
    return RowValues(format, row_bytes, std::span(bytes).first(n));
  };
  for (const char* format : {"e4m3+ue8m0x64+bf16", "q8", "", "BF16"}) {
    EXPECT_EQ(values(format, 68, 68), std::nullopt) << format;
    EXPECT_EQ(values(format, 68, 0), std::nullopt) << format;
  }
  EXPECT_EQ(values("bf16", 8, 12), std::nullopt);
  EXPECT_EQ(values("bf16", 0, 12), std::nullopt);
  EXPECT_EQ(values("e2m1+ue8m0x32", 68, 67), std::nullopt);
  // Rows that are no whole scales.
  EXPECT_EQ(values("e2m1+ue8m0x32", 16, 64), std::nullopt);
  EXPECT_EQ(values("e4m3+ue8m0x32", 32, 64), std::nullopt);
  EXPECT_EQ(values("e2m1+e4m3x16", 8, 64), std::nullopt);
  EXPECT_NE(values("e2m1+e4m3x16", 9, 63), std::nullopt);
}

TEST(RowValuesTest, WordsThatARowCutsAreNothing) {
  const std::vector<uint8_t> bytes(12);
  EXPECT_EQ(RowValues("bf16", 3, bytes), std::nullopt);
  EXPECT_EQ(RowValues("f16", 1, bytes), std::nullopt);
  EXPECT_EQ(RowValues("f32", 6, bytes), std::nullopt);
}

}  // namespace
}  // namespace torpor::replay
