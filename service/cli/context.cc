// SPDX-License-Identifier: Apache-2.0

#include "service/cli/context.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service::cli {

absl::StatusOr<Client*> Context::Connect() {
  if (connected_ == nullptr) {
    TORPOR_ASSIGN_OR_RETURN(connected_, Client::Connect(client));
  }
  return connected_.get();
}

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    std::cout << line << '\n';
  }
}

std::string Bytes(uint64_t n) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(n);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", n)
                   : absl::StrFormat("%.3g %s", value, kUnits[unit]);
}

std::string Milliseconds(uint64_t microseconds) {
  return absl::StrFormat("%.1f ms", static_cast<double>(microseconds) / 1000);
}

std::string ShowId(std::string_view id) { return absl::CEscape(ToAbsl(id)); }

std::string ShowTime(int64_t unix_seconds) {
  if (unix_seconds == 0) return "-";
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  return text.data();
}

void ShowProgress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::cerr << "\r\033[K" << text << std::flush;
}

nlohmann::json ToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options)
           .ok()) {
    return nullptr;
  }
  return nlohmann::json::parse(text, nullptr, false);
}

void PrintJson(const nlohmann::json& json) {
  // Bytes that are no UTF-8 (a session id may hold any) are replaced.
  std::cout << json.dump(2, ' ', false,
                         nlohmann::json::error_handler_t::replace)
            << '\n';
}

absl::StatusOr<v1::ReplayMode> ParseReplayMode(const std::string& option,
                                               const std::string& name) {
  static const auto* const modes = new std::map<std::string, v1::ReplayMode>{
      {"auto", v1::REPLAY_MODE_AUTO},
      {"bounded", v1::REPLAY_MODE_BOUNDED},
      {"exact", v1::REPLAY_MODE_EXACT},
      {"snapshot", v1::REPLAY_MODE_SNAPSHOT},
      {"cold", v1::REPLAY_MODE_COLD}};
  const auto it = modes->find(name);
  if (it == modes->end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: got '%s', wanted auto, bounded, exact, snapshot or cold", option,
        name));
  }
  return it->second;
}

absl::StatusOr<std::string> AbsolutePath(const std::string& option,
                                         const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  if (!path.empty() && !error) return absolute.lexically_normal().string();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: got '%s', wanted a path", option, path));
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("open %s: %s", path, std::strerror(errno)));
  }
  std::ostringstream text;
  text << in.rdbuf();
  // A directory opens, and then gives nothing.
  if (in.bad() || IsDirectory(path)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("read %s: no file that can be read", path));
  }
  return text.str();
}

absl::StatusOr<std::vector<uint32_t>> ReadTokenFile(const std::string& path) {
  TORPOR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
  if (parsed.is_object() && parsed.contains("tokens")) {
    parsed = nlohmann::json(parsed["tokens"]);
  }
  if (!parsed.is_array()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: wanted a JSON list of token ids, or an object with 'tokens'",
        path));
  }
  std::vector<uint32_t> ids;
  for (const nlohmann::json& id : parsed) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: token %d is %s, wanted an id of 0 to %d", path,
                          ids.size(), id.dump(), UINT32_MAX));
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

}  // namespace torpor::service::cli
