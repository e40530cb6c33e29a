// SPDX-License-Identifier: Apache-2.0

#include "kernels/index_score.h"

#include <algorithm>
#include <vector>

namespace torpor::kernels {

void IndexScoreRef(const IndexScoreParams& p) {
  const int64_t key_bytes = RowBytes(p.key_format, p.dim, 0);
  std::vector<float> key(static_cast<size_t>(p.dim));
  for (int64_t row = 0; row < p.n_rows; ++row) {
    for (int64_t g = 0; g < p.n_visible[row]; ++g) {
      DecodeRowsRef(
          {.format = p.key_format,
           .in = p.pages[g / p.page_rows] + g % p.page_rows * key_bytes,
           .n_rows = 1,
           .dim = p.dim,
           .out = key.data()});
      double score = 0;
      for (int64_t h = 0; h < p.n_heads; ++h) {
        const float* q = p.q + (row * p.n_heads + h) * p.dim;
        double dot = 0;
        for (int64_t i = 0; i < p.dim; ++i) {
          dot += static_cast<double>(q[i]) * key[static_cast<size_t>(i)];
        }
        // A NaN stays one.
        score += p.weights[row * p.n_heads + h] * (dot < 0 ? 0.0 : dot);
      }
      p.scores[row * p.scores_stride + g] = static_cast<float>(score * p.scale);
    }
  }
}

}  // namespace torpor::kernels
