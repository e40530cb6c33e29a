// SPDX-License-Identifier: Apache-2.0
//
// E2M1, E4M3 and UE8M0 against their definitions in double, over every code and
// every tie, and against what torch and ml_dtypes do
// (tests/oracles/row_codecs).

#include "kernels/small_float.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/random.h"

namespace torpor::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

// Constant expressions, all of it.
static_assert(FloatToE2m1(-5.0f) == 14 && E2m1ToFloat(14) == -4.0f);
static_assert(FloatToE4m3(1e9f) == kE4m3MaxCode && E4m3ToFloat(1) == kE4m3Min);
static_assert(CeilToUe8m0(1.0f) == 127 && Ue8m0ToFloat(127) == 1.0f);

// A number format as a list of its magnitudes, by code.
struct Format {
  const char* name;
  std::vector<double> magnitudes;
  uint8_t sign;
  float (*decode)(uint8_t);
  uint8_t (*encode)(float);
};

Format E2m1() {
  return {"e2m1", {0, 0.5, 1, 1.5, 2, 3, 4, 6}, 8, E2m1ToFloat, FloatToE2m1};
}

Format E4m3() {
  Format f = {"e4m3", {}, 0x80, E4m3ToFloat, FloatToE4m3};
  for (int code = 0; code < 0x7f; ++code) {
    const int e = code / 8;
    f.magnitudes.push_back(e == 0 ? std::ldexp(code % 8, -9)
                                  : std::ldexp(8 + code % 8, e - 10));
  }
  return f;
}

// By search among all values; ties to an even code.
uint8_t NearestCode(const Format& f, float v) {
  const double magnitude =
      std::min(std::fabs(static_cast<double>(v)), f.magnitudes.back());
  size_t best = 0;
  for (size_t code = 1; code < f.magnitudes.size(); ++code) {
    const double old = std::fabs(magnitude - f.magnitudes[best]);
    const double now = std::fabs(magnitude - f.magnitudes[code]);
    if (now < old || (now == old && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(v) ? f.sign : 0));
}

class SmallFloatTest : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Types, SmallFloatTest,
                         ::testing::Values(E2m1(), E4m3()),
                         [](const auto& info) { return info.param.name; });

TEST_P(SmallFloatTest, EveryCodeDecodesAndComesBack) {
  const Format& f = GetParam();
  for (size_t code = 0; code < f.magnitudes.size(); ++code) {
    const auto plus = static_cast<uint8_t>(code);
    const auto minus = static_cast<uint8_t>(code | f.sign);
    EXPECT_EQ(f.decode(plus), f.magnitudes[code]);
    EXPECT_EQ(f.decode(minus), -f.magnitudes[code]);
    EXPECT_TRUE(std::signbit(f.decode(minus)));
    EXPECT_EQ(f.encode(f.decode(plus)), plus);
    EXPECT_EQ(f.encode(f.decode(minus)), minus);
  }
}

TEST_P(SmallFloatTest, TiesGoToTheEvenCodeAndNothingElseDoes) {
  const Format& f = GetParam();
  for (size_t code = 0; code + 1 < f.magnitudes.size(); ++code) {
    const auto tie =
        static_cast<float>((f.magnitudes[code] + f.magnitudes[code + 1]) / 2);
    for (const float s : {1.0f, -1.0f}) {
      const uint8_t sign = s < 0 ? f.sign : 0;
      EXPECT_EQ(f.encode(s * tie), (code % 2 == 0 ? code : code + 1) | sign);
      EXPECT_EQ(f.encode(s * std::nextafterf(tie, 0)), code | sign);
      EXPECT_EQ(f.encode(s * std::nextafterf(tie, kInf)), (code + 1) | sign);
    }
  }
}

