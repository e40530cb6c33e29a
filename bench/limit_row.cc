// SPDX-License-Identifier: Apache-2.0

#include "bench/limit_row.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "bench/table.h"

namespace torpor::bench {
namespace {

// "-" for a ratio that is only shown.
std::string MustText(const LimitRow& row) {
  if (row.at_least && row.must == 0) return "-";
  return absl::StrFormat("%s %.3g", row.at_least ? ">=" : "<=", row.must);
}

}  // namespace

std::string LimitTable(const std::vector<LimitRow>& rows) {
  std::vector<std::vector<std::string>> table = {
      {"", "measured", "limit", "of", "ratio", "must", "holds"}};
  for (const LimitRow& row : rows) {
    if (!row.not_measured.empty()) {
      table.push_back({row.what, "not measured", "", row.not_measured, "",
                       MustText(row), ""});
      continue;
    }
    table.push_back({row.what,
                     absl::StrFormat("%.4g %s", row.measured, row.unit),
                     absl::StrFormat("%.4g %s", row.limit, row.unit),
                     row.limit_name, absl::StrFormat("%.3f", row.ratio()),
                     MustText(row), row.holds() ? "yes" : "NO"});
  }
  return AlignedTable(table);
}

nlohmann::json LimitsJson(const std::vector<LimitRow>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const LimitRow& row : rows) {
    nlohmann::json entry = {{"what", row.what},
                            {"unit", row.unit},
                            {"limit_is", row.limit_name},
                            {"must", row.must},
                            {"must_be", row.at_least ? "at least" : "at most"}};
    if (!row.not_measured.empty()) {
      entry["not_measured"] = row.not_measured;
    } else {
      entry["measured"] = row.measured;
      entry["limit"] = row.limit;
      entry["ratio"] = row.ratio();
      entry["holds"] = row.holds();
    }
    out.push_back(entry);
  }
  return out;
}

BarPlot LimitsPlot(const std::vector<LimitRow>& rows) {
  BarPlot plot{"Measured / limit", {"ratio", "must be"}, {}};
  for (const LimitRow& row : rows) {
    if (!row.not_measured.empty()) continue;
    plot.groups.push_back(
        {row.what,
         {{row.ratio(), absl::StrFormat("%.3f%s", row.ratio(),
                                        row.holds() ? "" : " DOES NOT HOLD")},
          {row.must, MustText(row)}}});
  }
  return plot;
}

bool AllHold(const std::vector<LimitRow>& rows) {
  return std::all_of(rows.begin(), rows.end(),
                     [](const LimitRow& row) { return row.holds(); });
}

}  // namespace torpor::bench
