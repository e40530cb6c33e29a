// SPDX-License-Identifier: Apache-2.0
//
// Rows for tests of the row and weight codecs: shapes of every format, and
// values that reach the ends of every rounding.

#ifndef TORPOR_TESTS_KERNELS_CODEC_VALUES_H_
#define TORPOR_TESTS_KERNELS_CODEC_VALUES_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/row_codec.h"
#include "kernels/small_float.h"
#include "tests/testing/random.h"

namespace torpor::kernels {

struct CodecCase {
  RowFormat format;
  int64_t dim;
  int64_t rope_dim;
};
inline constexpr CodecCase kCodecCases[] = {
    {RowFormat::kMainFp4, 512, 0},    {RowFormat::kMainFp4, 16, 0},
    {RowFormat::kMainFp4, 272, 0},    {RowFormat::kIndexFp4, 128, 0},
    {RowFormat::kIndexFp4, 32, 0},    {RowFormat::kIndexFp4, 544, 0},
    {RowFormat::kWindowFp8, 512, 0},  {RowFormat::kWindowFp8, 32, 0},
    {RowFormat::kWindowFp8, 1056, 0}, {RowFormat::kV4Record, 512, 64},
    {RowFormat::kV4Record, 64, 16},   {RowFormat::kV4Record, 1120, 0},
    {RowFormat::kV4Record, 80, 80}};

// What rows may hold: a few octaves, all of them, any bits, few bits (ties).
class CodecValues {
 public:
  std::vector<float> Draw(testing::Random& random, int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    const auto kind = static_cast<int>(random.Between(0, 3));
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % 16 == 0) top_ = Exp2(static_cast<int>(random.Between(0, 253)));
      // Mostly what KV rows are, so that scales are not all at their ends.
      if (i % 16 == 0 && !random.OneIn(4)) {
        top_ = Exp2(static_cast<int>(random.Between(112, 140)));
      }
      x[i] = Value(random, kind);
    }
    return x;
  }

 private:
  float Value(testing::Random& random, int kind) const {
    const auto word = static_cast<uint32_t>(random.engine()());
    switch (kind) {
      case 0:
        return top_ * random.Normal();
      case 1:
        return std::bit_cast<float>(word);
      case 2:
        return top_ * static_cast<float>(static_cast<int>(word % 193) - 96) /
               16;
      default:
        return std::bit_cast<float>(word & 0xff7f0000u);
    }
  }

  static float Exp2(int byte) {
    return Ue8m0ToFloat(static_cast<uint8_t>(byte));
  }

  float top_ = 1;
};

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_CODEC_VALUES_H_
