// SPDX-License-Identifier: Apache-2.0

#include "bench/scale_report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/table.h"
#include "service/cli/context.h"

namespace torpor::bench {
namespace {

// A call among many sessions against one among few.
constexpr double kFlat = 2;
constexpr double kStartMaxMs = 2'000;

std::string Text(const ScaleResult& r) {
  std::vector<std::vector<std::string>> table = {
      {"sessions", "created in", "commits", "start, disk", "start, hot"}};
  for (const std::string& kind : ScaleResult::Kinds()) {
    table.front().push_back(kind + " p50");
    table.front().push_back("p99");
  }
  for (const ScaleResult::Step& step : r.steps) {
    std::vector<std::string> row = {
        absl::StrFormat("%d", step.population),
        absl::StrFormat("%.1f s", step.create_seconds),
        absl::StrFormat("%d", step.commits),
        absl::StrFormat("%.0f ms", step.start_cold_ms),
        absl::StrFormat("%.0f ms", step.start_hot_ms)};
    for (const std::string& kind : ScaleResult::Kinds()) {
      for (const double share : {0.5, 0.99}) {
        row.push_back(
            absl::StrFormat("%.3g ms", step.here.at(kind).Quantile(share)));
      }
    }
    table.push_back(std::move(row));
  }
  return AlignedTable(table) +
         absl::StrFormat("\n  An idle session takes %.1f bytes of memory.\n\n",
                         r.IdleBytesPerSession()) +
         LimitTable(r.Limits());
}

LinePlot PlotOf(const ScaleResult& r, const std::string& title, double share) {
  LinePlot plot{title, "sessions", "milliseconds", true, true, {}};
  for (const std::string& kind : ScaleResult::Kinds()) {
    Series series{kind, {}};
    for (const ScaleResult::Step& step : r.steps) {
      series.points.emplace_back(step.population,
                                 step.here.at(kind).Quantile(share));
    }
    plot.series.push_back(std::move(series));
  }
  return plot;
}

}  // namespace

const std::vector<std::string>& ScaleResult::Kinds() {
  static const auto* const kinds = new std::vector<std::string>{
      "suspend", "resume", "lookup", "list 100", "describe"};
  return *kinds;
}

double ScaleResult::Step::Ratio(const std::string& kind, double share) const {
  return here.at(kind).Quantile(share) / small.at(kind).Quantile(share);
}

double ScaleResult::IdleBytesPerSession() const {
  const Step& last = steps.back();
  if (last.idle_bytes <= small_idle_bytes) return 0;
  return static_cast<double>(last.idle_bytes - small_idle_bytes) /
         static_cast<double>(last.population);
}

std::vector<LimitRow> ScaleResult::Limits() const {
  std::vector<LimitRow> rows;
  const Step& last = steps.back();
  for (const std::string& kind : Kinds()) {
    for (const auto& [name, share] :
         {std::pair<const char*, double>{"p50", 0.5}, {"p99", 0.99}}) {
      rows.push_back(
          {absl::StrFormat("%s, %s", kind, name),
           last.here.at(kind).Quantile(share),
           last.small.at(kind).Quantile(share), "ms",
           absl::StrFormat("the same at %d sessions", steps.front().population),
           kFlat,
           /*at_least=*/false});
    }
  }
  rows.push_back({"start-up, pages dropped", last.start_cold_ms, kStartMaxMs,
                  "ms", "2 s", 1, /*at_least=*/false});
  rows.push_back({"start-up, page cache hot", last.start_hot_ms, kStartMaxMs,
                  "ms", "2 s", 1, /*at_least=*/false});
  return rows;
}

Result ReportOf(const ScaleOptions& options, const ScaleResult& r) {
  Result out;
  const std::vector<LimitRow> limits = r.Limits();
  out.json = {{"tokens", options.n_tokens},
              {"block_size", options.block_size},
              {"clients", options.n_clients},
              {"samples", options.n_samples},
              {"ttl_seconds", options.ttl_seconds},
              {"small_idle_bytes", r.small_idle_bytes},
              {"idle_bytes_per_session", r.IdleBytesPerSession()},
              {"rows", LimitsJson(limits)},
              {"populations", nlohmann::json::array()}};
  LinePlot starts{"Start-up", "sessions", "milliseconds", true, true, {}};
  starts.series = {{"from disk", {}}, {"page cache hot", {}}};
  for (const ScaleResult::Step& step : r.steps) {
    nlohmann::json json = {{"sessions", step.population},
                           {"created", step.created},
                           {"create_seconds", step.create_seconds},
                           {"create_commits", step.commits},
                           {"start_cold_ms", step.start_cold_ms},
                           {"start_hot_ms", step.start_hot_ms},
                           {"idle_bytes", step.idle_bytes}};
    for (const std::string& kind : ScaleResult::Kinds()) {
      json["calls"][kind] = step.here.at(kind).ToJson();
      json["calls_among_few"][kind] = step.small.at(kind).ToJson();
      json["ratio_p50"][kind] = step.Ratio(kind, 0.5);
      json["ratio_p99"][kind] = step.Ratio(kind, 0.99);
    }
    out.json["populations"].push_back(std::move(json));
    const auto population = static_cast<double>(step.population);
    starts.series[0].points.emplace_back(population, step.start_cold_ms);
    starts.series[1].points.emplace_back(population, step.start_hot_ms);
  }
  out.text = Text(r);
  out.page = SvgPage("One session among many");
  out.page.Add(PlotOf(r, "Calls, p50", 0.5));
  out.page.Add(PlotOf(r, "Calls, p99", 0.99));
  out.page.Add(starts);
  out.holds = AllHold(limits);
  return out;
}

}  // namespace torpor::bench
