// SPDX-License-Identifier: Apache-2.0
//
// One key=value line per event. Values are quoted where they need it; session
// ids are data and may hold any byte.

#ifndef TORPOR_SERVICE_LOG_H_
#define TORPOR_SERVICE_LOG_H_

#include <spdlog/common.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace torpor::service {

// `level` is a name of spdlog's: "info", "warn", "debug", "off".
absl::Status StartLog(const std::string& level);

void LogEvent(
    spdlog::level::level_enum level, std::string_view event,
    std::initializer_list<std::pair<std::string_view, std::string>> fields);

// A call that ended. Bad requests are not the daemon's trouble: debug level.
void LogCall(std::string_view method, const absl::Status& status,
             double seconds);

// `text` as a value of a key=value line.
std::string Quoted(std::string_view text);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_LOG_H_