TEST_P(SmallFloatTest, SaturatesAndKeepsTheSign) {
  const Format& f = GetParam();
  const auto top = static_cast<uint8_t>(f.magnitudes.size() - 1);
  const auto max = static_cast<float>(f.magnitudes.back());
  for (const float v : {max, std::nextafterf(max, kInf), 1.25f * max, 2 * max,
                        std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(f.encode(v), top) << v;
    EXPECT_EQ(f.encode(-v), top | f.sign) << v;
  }
  for (const float tiny : {0.0f, 1e-45f, 1.1754944e-38f, 1e-10f}) {
    EXPECT_EQ(f.encode(tiny), 0) << tiny;
    EXPECT_EQ(f.encode(-tiny), f.sign) << tiny;
  }
}

// Every float's upper half with lower halves that decide roundings.
TEST_P(SmallFloatTest, AgreesWithASearchOverAllExponents) {
  const Format& f = GetParam();
  testing::Random random;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const auto noise = static_cast<uint32_t>(random.engine()()) & 0xffff;
    for (const uint32_t lower : {0u, 1u, 0xffffu, noise}) {
      const auto v = std::bit_cast<float>(upper << 16 | lower);
      if (!std::isfinite(v)) continue;
      ASSERT_EQ(f.encode(v), NearestCode(f, v)) << v;
    }
  }
}

TEST(SmallFloatNanTest, NanIsTheTypesOwnOrSaturates) {
  EXPECT_EQ(FloatToE4m3(kQuietNan), 0x7f);
  EXPECT_EQ(FloatToE4m3(-kQuietNan), 0xff);
  EXPECT_EQ(FloatToE4m3(std::bit_cast<float>(0x7f800001u)), 0x7f);
  EXPECT_EQ(FloatToE2m1(kQuietNan), 7);
  EXPECT_EQ(FloatToE2m1(-kQuietNan), 15);
  for (const uint8_t nan : {0x7f, 0xff}) {
    EXPECT_EQ(std::bit_cast<uint32_t>(E4m3ToFloat(nan)), kDecodedNanBits);
  }
  EXPECT_EQ(std::bit_cast<uint32_t>(Ue8m0ToFloat(255)), kDecodedNanBits);
}

TEST(E2m1Test, ReadsOnlyItsFourBits) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(E2m1ToFloat(static_cast<uint8_t>(byte)),
              E2m1ToFloat(static_cast<uint8_t>(byte & 15)));
  }
}

TEST(Ue8m0Test, EveryCodeIsItsPowerOfTwoAndComesBack) {
  for (int code = 0; code < 255; ++code) {
    const float value = Ue8m0ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0, code - 127));
    EXPECT_EQ(CeilToUe8m0(value), code);
  }
}

TEST(Ue8m0Test, CeilsOneUlpAroundEveryPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float value = Ue8m0ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(CeilToUe8m0(std::nextafterf(value, 0)), code) << code;
    EXPECT_EQ(CeilToUe8m0(std::nextafterf(value, kInf)),
              std::min(code + 1, 254));
    EXPECT_EQ(CeilToUe8m0(1.5f * value), std::min(code + 1, 254));
  }
  EXPECT_EQ(CeilToUe8m0(0.0f), 0);
  EXPECT_EQ(CeilToUe8m0(1e-45f), 0);
  EXPECT_EQ(CeilToUe8m0(std::numeric_limits<float>::max()), 254);
  EXPECT_EQ(CeilToUe8m0(kInf), 254);
  EXPECT_EQ(CeilToUe8m0(kQuietNan), 255);
}

TEST(SmallFloatOracleTest, AgreesWithTorchAndMlDtypes) {
  const std::string path =
      std::string(TORPOR_ORACLES_DIR) + "/row_codecs/small_floats.txt";
  std::ifstream in(path);
  ASSERT_TRUE(in) << path;
  std::string line;
  int n = 0;
  while (std::getline(in, line)) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    std::string type;
    std::string what;
    uint32_t from = 0;
    uint32_t to = 0;
    fields >> type >> what >> std::hex >> from >> to;
    ASSERT_TRUE(fields) << line;
    const auto value = std::bit_cast<float>(from);
    const auto code = static_cast<uint8_t>(from);
    const bool decode = what == "decode";
    uint32_t got = 0;
    if (type == "e4m3") {
      got = decode ? std::bit_cast<uint32_t>(E4m3ToFloat(code))
                   : FloatToE4m3(value);
    } else if (type == "e2m1") {
      got = decode ? std::bit_cast<uint32_t>(E2m1ToFloat(code))
                   : FloatToE2m1(value);
    } else {
      ASSERT_EQ(type, "ue8m0");
      got = decode ? std::bit_cast<uint32_t>(Ue8m0ToFloat(code))
                   : CeilToUe8m0(value);
    }
    EXPECT_EQ(got, to) << line;
    ++n;
  }
  EXPECT_GT(n, 2500);
}

}  // namespace
}  // namespace torpor::kernels
