// SPDX-License-Identifier: Apache-2.0
//
// Every path and the reference against the number formats' definitions, over
// all codes and all scales; and every path against the reference, to the bit.

#include "kernels/row_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu_ops.h"
#include "kernels/small_float.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/kernels/row_codec_paths.h"
#include "tests/testing/golden.h"

namespace torpor::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

static_assert(RowBytes(RowFormat::kMainFp4, 512, 64) == 288);
static_assert(RowBytes(RowFormat::kIndexFp4, 128, 64) == 68);
static_assert(RowBytes(RowFormat::kWindowFp8, 512, 64) == 528);
static_assert(RowBytes(RowFormat::kV4Record, 512, 64) == 584);
static_assert(RowBytes(RowFormat::kV4Record, 64, 16) == 48 + 32 + 8);

class RowCodecTest : public ::testing::TestWithParam<CodecPath> {
 protected:
  std::vector<uint8_t> Encode(RowFormat format, const std::vector<float>& x,
                              int64_t rope_dim = 0) const {
    return EncodeOne(GetParam(), format, x, rope_dim);
  }
  std::vector<float> Decode(RowFormat format, const std::vector<uint8_t>& row,
                            int64_t dim, int64_t rope_dim = 0) const {
    return DecodeOne(GetParam(), format, row, dim, rope_dim);
  }
  std::vector<uint16_t> DecodeToBf16(RowFormat format,
                                     const std::vector<uint8_t>& row,
                                     int64_t dim, int64_t rope_dim = 0) const {
    return DecodeOneToBf16(GetParam(), format, row, dim, rope_dim);
  }

  testing::Random random_;
};

INSTANTIATE_TEST_SUITE_P(Paths, RowCodecTest, ::testing::ValuesIn(CodecPaths()),
                         CodecPathName);

// Each scale byte over all codes, as one row.
struct AllCodes {
  std::vector<uint8_t> row;
  int64_t dim = 0;
  int64_t per_scale = 0;
};

AllCodes CodesUnderEveryScale(RowFormat format) {
  AllCodes all;
  const bool fp4 = IsFp4(format);
  const int64_t block = ShapeOf(format, 64, 0).block;
  all.per_scale = fp4 ? block : 256;
  all.dim = 256 * all.per_scale;
  std::vector<uint8_t> scales;
  for (int64_t i = 0; i < all.dim; i += fp4 ? 2 : 1) {
    all.row.push_back(
        static_cast<uint8_t>(fp4 ? i % 16 | (i + 1) % 16 << 4 : i % 256));
  }
  for (int64_t i = 0; i < all.dim; i += block) {
    all.row.push_back(static_cast<uint8_t>(i / all.per_scale));
  }
  return all;
}

double ScaleValue(RowFormat format, uint8_t byte) {
  return format == RowFormat::kMainFp4 ? E4m3ToFloat(byte) : Ue8m0ToFloat(byte);
}

uint32_t Canonical(double value) {
  return std::isnan(value) ? kDecodedNanBits
                           : std::bit_cast<uint32_t>(static_cast<float>(value));
}

TEST_P(RowCodecTest, DecodesEveryCodeUnderEveryScale) {
  for (const RowFormat format : kRowFormats) {
    const AllCodes all = CodesUnderEveryScale(format);
    ASSERT_EQ(static_cast<int64_t>(all.row.size()),
              RowBytes(format, all.dim, 0));
    const auto got = Decode(format, all.row, all.dim);
    const auto got16 = DecodeToBf16(format, all.row, all.dim);
    for (int64_t i = 0; i < all.dim; ++i) {
      const auto byte = static_cast<uint8_t>(i / all.per_scale);
      const double code = IsFp4(format)
                              ? E2m1ToFloat(static_cast<uint8_t>(i % 16))
                              : E4m3ToFloat(static_cast<uint8_t>(i % 256));
      const double value = code * ScaleValue(format, byte);
      ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), Canonical(value))
          << FormatName(format) << " scale " << int{byte} << " code " << code;
      const auto bits = std::bit_cast<float>(Canonical(value));
      ASSERT_EQ(got16[i], ToBf16(bits).bits)
          << FormatName(format) << " scale " << int{byte} << " code " << code;
      // What the header says of exactness.
      if (std::isnan(value)) continue;
      const bool fits = std::isfinite(got[i]);
      EXPECT_EQ(fits, std::fabs(value) < 0x1p128);
      if (!fits) continue;
      EXPECT_EQ(got[i], value);
      if (IsFp4(format) || byte >= 3) {
        EXPECT_EQ(ToFloat(Bf16{got16[i]}), value) << int{byte};
      }
    }
  }
}

