// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_TESTS_KERNELS_KERNEL_TESTING_H_
#define TORPOR_TESTS_KERNELS_KERNEL_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/isa.h"
#include "tests/testing/random.h"

namespace torpor::kernels {

inline std::vector<float> RandomFloats(testing::Random& random, size_t n,
                                       float scale = 1.0f) {
  std::vector<float> out(n);
  for (float& v : out) v = scale * random.Normal();
  return out;
}

inline std::vector<Bf16> ToBf16s(std::span<const float> in) {
  std::vector<Bf16> out;
  for (const float v : in) out.push_back(ToBf16(v));
  return out;
}

// max |a - b| <= tolerance * max |b|, or of `least` where that is more; names
// the worst index. NaN and infinity must agree in place and kind.
inline ::testing::AssertionResult Near(std::span<const float> got,
                                       std::span<const float> wanted,
                                       double tolerance, double least = 0) {
  if (got.size() != wanted.size()) {
    return ::testing::AssertionFailure()
           << "got " << got.size() << " values, wanted " << wanted.size();
  }
  double largest = least;
  double worst = -1;
  size_t worst_at = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(wanted[i]) || !std::isfinite(got[i])) {
      const bool same =
          std::isnan(wanted[i]) ? std::isnan(got[i]) : wanted[i] == got[i];
      if (!same) {
        return ::testing::AssertionFailure()
               << "at " << i << ": got " << got[i] << ", wanted " << wanted[i];
      }
      continue;
    }
    largest = std::max(largest, std::abs(static_cast<double>(wanted[i])));
    const double error = std::abs(static_cast<double>(got[i]) - wanted[i]);
    if (error > worst) {
      worst = error;
      worst_at = i;
    }
  }
  if (worst > tolerance * largest) {
    return ::testing::AssertionFailure()
           << "worst at " << worst_at << ": got " << got[worst_at]
           << ", wanted " << wanted[worst_at] << ", off by " << worst
           << " of a largest value " << largest;
  }
  return ::testing::AssertionSuccess();
}

// About how large a sum of `n` products of normal values is, for Near's
// `least`: what is left of one that cancelled is no measure of its rounding.
inline double SumSize(int64_t n) { return std::sqrt(static_cast<double>(n)); }

// 2 sigmoid(x), each by as much of itself as the rounding of its x moves it: a
// gate that is shut is about 2 exp(x).
inline ::testing::AssertionResult NearGates(std::span<const float> got,
                                            std::span<const float> wanted,
                                            double tolerance) {
  if (got.size() != wanted.size()) {
    return ::testing::AssertionFailure()
           << "got " << got.size() << " values, wanted " << wanted.size();
  }
  // Below it a kernel may give zero.
  constexpr double kLeast = std::numeric_limits<float>::min();
  for (size_t i = 0; i < got.size(); ++i) {
    const double gate = std::max<double>(wanted[i], kLeast);
    const double allowed =
        std::max(kLeast, tolerance * gate * (1 + std::abs(std::log(gate / 2))));
    const double error = std::abs(static_cast<double>(got[i]) - wanted[i]);
    // So that NaN fails.
    if (!(error <= allowed)) {
      return ::testing::AssertionFailure()
             << "at " << i << ": got " << got[i] << ", wanted " << wanted[i]
             << ", off by " << error << ", allowed " << allowed;
    }
  }
  return ::testing::AssertionSuccess();
}

// Bit for bit, NaN included.
inline ::testing::AssertionResult SameBits(std::span<const float> a,
                                           std::span<const float> b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure()
           << a.size() << " against " << b.size() << " values";
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return ::testing::AssertionFailure()
             << "at " << i << ": " << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

inline std::string IsaParamName(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(IsaName(info.param));
}

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_KERNEL_TESTING_H_
