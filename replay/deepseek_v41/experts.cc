// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/experts.h"

#include <cassert>
#include <vector>

namespace torpor::replay::deepseek_v41 {

ExpertSite::ExpertSite(const Config& config, RowMath* math)
    : c_(config),
      math_(*math),
      experts_(&math->ops()),
      first_(&math->ops()),
      rows_(&math->ops()),
      entries_(&math->ops()),
      weights_(&math->ops()) {}

FloatRows ExpertSite::Run(uint32_t layer, const FfnWeights& w,
                          std::span<const RowRun> runs, const FloatRows& x) {
  Route(layer, w, runs, x);
  const FloatRows routed = RunRouted(w, x);
  FloatRows shared;
  if (w.shared) shared = RunShared(*w.shared, x);
  FloatRows y = math_.New(x.n_rows(), c_.hidden_size);
  math_.ops().SumExperts({.x = routed.data(),
                          .entries = entries_.data(),
                          .n_rows = static_cast<int64_t>(x.n_rows()),
                          .k = c_.n_active,
                          .dim = c_.hidden_size,
                          .shared = shared.data(),
                          .out = y.data()});
  return math_.Round(std::move(y));
}

void ExpertSite::Route(uint32_t layer, const FfnWeights& w,
                       std::span<const RowRun> runs, const FloatRows& x) {
  FloatRows affinities = math_.Multiply(w.router, x);
  const auto n_rows = static_cast<int64_t>(x.n_rows());
  const auto n_entries = static_cast<size_t>(n_rows * c_.n_active);
  experts_.Resize(n_entries);
  first_.Resize(static_cast<size_t>(c_.n_experts) + 1);
  rows_.Resize(n_entries);
  entries_.Resize(n_entries);
  weights_.Resize(n_entries);
  math_.ops().ChooseExperts(
      {.affinities = affinities.data(),
       .n_rows = n_rows,
       .n_experts = c_.n_experts,
       .temperature = static_cast<float>(c_.gate_temperature),
       .bias = w.bias.data(),
       .k = c_.n_active,
       .experts = experts_.data()});
  ShowChoices(layer, runs);
  math_.ops().GroupExperts({.affinities = affinities.data(),
                            .n_rows = n_rows,
                            .n_experts = c_.n_experts,
                            .scale = static_cast<float>(c_.routed_scale),
                            .k = c_.n_active,
                            .experts = experts_.data(),
                            .first = first_.data(),
                            .rows = rows_.data(),
                            .weights = weights_.data(),
                            .entries = entries_.data()});
}

void ExpertSite::ShowChoices(uint32_t layer, std::span<const RowRun> runs) {
  if (math_.tap() == nullptr) return;
  const auto k = static_cast<ptrdiff_t>(c_.n_active);
  std::vector<int32_t> host(experts_.size());
  const size_t bytes = host.size() * sizeof(int32_t);
  math_.ops().Download(host.data(), experts_.data(), bytes);
  auto at = host.begin();
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i, at += k) {
      std::vector<int32_t> of_row(at, at + k);
      math_.tap()->OnChoice("experts", layer, run.position + i, &of_row);
      assert(of_row.size() == static_cast<size_t>(k));
      std::copy(of_row.begin(), of_row.end(), at);
    }
  }
  math_.ops().Upload(experts_.data(), host.data(), bytes);
}

// W2 (silu(W1 x) * W3 x * weight).
FloatRows ExpertSite::RunRouted(const FfnWeights& w, const FloatRows& x) {
  std::vector<const kernels::PackedMatrix*> gate_up;
  std::vector<const kernels::PackedMatrix*> down;
  for (const ExpertWeights& expert : w.experts) {
    gate_up.push_back(&expert.gate_up.w);
    down.push_back(&expert.down.w);
  }
  const ExpertWeights& first = w.experts[0];
  const auto n_entries = static_cast<int64_t>(x.n_rows()) * c_.n_active;
  kernels::GroupedGemmParams gemm{.group_begin = first_.data(),
                                  .n_groups = c_.n_experts,
                                  .n_entries = n_entries};

  FloatRows up = math_.New(x.n_rows(), c_.n_active * 2 * c_.expert_dim);
  gemm.a = math_.Input(first.gate_up, x);
  gemm.row_index = rows_.data();
  gemm.b = gate_up.data();
  gemm.c = up.data();
  math_.ops().GroupedGemm(gemm);

  FloatRows gated = math_.New(x.n_rows(), c_.n_active * c_.expert_dim);
  math_.ops().GatedSilu({.gate_up = up.data(),
                         .n_rows = n_entries,
                         .dim = c_.expert_dim,
                         .limit = static_cast<float>(c_.swiglu_limit),
                         .row_weight = weights_.data(),
                         .out = gated.data()});
  gated = math_.Round(std::move(gated));

  FloatRows out = math_.New(x.n_rows(), c_.n_active * c_.hidden_size);
  gemm.a = math_.Input(first.down, gated);
  gemm.row_index = nullptr;
  gemm.b = down.data();
  gemm.c = out.data();
  math_.ops().GroupedGemm(gemm);
  return out;
}

FloatRows ExpertSite::RunShared(const ExpertWeights& w, const FloatRows& x) {
  const FloatRows up = math_.Multiply(w.gate_up, x);
  FloatRows gated = math_.New(x.n_rows(), w.down.w.k());
  math_.ops().GatedSilu({.gate_up = up.data(),
                         .n_rows = static_cast<int64_t>(x.n_rows()),
                         .dim = w.down.w.k(),
                         .limit = static_cast<float>(c_.swiglu_limit),
                         .out = gated.data()});
  return math_.Multiply(w.down, math_.Round(std::move(gated)));
}

}  // namespace torpor::replay::deepseek_v41
