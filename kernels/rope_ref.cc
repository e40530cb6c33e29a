// SPDX-License-Identifier: Apache-2.0

#include "kernels/rope.h"

#include <cmath>

namespace torpor::kernels {

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
