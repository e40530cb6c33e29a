// SPDX-License-Identifier: Apache-2.0

#include "bench/rig_report.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/table.h"
#include "service/cli/context.h"

namespace torpor::bench {
namespace {

using nlohmann::json;
using service::cli::Bytes;

// design.md: memory on the transfer path, bytes of a delta suspend.
constexpr double kMemoryMax = 256.0 * 1024 * 1024;
constexpr double kDeltaFactor = 1.05;
constexpr double kDeltaBytes = 65'536;

std::vector<std::pair<std::string, const Latencies*>> Calls(
    const RigResult& r) {
  return {{"first suspend", &r.first_suspend},
          {"resume", &r.resume},
          {"suspend of the new tokens", &r.delta_suspend},
          {"waited for a client", &r.late}};
}

json PhaseJson(const RigResult::Phase& phase) {
  return {{"seconds", phase.seconds},
          {"row_bytes_received", phase.row_bytes_received},
          {"row_bytes_copied", phase.row_bytes_copied},
          {"token_bytes", phase.token_bytes},
          {"row_bytes_sent", phase.row_bytes_sent},
          {"written", phase.written},
          {"disk_read", phase.disk_read},
          {"commits", phase.commits}};
}

std::string Text(const RigOptions& options, const RigResult& r) {
  std::string out = absl::StrFormat(
      "%s, %.6g B/token, blocks of %d tokens; %d sessions of %d tokens, %d "
      "turns of %d, %d clients, think %s %g ms\n\n",
      r.layout, r.compact_bytes_per_token, r.block_size, options.n_sessions,
      options.n_tokens, options.n_turns, options.n_new_tokens,
      options.n_clients, options.think.distribution, options.think.mean_ms);
  std::vector<std::vector<std::string>> calls = {
      {"", "calls", "p50", "p99", "max"}};
  for (const auto& [name, latencies] : Calls(r)) {
    std::vector<std::string> row = latencies->Cells();
    row.insert(row.begin(), name);
    calls.push_back(std::move(row));
  }
  out += AlignedTable(calls) + "\n";
  std::vector<std::vector<std::string>> phases = {
      {"", "seconds", "rows in", "rows copied", "rows out", "written",
       "disk read", "commits"}};
  for (const auto& [name, phase] :
       {std::pair{"first suspends", &r.first}, {"turns", &r.turns}}) {
    phases.push_back(
        {name, absl::StrFormat("%.2f", phase->seconds),
         Bytes(phase->row_bytes_received), Bytes(phase->row_bytes_copied),
         Bytes(phase->row_bytes_sent), Bytes(phase->written),
         Bytes(phase->disk_read), absl::StrFormat("%d", phase->commits)});
  }
  out += AlignedTable(phases) + "\n";
  if (r.crash.has_value()) {
    out += absl::StrFormat(
        "  kill -9 after %d acknowledgements: every acknowledged version is "
        "there, %d sessions\n  read to the last byte; of %d suspends on their "
        "way %d had become durable.\n\n",
        r.crash->acknowledged, r.crash->sessions_read, r.crash->on_their_way,
        r.crash->durable_unheard);
  }
  return out + LimitTable(r.Limits());
}

}  // namespace

std::vector<LimitRow> RigResult::Limits() const {
  std::vector<LimitRow> rows;
  const uint64_t over = busy_bytes > idle_bytes ? busy_bytes - idle_bytes : 0;
  rows.push_back({"memory over idle", static_cast<double>(over), kMemoryMax,
                  "B", "256 MiB", 1, /*at_least=*/false});
  if (delta_suspend.size() == 0) return rows;
  const auto n = static_cast<double>(delta_suspend.size());
  rows.push_back({"written a suspend of new tokens",
                  static_cast<double>(turns.written) / n,
                  kDeltaFactor *
                          static_cast<double>(turns.row_bytes_received +
                                              turns.row_bytes_copied) /
                          n +
                      kDeltaBytes,
                  "B", "1.05 x (new rows + tail) + 64 KiB", 1,
                  /*at_least=*/false});
  return rows;
}

Result ReportOf(const RigOptions& options, const RigResult& r) {
  Result out;
  const std::vector<LimitRow> limits = r.Limits();
  out.json = {
      {"layout", r.layout},
      {"compact_bytes_per_token", r.compact_bytes_per_token},
      {"block_size", r.block_size},
      {"sessions", options.n_sessions},
      {"tokens", options.n_tokens},
      {"new_tokens", options.n_new_tokens},
      {"turns", options.n_turns},
      {"clients", options.n_clients},
      {"think", options.think.distribution},
      {"think_ms", options.think.mean_ms},
      {"first_suspends", PhaseJson(r.first)},
      {"turns_total", PhaseJson(r.turns)},
      {"memory", {{"idle_bytes", r.idle_bytes}, {"busy_bytes", r.busy_bytes}}},
      {"rows", LimitsJson(limits)}};
  BarPlot bars{"Milliseconds", {"p50", "p99", "max"}, {}};
  LinePlot tail{"Share of calls that took longer",
                "milliseconds",
                "share",
                true,
                true,
                {}};
  for (const auto& [name, latencies] : Calls(r)) {
    out.json["calls"][name] = latencies->ToJson();
    BarGroup group{name, {}};
    for (const double share : {0.5, 0.99, 1.0}) {
      const double ms = latencies->Quantile(share);
      group.bars.push_back({ms, absl::StrFormat("%.3g", ms)});
    }
    bars.groups.push_back(std::move(group));
    Series series{name, {}};
    for (const auto& [share, ms] : latencies->Tail()) {
      series.points.insert(series.points.begin(), {ms, share});
    }
    tail.series.push_back(std::move(series));
  }
  if (r.crash.has_value()) {
    out.json["crash"] = {{"acknowledged", r.crash->acknowledged},
                         {"on_their_way", r.crash->on_their_way},
                         {"durable_unheard", r.crash->durable_unheard},
                         {"sessions_read", r.crash->sessions_read},
                         {"restart_ms", r.crash->restart_ms}};
  }
  out.text = Text(options, r);
  out.page = SvgPage(absl::StrFormat("%s, %d sessions of %d tokens, %d clients",
                                     r.layout, options.n_sessions,
                                     options.n_tokens, options.n_clients));
  out.page.Add(bars);
  out.page.Add(tail);
  out.holds = AllHold(limits);
  return out;
}

}  // namespace torpor::bench
