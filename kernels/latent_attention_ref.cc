// SPDX-License-Identifier: Apache-2.0

#include "kernels/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/bf16.h"

namespace torpor::kernels {
namespace {

// [n, dim] f32 of encoded rows.
void Decode(RowFormat format, const uint8_t* const* rows, int64_t n,
            int64_t dim, std::vector<float>* out) {
  for (int64_t i = 0; i < n; ++i) {
    const size_t at = out->size();
    out->resize(at + static_cast<size_t>(dim));
    DecodeRowsRef({.format = format,
                   .in = rows[i],
                   .n_rows = 1,
                   .dim = dim,
                   .out = out->data() + at});
  }
}

void AttendHead(const LatentAttentionParams& p, const std::vector<float>& keys,
                const float* q, float sink, float* out) {
  const auto dim = static_cast<size_t>(p.head_dim);
  const size_t n = keys.size() / dim;
  std::vector<double> logits(n);
  double max = sink;
  for (size_t k = 0; k < n; ++k) {
    double dot = 0;
    for (size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(q[i]) * keys[k * dim + i];
    }
    logits[k] = dot * p.scale;
    max = std::max(max, logits[k]);
  }
  double sum = std::exp(sink - max);
  std::vector<double> acc(dim, 0.0);
  for (size_t k = 0; k < n; ++k) {
    const double e = std::exp(logits[k] - max);
    sum += e;
    const double numerator =
        p.bf16_numerators ? RoundToBf16(static_cast<float>(e)) : e;
    for (size_t i = 0; i < dim; ++i) acc[i] += numerator * keys[k * dim + i];
  }
  for (size_t i = 0; i < dim; ++i) out[i] = static_cast<float>(acc[i] / sum);
}

}  // namespace

void LatentAttentionRef(const LatentAttentionParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const LatentKeys& of_row = p.keys[row];
    std::vector<float> keys;
    Decode(p.window_format, of_row.window, of_row.n_window, p.head_dim, &keys);
    Decode(p.entry_format, of_row.entries, of_row.n_entries, p.head_dim, &keys);
    for (int64_t head = 0; head < p.n_heads; ++head) {
      const int64_t at = (row * p.n_heads + head) * p.head_dim;
      AttendHead(p, keys, p.q + at, p.sinks[head], p.out + at);
    }
  }
}

}  // namespace torpor::kernels
