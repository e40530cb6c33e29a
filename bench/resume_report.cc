// SPDX-License-Identifier: Apache-2.0

#include "bench/resume_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/table.h"
#include "service/cli/context.h"

namespace torpor::bench {
namespace {

using Case = ResumeResult::Case;

std::string Text(const ResumeResult& r) {
  std::vector<std::vector<std::string>> table = {
      {"tokens", "daemon", "mode", "n", "p50", "p99", "max"}};
  for (const char* phase : ResumeResult::kPhases) {
    table.front().emplace_back(phase);
  }
  for (const char* name : {"from disk", "tokens run", "witness"}) {
    table.front().emplace_back(name);
  }
  for (const Case& c : r.cases) {
    std::vector<std::string> row = {absl::StrFormat("%d", c.n_tokens),
                                    c.variant, c.mode.name};
    for (std::string& cell : c.to_next_token.Cells()) {
      row.push_back(std::move(cell));
    }
    for (const double ms : c.phases) row.push_back(absl::StrFormat("%.2f", ms));
    row.push_back(service::cli::Bytes(c.disk_read));
    row.push_back(absl::StrFormat("%d", c.replayed_tokens));
    row.push_back(c.verdict == "MEASURED"
                      ? absl::StrFormat("error %.2g", c.max_layer_error)
                      : c.verdict);
    table.push_back(std::move(row));
  }
  return absl::StrFormat(
             "%s, %s; milliseconds to the next token, phases are medians\n\n",
             r.layout.family, r.numerics_id) +
         AlignedTable(table) + "\n" + LimitTable(r.Limits());
}

nlohmann::json CaseJson(const Case& c) {
  nlohmann::json json = {{"n_tokens", c.n_tokens},
                         {"variant", c.variant},
                         {"mode", c.mode.name},
                         {"exact", c.exact},
                         {"witness", c.verdict},
                         {"max_layer_error", c.max_layer_error},
                         {"replayed_tokens", c.replayed_tokens},
                         {"bytes_read", c.bytes_read},
                         {"disk_read", c.disk_read},
                         {"to_next_token", c.to_next_token.ToJson()}};
  for (size_t i = 0; i < c.phases.size(); ++i) {
    json["phases_ms"][ResumeResult::kPhases[i]] = c.phases[i];
  }
  return json;
}

}  // namespace

std::vector<LimitRow> ResumeResult::Limits() const {
  std::map<uint64_t, double> cold;
  for (const Case& c : cases) {
    if (c.variant == "hot" && c.mode.mode == replay::ReplayMode::kCold) {
      cold[c.n_tokens] = c.to_next_token.Quantile(0.5);
    }
  }
  std::vector<LimitRow> rows;
  for (const Case& c : cases) {
    const auto it = cold.find(c.n_tokens);
    if (c.variant != "hot" || it == cold.end() ||
        c.mode.mode == replay::ReplayMode::kCold) {
      continue;
    }
    rows.push_back(AgainstCold(layout, c.n_tokens, c.mode,
                               c.to_next_token.Quantile(0.5), it->second));
  }
  return rows;
}

Result ReportOf(const ResumeOptions& options, const ResumeResult& r) {
  Result out;
  const std::vector<LimitRow> limits = r.Limits();
  out.json = {
      {"model", options.cases.model_dir}, {"family", r.layout.family},
      {"numerics_id", r.numerics_id},     {"repeats", options.cases.repeats},
      {"rows", LimitsJson(limits)},       {"cases", nlohmann::json::array()}};
  out.page = SvgPage(absl::StrFormat("To the next token, %s", r.layout.family));
  for (const std::string& variant : options.variants) {
    LinePlot plot{"Daemon: " + variant,
                  "tokens of the session",
                  "milliseconds, p50",
                  true,
                  true,
                  {}};
    std::map<std::string, size_t> index;
    for (const Case& c : r.cases) {
      if (c.variant != variant) continue;
      const auto [it, is_new] =
          index.try_emplace(c.mode.name, plot.series.size());
      if (is_new) plot.series.push_back({c.mode.name, {}});
      plot.series[it->second].points.emplace_back(
          c.n_tokens, c.to_next_token.Quantile(0.5));
    }
    out.page.Add(plot);
  }
  for (const Case& c : r.cases) out.json["cases"].push_back(CaseJson(c));
  out.text = Text(r);
  out.holds = AllHold(limits);
  return out;
}

}  // namespace torpor::bench
