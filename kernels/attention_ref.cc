// SPDX-License-Identifier: Apache-2.0

#include "kernels/attention.h"

#include <cmath>
#include <vector>

namespace torpor::kernels {
namespace {

void ReadRow(const KvShape& shape, const uint8_t* page, int64_t token,
             bool is_k, std::vector<double>* out) {
  const auto n = static_cast<size_t>(shape.row_elements());
  out->resize(n);
  if (shape.dtype == DType::kBf16) {
    std::vector<Bf16> row(n);
    is_k ? GetKRow(shape, page, token, row.data())
         : GetVRow(shape, page, token, row.data());
    for (size_t i = 0; i < n; ++i) (*out)[i] = ToFloat(row[i]);
  } else {
    std::vector<float> row(n);
    is_k ? GetKRow(shape, page, token, row.data())
         : GetVRow(shape, page, token, row.data());
    for (size_t i = 0; i < n; ++i) (*out)[i] = row[i];
  }
}

}  // namespace

void AttentionRef(const AttentionParams& p) {
  const int64_t hd = p.shape.head_dim;
  const int64_t group = p.n_heads / p.shape.n_kv_heads;
  std::vector<double> row;
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const AttentionSegment& seg = p.segments[s];
    for (int64_t r = 0; r < seg.n_rows; ++r) {
      const KeyRange keys = seg.keys[r];
      const auto n_keys = static_cast<size_t>(keys.end - keys.begin);
      for (int64_t h = 0; h < p.n_heads; ++h) {
        const int64_t at = ((seg.row_begin + r) * p.n_heads + h) * hd;
        const int64_t kv = h / group * hd;
        std::vector<double> weights(n_keys);
        const double sink = p.sinks == nullptr ? -INFINITY : p.sinks[h];
        double max = sink;
        for (size_t k = 0; k < n_keys; ++k) {
          const int64_t pos = keys.begin + static_cast<int64_t>(k);
          ReadRow(p.shape, seg.kv.page(pos / kPageTokens), pos % kPageTokens,
                  true, &row);
          double dot = 0;
          for (int64_t d = 0; d < hd; ++d) {
            const float q = p.shape.dtype == DType::kBf16
                                ? RoundToBf16(p.q[at + d])
                                : p.q[at + d];
            dot += q * row[static_cast<size_t>(kv + d)];
          }
          dot *= p.scale;
          if (p.softcap != 0) dot = p.softcap * std::tanh(dot / p.softcap);
          weights[k] = dot;
          max = std::fmax(max, dot);
        }
        double sum = p.sinks == nullptr ? 0 : std::exp(sink - max);
        std::vector<double> out(static_cast<size_t>(hd));
        for (size_t k = 0; k < n_keys; ++k) {
          const int64_t pos = keys.begin + static_cast<int64_t>(k);
          const double w = std::exp(weights[k] - max);
          sum += w;
          ReadRow(p.shape, seg.kv.page(pos / kPageTokens), pos % kPageTokens,
                  false, &row);
          for (int64_t d = 0; d < hd; ++d) {
            out[static_cast<size_t>(d)] += w * row[static_cast<size_t>(kv + d)];
          }
        }
        for (int64_t d = 0; d < hd; ++d) {
          const auto y = static_cast<float>(out[static_cast<size_t>(d)] / sum);
          if (p.out_dtype == DType::kBf16) {
            static_cast<Bf16*>(p.out)[at + d] = ToBf16(y);
          } else {
            static_cast<float*>(p.out)[at + d] = y;
          }
        }
      }
    }
  }
}

}  // namespace torpor::kernels
