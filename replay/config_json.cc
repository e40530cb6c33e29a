// SPDX-License-Identifier: Apache-2.0

#include "replay/config_json.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include "absl/strings/str_format.h"

namespace torpor::replay {
namespace {

// Configs of transformers nest four or five deep.
constexpr int kMaxDepth = 64;

// A value as a message shows it: a list of layers may have thousands of
// entries.
std::string Shown(const nlohmann::json& value) {
  constexpr size_t kMost = 120;
  std::string text = value.dump();
  if (text.size() <= kMost) return text;
  // Not in the middle of a character.
  size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return text.substr(0, end) + "...";
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("open %s: %s", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text,
                                               std::string_view what) {
  const auto bad = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s", std::string(what), why));
  };
  // The parser takes a NUL for the end of the text.
  if (text.find('\0') != std::string_view::npos) return bad("not valid JSON");
  std::string fault;
  // Keys of the objects that are open, by depth.
  std::vector<std::set<std::string>> keys(kMaxDepth + 1);
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event,
                         const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) {
      if (fault.empty()) {
        fault = absl::StrFormat("nests deeper than %d", kMaxDepth);
      }
      return false;
    }
    const auto at = static_cast<size_t>(depth);
    if (event == Event::object_start) {
      keys[at].clear();
    } else if (event == Event::key) {
      // The depth of a key is one more than that of its object.
      const auto name = value.get<std::string>();
      if (!keys[at - 1].insert(name).second && fault.empty()) {
        fault = absl::StrFormat("key '%s' stands twice in one object", name);
      }
    }
    return true;
  };
  nlohmann::json parsed =
      nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (!fault.empty()) return bad(fault);
  if (parsed.is_discarded()) return bad("not valid JSON");
  if (!parsed.is_object()) return bad("not a JSON object");
  return parsed;
}

absl::StatusOr<nlohmann::json> ParseConfigJson(std::string_view text,
                                               std::string_view what) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    size_t taken = 1;
    bool quote = false;
    if (in_string) {
      // An escaped character, which may be a quote, goes with its backslash.
      if (rest[0] == '\\' && rest.size() > 1) taken = 2;
      if (rest[0] == '"') in_string = false;
    } else if (rest[0] == '"') {
      in_string = true;
    } else {
      for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
        if (!rest.starts_with(word)) continue;
        taken = word.size();
        quote = true;
        break;
      }
    }
    if (quote) quoted += '"';
    quoted += rest.substr(0, taken);
    if (quote) quoted += '"';
    i += taken;
  }
  return ParseJsonObject(quoted, what);
}

void ConfigReader::WrongType(const char* key, std::string_view wanted) {
  Fail(absl::InvalidArgumentError(
      absl::StrFormat("config key '%s': got %s, wanted %s", key,
                      Shown(object_.at(key)), std::string(wanted))));
}

int64_t ConfigReader::Int(const char* key, int64_t fallback, int64_t least,
                          int64_t most) {
  if (!Has(key)) return fallback;
  const nlohmann::json& value = object_.at(key);
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= uint64_t{INT64_MAX}
                        : value.is_number_integer();
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most) {
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

double ConfigReader::Positive(const char* key, double fallback) {
  using F32 = std::numeric_limits<float>;
  const double value = Number(key, fallback);
  if (!(value >= F32::min() && value <= F32::max())) {
    Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': got %g, wanted a number above 0 that f32 can hold",
        key, value)));
  }
  return value;
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
