// SPDX-License-Identifier: Apache-2.0

#include "service/cli/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace torpor::service::cli {

uint64_t Sampler::Draw() {
  state_ += 0x9e3779b97f4a7c15ULL;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint32_t Sampler::Next(std::span<const float> logits) {
  std::vector<uint32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto more_likely = [&](uint32_t a, uint32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options_.temperature <= 0) {
    return *std::min_element(ids.begin(), ids.end(), more_likely);
  }
  std::sort(ids.begin(), ids.end(), more_likely);
  if (options_.top_k != 0 && options_.top_k < ids.size()) {
    ids.resize(options_.top_k);
  }
  const double largest = logits[ids[0]];
  std::vector<double> weights;
  double sum = 0;
  for (const uint32_t id : ids) {
    weights.push_back(std::exp((logits[id] - largest) / options_.temperature));
    sum += weights.back();
  }
  size_t kept = 0;
  double mass = 0;
  while (kept < weights.size() && (kept == 0 || mass < options_.top_p * sum)) {
    mass += weights[kept++];
  }
  // 53 random bits as a double in [0, 1).
  const double u = static_cast<double>(Draw() >> 11) * 0x1p-53;
  double at = u * mass;
  for (size_t i = 0; i < kept; ++i) {
    at -= weights[i];
    if (at < 0) return ids[i];
  }
  return ids[kept - 1];
}

nlohmann::json Sampler::Save() const {
  return {{"temperature", options_.temperature},
          {"top_k", options_.top_k},
          {"top_p", options_.top_p},
          {"seed", options_.seed},
          {"state", state_}};
}

absl::StatusOr<Sampler> Sampler::Load(const nlohmann::json& saved) {
  for (const char* key : {"temperature", "top_k", "top_p", "seed", "state"}) {
    if (!saved.is_object() || !saved.contains(key) || !saved[key].is_number()) {
      return absl::DataLossError("client state: it holds no sampler");
    }
  }
  Sampler sampler({.temperature = saved["temperature"].get<double>(),
                   .top_k = saved["top_k"].get<uint32_t>(),
                   .top_p = saved["top_p"].get<double>(),
                   .seed = saved["seed"].get<uint64_t>()});
  sampler.state_ = saved["state"].get<uint64_t>();
  return sampler;
}

}  // namespace torpor::service::cli
