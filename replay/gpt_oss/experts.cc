// SPDX-License-Identifier: Apache-2.0

#include "replay/gpt_oss/experts.h"

#include <vector>

namespace torpor::replay::gpt_oss {
namespace {

std::vector<const kernels::PackedMatrix*> PointersTo(
    const std::vector<kernels::PackedMatrix>& matrices) {
  std::vector<const kernels::PackedMatrix*> pointers;
  pointers.reserve(matrices.size());
  for (const kernels::PackedMatrix& m : matrices) pointers.push_back(&m);
  return pointers;
}

}  // namespace

Experts::Experts(const Config& config, kernels::DType dtype, kernels::Ops* ops)
    : c_(config),
      dtype_(dtype),
      ops_(*ops),
      experts_(ops),
      first_(ops),
      rows_(ops),
      entries_(ops),
      weights_(ops),
      gate_up_(ops),
      gated_(ops),
      down_(ops),
      sum_(ops) {}

int64_t Experts::WorkFloats() const {
  return c_.n_active * (4 + 3 * c_.intermediate_size + c_.hidden_size) +
         c_.hidden_size;
}

void Experts::Route(int64_t n_rows, Floats* logits) {
  const auto n_entries = static_cast<size_t>(n_rows * c_.n_active);
  experts_.Resize(n_entries);
  first_.Resize(static_cast<size_t>(c_.n_experts) + 1);
  rows_.Resize(n_entries);
  entries_.Resize(n_entries);
  weights_.Resize(n_entries);
  ops_.ChooseSoftmaxExperts({.affinities = logits->data(),
                             .n_rows = n_rows,
                             .n_experts = c_.n_experts,
                             .k = c_.n_active,
                             .experts = experts_.data()});
  ops_.GroupExperts({.affinities = logits->data(),
                     .n_rows = n_rows,
                     .n_experts = c_.n_experts,
                     .k = c_.n_active,
                     .experts = experts_.data(),
                     .first = first_.data(),
                     .rows = rows_.data(),
                     .weights = weights_.data(),
                     .entries = entries_.data()});
}

const Floats& Experts::Run(const ExpertWeights& w, int64_t n_rows,
                           Floats* logits, const void* x) {
  Route(n_rows, logits);
  const int64_t n_entries = n_rows * c_.n_active;
  const auto entries = static_cast<size_t>(n_entries);
  const int64_t dim = c_.intermediate_size;
  const auto gate_up = PointersTo(w.gate_up);
  const auto down = PointersTo(w.down);

  gate_up_.Resize(entries * static_cast<size_t>(2 * dim));
  kernels::GroupedGemmParams gemm{.a = x,
                                  .row_index = rows_.data(),
                                  .group_begin = first_.data(),
                                  .n_groups = c_.n_experts,
                                  .n_entries = n_entries,
                                  .b = gate_up.data(),
                                  .c = gate_up_.data()};
  ops_.GroupedGemm(gemm);
  kernels::BiasExpertsParams bias{.x = gate_up_.data(),
                                  .first = first_.data(),
                                  .n_experts = c_.n_experts,
                                  .n_entries = n_entries,
                                  .dim = 2 * dim,
                                  .bias = w.gate_up_bias.data()};
  ops_.BiasExperts(bias);
  gated_.Resize(static_cast<uint64_t>(n_entries), dim, dtype_);
  ops_.GatedSilu({.gate_up = gate_up_.data(),
                  .n_rows = n_entries,
                  .dim = dim,
                  .limit = static_cast<float>(c_.swiglu_limit),
                  .out = gated_.data(),
                  .out_dtype = dtype_,
                  .slope = static_cast<float>(c_.swiglu_alpha),
                  .up_offset = 1.0f});

  down_.Resize(entries * static_cast<size_t>(c_.hidden_size));
  gemm.a = gated_.data();
  gemm.row_index = nullptr;
  gemm.b = down.data();
  gemm.c = down_.data();
  ops_.GroupedGemm(gemm);
  bias.x = down_.data();
  bias.dim = c_.hidden_size;
  bias.bias = w.down_bias.data();
  bias.weights = weights_.data();
  ops_.BiasExperts(bias);
  sum_.Resize(static_cast<size_t>(n_rows * c_.hidden_size));
  ops_.SumExperts({.x = down_.data(),
                   .entries = entries_.data(),
                   .n_rows = n_rows,
                   .k = c_.n_active,
                   .dim = c_.hidden_size,
                   .out = sum_.data()});
  return sum_;
}

}  // namespace torpor::replay::gpt_oss
