// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding over split halves (Hugging Face's rotate_half):
//   y[j]       = x[j] cos_j - x[j + half] sin_j
//   y[j + half] = x[j + half] cos_j + x[j] sin_j,   j < half = head_dim / 2
// in f32, in place. Angles are position x inv_freq_j, rounded to f32 like
// Hugging Face's, then cos and sin of that f32 value in double, rounded once.

#ifndef TORPOR_KERNELS_ROPE_H_
#define TORPOR_KERNELS_ROPE_H_

#include <cstdint>
#include <vector>

namespace torpor::kernels {

// inv_freq_j = 1 / theta^(2j / head_dim) / linear_factor, f32.
std::vector<float> RopeInvFreq(float theta, int64_t head_dim,
                               float linear_factor);

// cos and sin of one position: table[0..half) cos, table[half..2 half) sin.
void RopeTable(const std::vector<float>& inv_freq, uint64_t position,
               float* table);

struct RopeParams {
  // [n_rows, n_heads, head_dim] f32.
  float* x = nullptr;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  // [n_rows, head_dim] f32: RopeTable of each row's position.
  const float* tables = nullptr;
};

void RopeRef(const RopeParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROPE_H_
