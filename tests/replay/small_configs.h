// SPDX-License-Identifier: Apache-2.0
//
// Small config.json documents of any family, and what becomes of them.

#ifndef TORPOR_TESTS_REPLAY_SMALL_CONFIGS_H_
#define TORPOR_TESTS_REPLAY_SMALL_CONFIGS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "replay/families.h"

namespace torpor::replay {

using nlohmann::json;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Eight layers of 2 KV heads of 16, window 32 where the family has one.
inline json Small(const std::string& model_type) {
  return {{"model_type", model_type},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"num_hidden_layers", 8},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"sliding_window", 32},
          {"max_position_embeddings", 1000}};
}

inline json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

inline json Without(json config, const char* key) {
  config.erase(key);
  return config;
}

inline absl::Status Refused(const json& config) {
  return LayoutFromConfig(config.dump(), {}).status();
}

inline const json kFull = "full_attention";
inline const json kSliding = "sliding_attention";

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_SMALL_CONFIGS_H_
