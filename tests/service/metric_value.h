// SPDX-License-Identifier: Apache-2.0
//
// What a daemon's metrics say, read from their text.

#ifndef TORPOR_TESTS_SERVICE_METRIC_VALUE_H_
#define TORPOR_TESTS_SERVICE_METRIC_VALUE_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace torpor::service {

// Prefetches of which `event` was counted; 0 before the first.
inline uint64_t PrefetchCount(const std::string& metrics,
                              const std::string& event) {
  const std::string name =
      absl::StrCat("torpor_prefetches_total{event=\"", event, "\"} ");
  const size_t at = metrics.find(name);
  return at == std::string::npos
             ? 0
             : std::stoull(metrics.substr(at + name.size()));
}

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_METRIC_VALUE_H_
