// SPDX-License-Identifier: Apache-2.0
//
// Experts: their choice by rows, their lists, and what they gave.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/experts_cuda.h"
#include "tests/gpu_check/kernel_cases.h"

namespace torpor::gpu_check {
namespace {

constexpr int64_t kExpertsOfRow = 6;

// Rows with their experts, by the references.
struct Experts {
  explicit Experts(bool tiny)
      : rows(tiny ? 4 : 4096),
        n_experts(tiny ? 12 : 256),
        logits(Normals(rows * n_experts, 81)),
        affinities(logits),
        bias(Normals(n_experts, 82)),
        experts(static_cast<size_t>(rows * kExpertsOfRow)),
        first(static_cast<size_t>(n_experts) + 1),
        entry_rows(experts.size()),
        weights(experts.size()),
        entries(experts.size()) {
    kernels::ChooseExpertsRef({.affinities = affinities.data(),
                               .n_rows = rows,
                               .n_experts = n_experts,
                               .bias = bias.data(),
                               .k = kExpertsOfRow,
                               .experts = experts.data()});
    kernels::GroupExpertsRef({.affinities = affinities.data(),
                              .n_rows = rows,
                              .n_experts = n_experts,
                              .scale = 1.5f,
                              .k = kExpertsOfRow,
                              .experts = experts.data(),
                              .first = first.data(),
                              .rows = entry_rows.data(),
                              .weights = weights.data(),
                              .entries = entries.data()});
  }
  const int64_t rows, n_experts;
  const std::vector<float> logits;
  std::vector<float> affinities;
  const std::vector<float> bias;
  std::vector<int32_t> experts, first, entry_rows;
  std::vector<float> weights;
  std::vector<int32_t> entries;
};

std::string Text(const Experts& e) {
  return absl::StrFormat("%d rows, %d of %d experts", e.rows, kExpertsOfRow,
                         e.n_experts);
}

// What differs; a last bit of an affinity may exchange two experts.
std::string OtherChoices(const std::vector<int32_t>& got,
                         const std::vector<int32_t>& wanted) {
  const auto n = static_cast<int64_t>(wanted.size());
  int64_t other_rows = 0;
  for (int64_t at = 0; at < n; at += kExpertsOfRow) {
    other_rows += std::equal(got.begin() + at, got.begin() + at + kExpertsOfRow,
                             wanted.begin() + at)
                      ? 0
                      : 1;
  }
  if (other_rows * kExpertsOfRow <= n / 200) return "";
  return absl::StrFormat("%d rows have other experts", other_rows);
}

KernelCase ChooseExperts(bool tiny) {
  const auto e = std::make_shared<const Experts>(tiny);
  const auto affinities = OnDevice(e->logits);
  const auto bias = OnDevice(e->bias);
  const auto experts = OnDevice<int32_t>(e->rows * kExpertsOfRow);
  return {
      .shape = Text(*e),
      // Comparisons are no multiply-adds.
      .floor = {.bytes = 4.0 * static_cast<double>(e->rows * (2 * e->n_experts +
                                                              kExpertsOfRow))},
      .launch =
          [=] {
            return kernels::ChooseExpertsCuda({.affinities = affinities->data(),
                                               .n_rows = e->rows,
                                               .n_experts = e->n_experts,
                                               .bias = bias->data(),
                                               .k = kExpertsOfRow,
                                               .experts = experts->data()},
                                              nullptr);
          },
      .fault =
          [=] {
            const std::string other =
                OtherChoices(experts->Download(), e->experts);
            return other.empty()
                       ? Differ(affinities->Download(), e->affinities, 1e-5)
                       : other;
          }};
}

KernelCase ChooseSoftmaxExperts(bool tiny) {
  const auto e = std::make_shared<const Experts>(tiny);
  const auto affinities = OnDevice(e->logits);
  const auto experts = OnDevice<int32_t>(e->rows * kExpertsOfRow);
  const kernels::ChooseSoftmaxExpertsParams shape{
      .n_rows = e->rows, .n_experts = e->n_experts, .k = kExpertsOfRow};
  return {
      .shape = Text(*e),
      .floor = {.bytes = 4.0 * static_cast<double>(e->rows * (2 * e->n_experts +
                                                              kExpertsOfRow))},
      .launch =
          [=]() {
            kernels::ChooseSoftmaxExpertsParams p = shape;
            p.affinities = affinities->data();
            p.experts = experts->data();
            return kernels::ChooseSoftmaxExpertsCuda(p, nullptr);
          },
      .fault =
          [=] {
            std::vector<float> wanted = e->logits;
            std::vector<int32_t> chosen(e->experts.size());
            kernels::ChooseSoftmaxExpertsParams p = shape;
            p.affinities = wanted.data();
            p.experts = chosen.data();
            kernels::ChooseSoftmaxExpertsRef(p);
            const std::string other = OtherChoices(experts->Download(), chosen);
            return other.empty() ? Differ(affinities->Download(), wanted, 1e-5)
                                 : other;
          }};
}

KernelCase GroupExperts(bool tiny) {
  const auto e = std::make_shared<const Experts>(tiny);
  const int64_t n = e->rows * kExpertsOfRow;
  const auto affinities = OnDevice(e->affinities);
  const auto experts = OnDevice(e->experts);
  const auto first = OnDevice<int32_t>(e->n_experts + 1);
  const auto rows = OnDevice<int32_t>(n);
  const auto weights = OnDevice<float>(n);
  const auto entries = OnDevice<int32_t>(n);
  return {.shape = Text(*e),
          // A choice, its affinity, and what a list holds of it.
          .floor = {.bytes = 20.0 * static_cast<double>(n)},
          .launch =
              [=] {
                return kernels::GroupExpertsCuda(
                    {.affinities = affinities->data(),
                     .n_rows = e->rows,
                     .n_experts = e->n_experts,
                     .scale = 1.5f,
                     .k = kExpertsOfRow,
                     .experts = experts->data(),
                     .first = first->data(),
                     .rows = rows->data(),
                     .weights = weights->data(),
                     .entries = entries->data()},
                    nullptr);
              },
          .fault =
              [=] {
                std::string fault = Differ(first->Download(), e->first);
                if (fault.empty())
                  fault = Differ(rows->Download(), e->entry_rows);
                if (fault.empty()) {
                  fault = Differ(weights->Download(), e->weights, 1e-6);
                }
                return fault.empty() ? Differ(entries->Download(), e->entries)
                                     : fault;
              }};
}

KernelCase BiasExperts(bool tiny) {
  const auto e = std::make_shared<const Experts>(tiny);
  const int64_t dim = tiny ? 12 : 2048;
  const int64_t n = e->rows * kExpertsOfRow;
  const auto x = Normals(n * dim, 85);
  const auto bias = Normals(e->n_experts * dim, 86);
  const auto device_x = OnDevice(x);
  const auto first = OnDevice(e->first);
  const auto biases = OnDevice(bias);
  const auto weights = OnDevice(e->weights);
  const kernels::BiasExpertsParams shape{
      .n_experts = e->n_experts, .n_entries = n, .dim = dim};
  return {.shape = absl::StrFormat("%s, %d", Text(*e), dim),
          .floor = {.bytes = 4.0 *
                             static_cast<double>((2 * n + e->n_experts) * dim)},
          .launch =
              [=] {
                kernels::BiasExpertsParams p = shape;
                p.x = device_x->data();
                p.first = first->data();
                p.bias = biases->data();
                p.weights = weights->data();
                return kernels::BiasExpertsCuda(p, nullptr);
              },
          .fault =
              [=] {
                std::vector<float> wanted = x;
                kernels::BiasExpertsParams p = shape;
                p.x = wanted.data();
                p.first = e->first.data();
                p.bias = bias.data();
                p.weights = e->weights.data();
                kernels::BiasExpertsRef(p);
                return Differ(device_x->Download(), wanted, 1e-6);
              }};
}

KernelCase SumExperts(bool tiny) {
  const auto e = std::make_shared<const Experts>(tiny);
  const int64_t dim = tiny ? 12 : 2048;
  const auto x = Normals(e->rows * kExpertsOfRow * dim, 83);
  const auto shared = Normals(e->rows * dim, 84);
  const auto device_x = OnDevice(x);
  const auto places = OnDevice(e->entries);
  const auto device_shared = OnDevice(shared);
  const auto y = OnDevice<float>(e->rows * dim);
  return {.shape = absl::StrFormat("%s, %d", Text(*e), dim),
          .floor = {.bytes = 4.0 * static_cast<double>(e->rows * dim *
                                                       (kExpertsOfRow + 2))},
          .launch =
              [=] {
                return kernels::SumExpertsCuda({.x = device_x->data(),
                                                .entries = places->data(),
                                                .n_rows = e->rows,
                                                .k = kExpertsOfRow,
                                                .dim = dim,
                                                .shared = device_shared->data(),
                                                .out = y->data()},
                                               nullptr);
              },
          .fault =
              [=] {
                auto wanted = Zeros(e->rows * dim);
                kernels::SumExpertsRef({.x = x.data(),
                                        .entries = e->entries.data(),
                                        .n_rows = e->rows,
                                        .k = kExpertsOfRow,
                                        .dim = dim,
                                        .shared = shared.data(),
                                        .out = wanted.data()});
                return Differ(y->Download(), wanted);
              }};
}

}  // namespace

std::vector<NamedCase> ExpertCases() {
  return {{"ChooseExperts", ChooseExperts},
          {"ChooseSoftmaxExperts", ChooseSoftmaxExperts},
          {"GroupExperts", GroupExperts},
          {"BiasExperts", BiasExperts},
          {"SumExperts", SumExperts}};
}

}  // namespace torpor::gpu_check
