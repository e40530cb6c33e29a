// SPDX-License-Identifier: Apache-2.0
//
// Seeded sampling: temperature, top-k, top-p. The same logits and state give
// the same token everywhere; the state travels in client_state.

#ifndef TORPOR_SERVICE_CLI_SAMPLER_H_
#define TORPOR_SERVICE_CLI_SAMPLER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>

#include "absl/status/statusor.h"

namespace torpor::service::cli {

struct SamplerOptions {
  // 0 = the most likely token.
  double temperature = 0.8;
  // 0 = all.
  uint32_t top_k = 0;
  // 1 = all.
  double top_p = 1.0;
  uint64_t seed = 1;
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options)
      : options_(options), state_(options.seed) {}

  // Draws from softmax(logits / temperature), cut to top_k and top_p. Ties
  // break towards the lower id.
  uint32_t Next(std::span<const float> logits);

  [[nodiscard]] nlohmann::json Save() const;
  static absl::StatusOr<Sampler> Load(const nlohmann::json& saved);

 private:
  // SplitMix64 (Steele, Lea, Flood 2014): one 64-bit word of state.
  uint64_t Draw();

  SamplerOptions options_;
  uint64_t state_;
};

}  // namespace torpor::service::cli

#endif  // TORPOR_SERVICE_CLI_SAMPLER_H_
