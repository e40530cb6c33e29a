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

// Over interleaved pairs of the last rope_dim channels of each head (DeepSeek):
//   y[2j]     = x[2j] cos_j - x[2j + 1] sin_j
//   y[2j + 1] = x[2j + 1] cos_j + x[2j] sin_j
// counted from the first of those channels; inverse negates sin. In f32, in
// place.
struct RopeTailParams {
  // [n_rows, n_heads, head_dim] f32.
  float* x = nullptr;
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  // Even, at most head_dim.
  int64_t rope_dim = 0;
  // [n_rows, rope_dim] f32: RopeTable of each row's position.
  const float* tables = nullptr;
  bool inverse = false;
};

void RopeTailRef(const RopeTailParams& params);

// YaRN (Peng et al. 2023) without its attention factor: pairs that turn more
// than beta_fast times in original_positions keep their frequency, those that
// turn less than beta_slow times are divided by factor, the others lie between.
struct YarnParams {
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_positions = 1;
  // Whether the range of pairs that lie between is widened to whole ones.
  bool truncate = true;
};
std::vector<float> YarnInvFreq(double theta, int64_t rope_dim,
                               const YarnParams& yarn);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROPE_H_
