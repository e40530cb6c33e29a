// SPDX-License-Identifier: Apache-2.0
//
// Typed reading of a Hugging Face config.json. Errors name the key, what was
// got and what was wanted; the first one sticks, later reads return defaults.
// Only the .cc files of model families include this.

#ifndef TORPOR_REPLAY_CONFIG_JSON_H_
#define TORPOR_REPLAY_CONFIG_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace torpor::replay {

// The whole of a file; kNotFound.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// kInvalidArgument names `what` when the text is no JSON object, has a key
// twice in one object, or nests deeper than a config or header ever does (what
// walks a value recursively may then do so).
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text,
                                               std::string_view what);

// As ParseJsonObject, for what Python writes: its Infinity, -Infinity and NaN
// are read as strings of those names, which no key of a family takes.
absl::StatusOr<nlohmann::json> ParseConfigJson(std::string_view text,
                                               std::string_view what);

class ConfigReader {
 public:
  // `object` outlives the reader.
  explicit ConfigReader(const nlohmann::json& object) : object_(object) {}

  // Present and not null.
  [[nodiscard]] bool Has(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && !it->is_null();
  }
  // Present and null, which some families read as "none" and absence as their
  // default.
  [[nodiscard]] bool IsNull(const char* key) const {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_null();
  }
  [[nodiscard]] const nlohmann::json& at(const char* key) const {
    return object_.at(key);
  }
  [[nodiscard]] const nlohmann::json& object() const { return object_; }

  // The key's value, or the default when absent or null.
  int64_t Int(const char* key, int64_t fallback, int64_t least, int64_t most);
  double Number(const char* key, double fallback);
  // Above 0, and still so in f32.
  double Positive(const char* key, double fallback);
  bool Bool(const char* key, bool fallback);
  std::string String(const char* key, std::string_view fallback);

  // Records that the key, which is present, holds something else than wanted.
  void WrongType(const char* key, std::string_view wanted);

  // Records an error of the caller's own; the first one sticks.
  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  [[nodiscard]] const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json& object_;
  absl::Status status_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_CONFIG_JSON_H_
