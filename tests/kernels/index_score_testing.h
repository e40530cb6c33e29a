// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the index scores ask of both kernels, the CPU's and CUDA's.

#ifndef TORPOR_TESTS_KERNELS_INDEX_SCORE_TESTING_H_
#define TORPOR_TESTS_KERNELS_INDEX_SCORE_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {

// What scores hold before they are written.
inline constexpr float kNoScore = -12345.0f;

// About how large a row's scores are, for keys of normal values: the rest of a
// sum whose products cancelled is no measure of its rounding. `q` is
// [weights.size(), dim].
inline double ScoreSize(std::span<const float> q,
                        std::span<const float> weights) {
  const size_t dim = q.size() / weights.size();
  double squares = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    const double product = double{weights[i / dim]} * q[i];
    squares += product * product;
  }
  return std::sqrt(squares) / 2;
}

// Scores [n_visible.size(), stride] of rows `q` [n_visible.size(), n_heads,
// dim]: those of visible keys are right, and the others not written.
inline ::testing::AssertionResult ScoresAgree(
    std::span<const float> got, std::span<const float> wanted,
    std::span<const float> q, std::span<const float> weights,
    const std::vector<int64_t>& n_visible, double tolerance) {
  const size_t n_rows = n_visible.size();
  const size_t stride = got.size() / n_rows;
  const size_t n_heads = weights.size() / n_rows;
  const size_t q_row = q.size() / n_rows;
  for (size_t r = 0; r < n_rows; ++r) {
    const auto visible = static_cast<size_t>(n_visible[r]);
    const size_t at = r * stride;
    auto near =
        Near(got.subspan(at, visible), wanted.subspan(at, visible), tolerance,
             ScoreSize(q.subspan(r * q_row, q_row),
                       weights.subspan(r * n_heads, n_heads)));
    if (!near) return near << ", row " << r;
    for (size_t i = visible; i < stride; ++i) {
      if (got[at + i] != kNoScore) {
        return ::testing::AssertionFailure()
               << "row " << r << " wrote " << got[at + i] << " at " << i;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_INDEX_SCORE_TESTING_H_