TEST_P(RowCodecTest, EncodesWhatItDecodes) {
  for (const RowFormat format : kRowFormats) {
    const int64_t block = ShapeOf(format, 64, 0).block;
    for (int byte = 0; byte < 256; ++byte) {
      const auto scale =
          static_cast<float>(ScaleValue(format, static_cast<uint8_t>(byte)));
      // Scales that an encoder makes.
      if (!(scale > 0) || (format == RowFormat::kIndexFp4 && byte < 1))
        continue;
      if (!IsFp4(format) && byte < 105) continue;
      const float max = IsFp4(format) ? kE2m1Max : kE4m3Max;
      if (!std::isfinite(max * scale)) continue;
      std::vector<float> x;
      for (int code = 0; code < (IsFp4(format) ? 16 : 256); ++code) {
        const auto c = static_cast<uint8_t>(code);
        const float v = IsFp4(format) ? E2m1ToFloat(c) : E4m3ToFloat(c);
        if (std::isnan(v)) continue;
        if (x.size() % block == 0) x.push_back(max * scale);
        x.push_back(v * scale);
      }
      while (x.size() % block != 0) x.push_back(max * scale);
      const auto row = Encode(format, x);
      const auto shape = ShapeOf(format, static_cast<int64_t>(x.size()), 0);
      for (int64_t b = 0; b < shape.n_scales; ++b) {
        ASSERT_EQ(row[shape.scales_at + b], byte) << FormatName(format);
      }
      const auto back = Decode(format, row, static_cast<int64_t>(x.size()));
      ASSERT_TRUE(SameBits(back, x)) << FormatName(format) << " " << byte;
      ASSERT_EQ(Encode(format, back), row);
    }
  }
}

// A block whose largest value makes the scale `scale`, then `x`.
std::vector<float> BlockOf(RowFormat format, float scale,
                           std::vector<float> x) {
  const auto block = static_cast<size_t>(ShapeOf(format, 64, 0).block);
  x.insert(x.begin(), (IsFp4(format) ? kE2m1Max : kE4m3Max) * scale);
  x.resize(block);
  return x;
}

