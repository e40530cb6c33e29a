// SPDX-License-Identifier: Apache-2.0

#include "kernels/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/top_k.h"

namespace torpor::kernels {
namespace {

// log(1 + e^x) without overflow above and without loss far below 0.
float Affinity(float logit) {
  const double x = logit;
  const double softplus =
      std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  return static_cast<float>(std::sqrt(std::isnan(logit) ? x : softplus));
}

}  // namespace

void ChooseExpertsRef(const ChooseExpertsParams& p) {
  std::vector<float> biased(static_cast<size_t>(p.n_experts));
  std::vector<int32_t> best;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    float* affinities = p.affinities + row * p.n_experts;
    for (int64_t e = 0; e < p.n_experts; ++e) {
      affinities[e] = Affinity(affinities[e] / p.temperature);
      biased[static_cast<size_t>(e)] = affinities[e] + p.bias[e];
    }
    best.resize(biased.size());
    std::iota(best.begin(), best.end(), 0);
    KeepBest(biased.data(), p.k, &best);
    std::copy(best.begin(), best.end(), p.experts + row * p.k);
  }
}

void ChooseSoftmaxExpertsRef(const ChooseSoftmaxExpertsParams& p) {
  std::vector<int32_t> best;
  for (int64_t row = 0; row < p.n_rows; ++row) {
    float* affinities = p.affinities + row * p.n_experts;
    best.resize(static_cast<size_t>(p.n_experts));
    std::iota(best.begin(), best.end(), 0);
    KeepBest(affinities, p.k, &best);
    std::copy(best.begin(), best.end(), p.experts + row * p.k);
    float highest = -INFINITY;
    for (int64_t e = 0; e < p.n_experts; ++e) {
      highest = std::fmax(highest, affinities[e]);
    }
    for (int64_t e = 0; e < p.n_experts; ++e) {
      affinities[e] =
          static_cast<float>(std::exp(double{affinities[e]} - highest));
    }
  }
}

void GroupExpertsRef(const GroupExpertsParams& p) {
  const int64_t n_entries = p.n_rows * p.k;
  std::fill_n(p.first, p.n_experts + 1, 0);
  for (int64_t i = 0; i < n_entries; ++i) ++p.first[p.experts[i] + 1];
  for (int64_t e = 0; e < p.n_experts; ++e) p.first[e + 1] += p.first[e];
  std::vector<int32_t> next(p.first, p.first + p.n_experts);
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const int32_t* experts = p.experts + row * p.k;
    const float* affinities = p.affinities + row * p.n_experts;
    float sum = 0;
    for (int64_t i = 0; i < p.k; ++i) sum += affinities[experts[i]];
    for (int64_t i = 0; i < p.k; ++i) {
      const int32_t entry = next[static_cast<size_t>(experts[i])]++;
      p.rows[entry] = static_cast<int32_t>(row);
      p.weights[entry] = affinities[experts[i]] / (sum + 1e-20f) * p.scale;
      p.entries[row * p.k + i] = entry;
    }
  }
}

void BiasExpertsRef(const BiasExpertsParams& p) {
  for (int64_t e = 0; e < p.n_experts; ++e) {
    const float* bias = p.bias + e * p.dim;
    for (int64_t entry = p.first[e]; entry < p.first[e + 1]; ++entry) {
      float* x = p.x + entry * p.dim;
      const float weight = p.weights == nullptr ? 1.0f : p.weights[entry];
      for (int64_t j = 0; j < p.dim; ++j) x[j] = (x[j] + bias[j]) * weight;
    }
  }
}

void SumExpertsRef(const SumExpertsParams& p) {
  for (int64_t row = 0; row < p.n_rows; ++row) {
    float* out = p.out + row * p.dim;
    std::fill_n(out, p.dim, 0.0f);
    for (int64_t i = 0; i < p.k; ++i) {
      const float* x = p.x + p.entries[row * p.k + i] * p.dim;
      for (int64_t j = 0; j < p.dim; ++j) out[j] += x[j];
    }
    if (p.shared == nullptr) continue;
    const float* shared = p.shared + row * p.dim;
    for (int64_t j = 0; j < p.dim; ++j) out[j] += shared[j];
  }
}

}  // namespace torpor::kernels
