// SPDX-License-Identifier: Apache-2.0
//
// One row of a benchmark's table: what was measured against what bounds it,
// both sides in one run. And what benchmarks do with times.

#ifndef TORPOR_BENCH_LIMIT_ROW_H_
#define TORPOR_BENCH_LIMIT_ROW_H_

#include <algorithm>
#include <chrono>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bench/svg.h"

namespace torpor::bench {

struct LimitRow {
  std::string what;
  // In `unit`.
  double measured = 0;
  double limit = 0;
  std::string unit;
  // What `limit` is.
  std::string limit_name;
  // measured / limit must be at least this, or at most it.
  double must = 0;
  bool at_least = true;
  // Why there is no figure; empty when there is one.
  std::string not_measured = {};

  [[nodiscard]] double ratio() const { return measured / limit; }
  // Nothing is claimed of what was not measured.
  [[nodiscard]] bool holds() const {
    if (!not_measured.empty()) return true;
    return at_least ? ratio() >= must : ratio() <= must;
  }
};

std::string LimitTable(const std::vector<LimitRow>& rows);
nlohmann::json LimitsJson(const std::vector<LimitRow>& rows);
// Ratios beside what they must be.
BarPlot LimitsPlot(const std::vector<LimitRow>& rows);
bool AllHold(const std::vector<LimitRow>& rows);

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds that `body` takes.
template <typename Body>
double SecondsOf(Body&& body) {
  const auto begin = std::chrono::steady_clock::now();
  std::forward<Body>(body)();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_LIMIT_ROW_H_
