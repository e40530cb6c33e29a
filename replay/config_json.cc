// SPDX-License-Identifier: Apache-2.0

#include "replay/config_json.h"

#include "absl/strings/str_format.h"

namespace torpor::replay {

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text,
                                               std::string_view what) {
  nlohmann::json parsed =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded() || !parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s", std::string(what),
        parsed.is_discarded() ? "not valid JSON" : "not a JSON object"));
  }
  return parsed;
}

void ConfigReader::WrongType(const char* key, std::string_view wanted) {
  Fail(absl::InvalidArgumentError(
      absl::StrFormat("config key '%s': got %s, wanted %s", key,
                      object_.at(key).dump(), std::string(wanted))));
}

int64_t ConfigReader::Int(const char* key, int64_t fallback, int64_t least,
                          int64_t most) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number_integer() || value.get<int64_t>() < least ||
      value.get<int64_t>() > most) {
    WrongType(key, absl::StrFormat("an integer of [%d, %d]", least, most));
    return fallback;
  }
  return value.get<int64_t>();
}

double ConfigReader::Number(const char* key, double fallback) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_number()) {
    WrongType(key, "a number");
    return fallback;
  }
  return value.get<double>();
}

bool ConfigReader::Bool(const char* key, bool fallback) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  if (!value.is_boolean()) {
    WrongType(key, "true or false");
    return fallback;
  }
  return value.get<bool>();
}

std::string ConfigReader::String(const char* key, std::string_view fallback) {
  if (!Has(key)) return std::string(fallback);
  const nlohmann::json& value = object_.at(key);
  if (!value.is_string()) {
    WrongType(key, "a string");
    return std::string(fallback);
  }
  return value.get<std::string>();
}

}  // namespace torpor::replay
