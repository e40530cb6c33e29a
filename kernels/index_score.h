// SPDX-License-Identifier: Apache-2.0
//
// How much each row wants each compressed entry (DeepSeek V4.1 section 2.8):
//   score[r, g] = scale * sum_h weight[r, h] * max(0, <q[r, h], key[g]>)
// One order a score: the dot product over ascending channels, heads ascending;
// rows, keys and threads beside it change nothing (design D9).
// Floor: 2 * rows * keys * n_heads * dim operations; keys read once a tile of
// rows.

#ifndef TORPOR_KERNELS_INDEX_SCORE_H_
#define TORPOR_KERNELS_INDEX_SCORE_H_

#include <cstdint>

#include "kernels/row_codec.h"

namespace torpor::kernels {

struct IndexScoreParams {
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  // A multiple of 32.
  int64_t dim = 0;
  float scale = 1.0f;
  // [n_rows, n_heads, dim] f32, the values of the quantised queries.
  const float* q = nullptr;
  // [n_rows, n_heads] f32.
  const float* weights = nullptr;
  RowFormat key_format = RowFormat::kIndexFp4;
  // Pages of `page_rows` encoded keys each; the list is the host's.
  const uint8_t* const* pages = nullptr;
  int64_t page_rows = 0;
  // [n_rows], the host's: keys [0, n_visible[r]) are scored, others neither
  // read nor written.
  const int64_t* n_visible = nullptr;
  // [n_rows, scores_stride] f32.
  float* scores = nullptr;
  int64_t scores_stride = 0;
};

// Scalar, double.
void IndexScoreRef(const IndexScoreParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_INDEX_SCORE_H_
