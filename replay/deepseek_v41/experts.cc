// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/experts.h"

#include <vector>

#include "replay/deepseek_v41/picks.h"

namespace torpor::replay::deepseek_v41 {
namespace {

// Rows that an expert serves, and their weights.
struct Share {
  std::vector<size_t> rows;
  std::vector<float> weights;
};

std::vector<Share> Route(const Config& c, uint32_t layer, const FfnWeights& w,
                         std::span<const RowRun> runs, std::span<const float> x,
                         RowMath* math) {
  FloatRows affinities = math->Multiply(w.router, x);
  const auto temperature = static_cast<float>(c.gate_temperature);
  for (float& v : affinities) v = Affinity(v / temperature);
  const auto n = static_cast<size_t>(c.n_experts);
  std::vector<Share> shares(n);
  size_t row = 0;
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i, ++row) {
      const auto of_row =
          std::span<const float>(affinities).subspan(row * n, n);
      std::vector<int32_t> experts = ChooseExperts(of_row, w.bias, c.n_active);
      if (math->tap() != nullptr) {
        math->tap()->OnChoice("experts", layer, run.position + i, &experts);
      }
      const std::vector<float> weights =
          ExpertWeightsOf(of_row, experts, static_cast<float>(c.routed_scale));
      for (size_t e = 0; e < experts.size(); ++e) {
        Share& share = shares[static_cast<size_t>(experts[e])];
        share.rows.push_back(row);
        share.weights.push_back(weights[e]);
      }
    }
  }
  return shares;
}

// W2 (silu(W1 x) * W3 x * weight), a weight a row; null = 1.
FloatRows RunExpert(const Config& c, const ExpertWeights& w,
                    std::span<const float> x, const float* weights,
                    RowMath* math) {
  const FloatRows gate_up = math->Multiply(w.gate_up, x);
  FloatRows gated(gate_up.size() / 2);
  math->ops().GatedSilu(
      {.gate_up = gate_up.data(),
       .n_rows = static_cast<int64_t>(gated.size()) / w.down.w.k(),
       .dim = w.down.w.k(),
       .limit = static_cast<float>(c.swiglu_limit),
       .row_weight = weights,
       .out = gated.data()});
  return math->Multiply(w.down, math->Round(std::move(gated)));
}

}  // namespace

FloatRows RunExperts(const Config& c, uint32_t layer, const FfnWeights& w,
                     std::span<const RowRun> runs, std::span<const float> x,
                     RowMath* math) {
  const auto hidden = static_cast<size_t>(c.hidden_size);
  const std::vector<Share> shares = Route(c, layer, w, runs, x, math);
  FloatRows y(x.size(), 0.0f);
  FloatRows of_share;
  for (size_t e = 0; e < shares.size(); ++e) {
    const Share& share = shares[e];
    if (share.rows.empty()) continue;
    of_share.clear();
    for (const size_t row : share.rows) {
      const float* from = &x[row * hidden];
      of_share.insert(of_share.end(), from, from + hidden);
    }
    const FloatRows out =
        RunExpert(c, w.experts[e], of_share, share.weights.data(), math);
    for (size_t i = 0; i < share.rows.size(); ++i) {
      float* to = &y[share.rows[i] * hidden];
      for (size_t j = 0; j < hidden; ++j) to[j] += out[i * hidden + j];
    }
  }
  if (w.shared) {
    const FloatRows out = RunExpert(c, *w.shared, x, nullptr, math);
    for (size_t i = 0; i < y.size(); ++i) y[i] += out[i];
  }
  return math->Round(std::move(y));
}

}  // namespace torpor::replay::deepseek_v41
