// SPDX-License-Identifier: Apache-2.0

#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace torpor::kernels {
namespace {

// The pair that turns `turns` times in `positions`, as a real number.
double PairOfTurns(double turns, double theta, int64_t rope_dim,
                   double positions) {
  return static_cast<double>(rope_dim) *
         std::log(positions / (turns * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(theta));
}

}  // namespace

std::vector<float> RopeInvFreq(float theta, int64_t head_dim,
                               float linear_factor) {
  std::vector<float> inv_freq(static_cast<size_t>(head_dim / 2));
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const float exponent =
        static_cast<float>(2 * j) / static_cast<float>(head_dim);
    inv_freq[j] = 1.0f / std::pow(theta, exponent);
    inv_freq[j] /= linear_factor;
  }
  return inv_freq;
}

void RopeTable(const std::vector<float>& inv_freq, uint64_t position,
               float* table) {
  const size_t half = inv_freq.size();
  for (size_t j = 0; j < half; ++j) {
    const float angle = static_cast<float>(position) * inv_freq[j];
    table[j] = static_cast<float>(std::cos(static_cast<double>(angle)));
    table[half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
  }
}

std::vector<float> YarnInvFreq(double theta, int64_t rope_dim,
                               const YarnParams& yarn) {
  std::vector<float> inv_freq =
      RopeInvFreq(static_cast<float>(theta), rope_dim, 1.0f);
  const auto positions = static_cast<double>(yarn.original_positions);
  const double last = static_cast<double>(rope_dim) - 1.0;
  double low = PairOfTurns(yarn.beta_fast, theta, rope_dim, positions);
  double high = PairOfTurns(yarn.beta_slow, theta, rope_dim, positions);
  if (yarn.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(0.0, low);
  high = std::min(last, high);
  // A ramp of no length would divide by 0.
  if (low == high) high += 0.001;
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const double ramp =
        std::clamp((static_cast<double>(j) - low) / (high - low), 0.0, 1.0);
    const auto slow = static_cast<float>(ramp);
    const float divided = inv_freq[j] / static_cast<float>(yarn.factor);
    inv_freq[j] = divided * slow + inv_freq[j] * (1.0f - slow);
  }
  return inv_freq;
}

void RopeTailRef(const RopeTailParams& p) {
  const int64_t half = p.rope_dim / 2;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* cos = p.tables + row * p.rope_dim;
    const float* sin = cos + half;
    for (int64_t head = 0; head < p.n_heads; ++head) {
      float* x = p.x + (row * p.n_heads + head + 1) * p.head_dim - p.rope_dim;
      for (int64_t j = 0; j < half; ++j) {
        const double a = x[2 * j];
        const double b = x[2 * j + 1];
        const double s = p.inverse ? -sin[j] : sin[j];
        x[2 * j] = static_cast<float>(a * cos[j] - b * s);
        x[2 * j + 1] = static_cast<float>(b * cos[j] + a * s);
      }
    }
  }
}

void RopeRef(const RopeParams& p) {
  const int64_t half = p.head_dim / 2;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const float* cos = p.tables + row * p.head_dim;
    const float* sin = cos + half;
    for (int64_t head = 0; head < p.n_heads; ++head) {
      float* x = p.x + (row * p.n_heads + head) * p.head_dim;
      for (int64_t j = 0; j < half; ++j) {
        const double a = x[j];
        const double b = x[j + half];
        x[j] = static_cast<float>(a * cos[j] - b * sin[j]);
        x[j + half] = static_cast<float>(b * cos[j] + a * sin[j]);
      }
    }
  }
}

}  // namespace torpor::kernels