TEST_P(RowCodecTest, TiesGoToTheEvenCode) {
  // Of a main row all that E4M3 has, subnormals and the largest among them.
  std::vector<std::pair<RowFormat, float>> cases;
  for (int code = 1; code <= 0x7e; ++code) {
    cases.emplace_back(RowFormat::kMainFp4,
                       E4m3ToFloat(static_cast<uint8_t>(code)));
  }
  for (const int e : {-126, -20, 0, 3, 100, 125}) {
    cases.emplace_back(RowFormat::kIndexFp4, std::ldexp(1.0f, e));
  }
  constexpr float kTies[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  constexpr int kEven[] = {0, 2, 2, 4, 4, 6, 6};
  for (const auto& [format, scale] : cases) {
    for (int i = 0; i < 7; ++i) {
      const float tie = kTies[i] * scale;
      const auto row =
          Encode(format, BlockOf(format, scale,
                                 {tie, -tie, std::nextafterf(tie, 0),
                                  std::nextafterf(tie, kInf), -tie}));
      EXPECT_EQ(row[0], 7 | kEven[i] << 4) << scale;
      EXPECT_EQ(row[1], (8 | kEven[i]) | i << 4) << scale;
      EXPECT_EQ(row[2], (i + 1) | (8 | kEven[i]) << 4) << scale;
    }
  }
}

TEST_P(RowCodecTest, Fp8TiesGoToTheEvenCode) {
  for (const RowFormat format : {RowFormat::kWindowFp8, RowFormat::kV4Record}) {
    for (const int e : {-22, 0, 7, 119}) {
      const float scale = std::ldexp(1.0f, e);
      for (int code = 0; code < 0x7e; ++code) {
        const auto low = static_cast<uint8_t>(code);
        const auto high = static_cast<uint8_t>(code + 1);
        const float tie = (E4m3ToFloat(low) + E4m3ToFloat(high)) / 2 * scale;
        const auto row =
            Encode(format, BlockOf(format, scale,
                                   {tie, -tie, std::nextafterf(tie, 0),
                                    std::nextafterf(tie, kInf)}));
        const int even = code % 2 == 0 ? code : code + 1;
        EXPECT_EQ(row[0], 0x7e);
        EXPECT_EQ(row[1], even) << code;
        EXPECT_EQ(row[2], even | 0x80) << code;
        EXPECT_EQ(row[3], code) << code;
        EXPECT_EQ(row[4], code + 1) << code;
      }
    }
  }
}

TEST_P(RowCodecTest, PowerOfTwoScalesChangeAtTheirUlp) {
  const auto scale_byte = [&](RowFormat format, float amax) {
    std::vector<float> x(static_cast<size_t>(ShapeOf(format, 64, 0).block));
    x[5] = -amax;
    return int{Encode(
        format, x)[ShapeOf(format, 64, 0).block / (IsFp4(format) ? 2 : 1)]};
  };
  for (int byte = 1; byte < 253; ++byte) {
    const float amax = std::ldexp(6.0f, byte - 127);
    EXPECT_EQ(scale_byte(RowFormat::kIndexFp4, amax), byte);
    EXPECT_EQ(scale_byte(RowFormat::kIndexFp4, std::nextafterf(amax, 0)), byte);
    EXPECT_EQ(scale_byte(RowFormat::kIndexFp4, std::nextafterf(amax, kInf)),
              byte + 1);
  }
  for (const RowFormat format : {RowFormat::kWindowFp8, RowFormat::kV4Record}) {
    for (int byte = 105; byte < 246; ++byte) {
      const float amax = std::ldexp(448.0f, byte - 127);
      EXPECT_EQ(scale_byte(format, amax), byte);
      EXPECT_EQ(scale_byte(format, std::nextafterf(amax, 0)), byte);
      EXPECT_EQ(scale_byte(format, std::nextafterf(amax, kInf)), byte + 1);
    }
  }
}

TEST_P(RowCodecTest, MainScalesRoundToNearestEven) {
  const auto scale_byte = [&](float amax) {
    std::vector<float> x(16);
    x[15] = amax;
    return int{Encode(RowFormat::kMainFp4, x)[8]};
  };
  for (int code = 1; code < 0x7e; ++code) {
    const double low = E4m3ToFloat(static_cast<uint8_t>(code));
    const double high = E4m3ToFloat(static_cast<uint8_t>(code + 1));
    // Six times a tie is exact, and so is what the division makes of it.
    const auto tie = static_cast<float>(3 * (low + high));
    EXPECT_EQ(scale_byte(tie), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(scale_byte(std::nextafterf(std::nextafterf(tie, 0), 0)), code);
    EXPECT_EQ(scale_byte(std::nextafterf(std::nextafterf(tie, kInf), kInf)),
              code + 1);
  }
  for (const float huge : {2688.0f, 3000.0f, 1e30f, kInf}) {
    EXPECT_EQ(scale_byte(huge), 0x7e);
  }
  for (const float tiny : {0.0f, 1e-45f, 1e-30f, 0x1p-9f, 6 * 0x1p-9f}) {
    EXPECT_EQ(scale_byte(tiny), 1);
  }
}

TEST_P(RowCodecTest, ZerosHaveTheLeastScale) {
  for (const RowFormat format : kRowFormats) {
    const std::vector<float> x(128, 0.0f);
    const auto shape = ShapeOf(format, 128, 0);
    const auto row = Encode(format, x);
    for (int64_t i = 0; i < shape.scales_at; ++i) EXPECT_EQ(row[i], 0);
    const int least = IsFp4(format) ? 1 : 105;
    for (int64_t b = 0; b < shape.n_scales; ++b) {
      EXPECT_EQ(row[shape.scales_at + b], least) << FormatName(format);
    }
    EXPECT_TRUE(SameBits(Decode(format, row, 128), x));
    const std::vector<float> minus(128, -0.0f);
    EXPECT_TRUE(SameBits(Decode(format, Encode(format, minus), 128), minus));
  }
}

TEST_P(RowCodecTest, NotFiniteIsAsTheHeaderSays) {
  for (const RowFormat format : kRowFormats) {
    const bool fp4 = IsFp4(format);
    const auto block = ShapeOf(format, 64, 0).block;
    const auto scale_at = fp4 ? block / 2 : block;
    std::vector<float> x(static_cast<size_t>(block), 1.0f);
    x[2] = -kInf;
    auto row = Encode(format, x);
    EXPECT_EQ(row[scale_at], format == RowFormat::kMainFp4 ? 0x7e : 254);
    EXPECT_EQ(fp4 ? row[1] & 15 : row[2], fp4 ? 15 : 0xfe);
    auto back = Decode(format, row, block);
    EXPECT_EQ(back[2], format == RowFormat::kMainFp4 ? -2688.0f : -kInf);
    EXPECT_EQ(back[3], 0.0f);

    for (const uint32_t nan : {0x7fc00000u, 0xffc00001u, 0x7f800001u}) {
      x[2] = std::bit_cast<float>(nan);
      row = Encode(format, x);
      back = Decode(format, row, block);
      const bool minus = nan >> 31 != 0;
      if (fp4) {
        EXPECT_EQ(row[0], 0x77);
        EXPECT_EQ(row[1], minus ? 0x7f : 0x77);
        EXPECT_EQ(row[scale_at], format == RowFormat::kMainFp4 ? 0x7f : 0xff);
      } else {
        EXPECT_EQ(row[2], minus ? 0xff : 0x7f);
        EXPECT_EQ(back[3], 1.0f);
      }
      for (int64_t i = 0; i < block; ++i) {
        const bool is_nan = fp4 || i == 2;
        EXPECT_EQ(std::bit_cast<uint32_t>(back[i]) == kDecodedNanBits, is_nan);
      }
    }
    std::fill(x.begin(), x.end(), kNan);
    row = Encode(format, x);
    EXPECT_EQ(row[scale_at], format == RowFormat::kMainFp4    ? 0x7f
                             : format == RowFormat::kIndexFp4 ? 0xff
                                                              : 105);
    for (const float v : Decode(format, row, block)) EXPECT_TRUE(std::isnan(v));
  }
  // Finite blocks that decode to infinities, and the last that do not.
  for (const auto& [format, top] : {std::pair{RowFormat::kIndexFp4, 0x1.cp127f},
                                    {RowFormat::kWindowFp8, 0x1.fp127f},
                                    {RowFormat::kV4Record, 0x1.fp127f}}) {
    std::vector<float> x(64, top);
    EXPECT_EQ(Decode(format, Encode(format, x), 64)[0], kInf);
    x.assign(64, std::nextafterf(top, 0));
    EXPECT_LT(Decode(format, Encode(format, x), 64)[0], kInf);
  }
}

// Facts of the formats (docs/ROW_FORMATS.md) that forbid encoding twice.
TEST_P(RowCodecTest, EncodingTwiceMayMoveBytesAndValues) {
  const auto again = [&](RowFormat format, const std::vector<float>& x) {
    return Decode(format, Encode(format, x), static_cast<int64_t>(x.size()));
  };
  // A subnormal main scale: 1.5 rounds to 2, then 8 / 6 to 1.
  std::vector<float> x(16);
  x[0] = 9 * 0x1p-9f;
  const auto once = again(RowFormat::kMainFp4, x);
  EXPECT_EQ(once[0], 8 * 0x1p-9f);
  EXPECT_EQ(again(RowFormat::kMainFp4, once)[0], 6 * 0x1p-9f);
  // Power-of-two scales: a largest code of 3 is a 6 of half the scale, and so
  // on; the values stay.
  for (const RowFormat format :
       {RowFormat::kIndexFp4, RowFormat::kWindowFp8, RowFormat::kV4Record}) {
    const auto shape = ShapeOf(format, 64, 0);
    for (const int byte : {112, 127, 200}) {
      for (int top = 0; top < (IsFp4(format) ? 8 : 0x7f); ++top) {
        std::vector<uint8_t> row(shape.bytes);
        for (int64_t i = 0; i < shape.scales_at; ++i) {
          row[i] = static_cast<uint8_t>(random_.Between(0, top) |
                                        random_.Between(0, 1) *
                                            (IsFp4(format) ? 8 : 0x80));
          if (IsFp4(format)) row[i] |= static_cast<uint8_t>(top << 4);
        }
        std::fill_n(row.begin() + shape.scales_at, shape.n_scales, byte);
        const auto values = Decode(format, row, 64);
        ASSERT_TRUE(SameBits(again(format, values), values))
            << FormatName(format) << " " << top;
      }
    }
  }
}

TEST_P(RowCodecTest, BytesAreThoseOfTheOracle) {
  const std::string path =
      std::string(TORPOR_ORACLES_DIR) + "/row_codecs/rows.txt";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::string line;
  int n = 0;
  while (std::getline(in, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string name;
    std::string words;
    std::string bytes;
    int64_t dim = 0;
    int64_t rope_dim = 0;
    fields >> name >> dim >> rope_dim >> words >> bytes;
    ASSERT_TRUE(fields) << line;
    std::vector<float> x;
    for (int64_t i = 0; i < dim; ++i) {
      const std::string word = words.substr(static_cast<size_t>(8 * i), 8);
      x.push_back(std::bit_cast<float>(
          static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
    }
    const auto row = Encode(FormatOf(name), x, rope_dim);
    EXPECT_EQ(testing::Hex(row), bytes) << "line " << n;
    ++n;
  }
  EXPECT_EQ(n, 48);
}

// Channel c of 64 is c - 8; the last 16 are a V4 record's bf16.
TEST_P(RowCodecTest, TheDocumentsExampleHasItsBytes) {
  std::vector<float> x;
  for (int c = 0; c < 64; ++c) x.push_back(static_cast<float>(c - 8));
  const std::string oracles = TORPOR_ORACLES_DIR;
  const testing::GoldenFile golden(oracles + "/row_codecs/example.txt");
  std::ifstream in(oracles + "/../../docs/ROW_FORMATS.md");
  const std::string document(std::istreambuf_iterator<char>(in), {});
  for (const RowFormat format : kRowFormats) {
    const std::string name = FormatName(format);
    const std::string hex = testing::Hex(Encode(format, x, 16));
    EXPECT_EQ(hex, golden.Get(name));
    EXPECT_NE(document.find("    " + name + "\n    " + hex + "\n"),
              std::string::npos)
        << name;
  }
}

}  // namespace
}  // namespace torpor::kernels
