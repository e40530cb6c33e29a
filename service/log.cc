// SPDX-License-Identifier: Apache-2.0

#include "service/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cctype>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {

absl::Status StartLog(const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "log level: got '%s', wanted trace, debug, info, warning, error, "
        "critical or off",
        level));
  }
  auto logger = std::make_shared<spdlog::logger>(
      "torpord", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("time=%Y-%m-%dT%H:%M:%S.%fZ level=%l %v",
                      spdlog::pattern_time_type::utc);
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  bool plain = !text.empty();
  for (const char c : text) {
    plain =
        plain && (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                  std::string_view("-_./:+").find(c) != std::string_view::npos);
  }
  if (plain) return std::string(text);
  return absl::StrFormat("\"%s\"", absl::CEscape(ToAbsl(text)));
}

void LogEvent(
    spdlog::level::level_enum level, std::string_view event,
    std::initializer_list<std::pair<std::string_view, std::string>> fields) {
  if (!spdlog::should_log(level)) return;
  std::string line = "event=" + std::string(event);
  for (const auto& [key, value] : fields) {
    line += ' ';
    line.append(key);
    line += '=';
    line += Quoted(value);
  }
  spdlog::log(level, "{}", line);
}

void LogCall(std::string_view method, const absl::Status& status,
             double seconds) {
  spdlog::level::level_enum level = spdlog::level::debug;
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      level = spdlog::level::err;
      break;
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      level = spdlog::level::warn;
      break;
    default:
      break;
  }
  LogEvent(level, "call",
           {{"method", std::string(method)},
            {"code", absl::StatusCodeToString(status.code())},
            {"ms", absl::StrFormat("%.3f", seconds * 1e3)},
            {"message", std::string(status.message())}});
}

}  // namespace torpor::service
