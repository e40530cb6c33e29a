// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "bench/table.h"

namespace torpor::gpu_check {
namespace {

using nlohmann::json;

bool Has(const Report& report, Verdict verdict) {
  return std::any_of(
      report.stages.begin(), report.stages.end(),
      [&](const StageResult& stage) { return stage.verdict == verdict; });
}

std::string Figure(const json& of, const char* key) {
  return of.contains(key) && of[key].is_number()
             ? absl::StrFormat("%.4g", of[key].get<double>())
             : "-";
}

std::string StageTable(const std::vector<StageResult>& stages) {
  std::vector<std::vector<std::string>> rows = {
      {"stage", "verdict", "right", "wrong", "seconds", "budget"}};
  for (const StageResult& stage : stages) {
    rows.push_back({stage.name, VerdictName(stage.verdict),
                    absl::StrFormat("%d", stage.n_passed),
                    absl::StrFormat("%d", stage.failures.size()),
                    absl::StrFormat("%.1f", stage.seconds),
                    absl::StrFormat("%.0f", stage.budget_s)});
  }
  return bench::AlignedTable(rows);
}

std::string CeilingTable(const json& ceilings) {
  std::vector<std::vector<std::string>> rows = {{"ceiling", "measured", ""}};
  for (const json& c : ceilings) {
    rows.push_back({c["name"].get<std::string>(), Figure(c, "value"),
                    c["unit"].get<std::string>()});
  }
  return bench::AlignedTable(rows);
}

std::string KernelTable(const json& kernels) {
  std::vector<std::vector<std::string>> rows = {
      {"kernel", "us", "floor", "over floor", "bound by", "GB/s", "TFLOP/s"}};
  for (const json& k : kernels) {
    const std::string name =
        k["name"].get<std::string>() + " " + k["shape"].get<std::string>();
    if (k.contains("fault")) {
      rows.push_back({name, "WRONG", "", "", "", "", ""});
      continue;
    }
    rows.push_back({name, Figure(k, "us"), Figure(k, "floor_us"),
                    Figure(k, "over_floor"), k["bound_by"].get<std::string>(),
                    Figure(k, "gb_per_s"), Figure(k, "tflop_per_s")});
  }
  return bench::AlignedTable(rows);
}

std::string ReplayTable(const json& replays) {
  std::vector<std::vector<std::string>> rows = {
      {"replay", "gemm", "sessions", "us", "us a session", "token-layers/s"}};
  for (const json& r : replays) {
    rows.push_back({r["mode"].get<std::string>(), r["gemm"].get<std::string>(),
                    absl::StrFormat("%d", r["sessions"].get<int>()),
                    r.contains("fault") ? "WRONG" : Figure(r, "us"),
                    Figure(r, "us_per_session"),
                    Figure(r, "token_layers_per_s")});
  }
  return bench::AlignedTable(rows);
}

}  // namespace

std::string VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kStopped:
      return "stopped";
    case Verdict::kNotRun:
      return "not run";
  }
  return "";
}

void StageResult::Fail(const std::string& of, const std::string& text) {
  verdict = Verdict::kFailed;
  failures.push_back({of, text});
}

Verdict Report::verdict() const {
  if (Has(*this, Verdict::kFailed)) return Verdict::kFailed;
  return Has(*this, Verdict::kStopped) ? Verdict::kStopped : Verdict::kPassed;
}

json ToJson(const Report& report) {
  json out = {{"format", 1},
              {"verdict", VerdictName(report.verdict())},
              {"commit", report.commit},
              {"seed", report.seed},
              {"machine", report.machine},
              {"device", report.device},
              {"ceilings", report.ceilings},
              {"kernels", report.kernels},
              {"replays", report.replays},
              {"stages", json::array()}};
  for (const StageResult& stage : report.stages) {
    json failures = json::array();
    for (const Failure& failure : stage.failures) {
      failures.push_back({{"name", failure.name}, {"text", failure.text}});
    }
    out["stages"].push_back({{"name", stage.name},
                             {"verdict", VerdictName(stage.verdict)},
                             {"reason", stage.reason},
                             {"seconds", stage.seconds},
                             {"budget_s", stage.budget_s},
                             {"n_passed", stage.n_passed},
                             {"failures", failures}});
  }
  return out;
}

std::string ToText(const Report& report) {
  std::string out = "\n";
  if (report.device.contains("name")) {
    out += absl::StrFormat("%s, commit %s, seed %d\n\n",
                           report.device["name"].get<std::string>(),
                           report.commit, report.seed);
  }
  if (!report.ceilings.empty()) out += CeilingTable(report.ceilings) + "\n";
  if (!report.kernels.empty()) out += KernelTable(report.kernels) + "\n";
  if (!report.replays.empty()) out += ReplayTable(report.replays) + "\n";
  out += StageTable(report.stages);
  std::string last_reason;
  for (const StageResult& stage : report.stages) {
    if (stage.reason != std::exchange(last_reason, stage.reason) &&
        !stage.reason.empty()) {
      out += absl::StrFormat("\n%s: %s: %s\n", stage.name,
                             VerdictName(stage.verdict), stage.reason);
    }
    for (const Failure& failure : stage.failures) {
      out += absl::StrFormat("\n%s: FAILED: %s\n%s\n", stage.name, failure.name,
                             failure.text);
    }
  }
  out += absl::StrFormat("\ngpu-check: %s\n", VerdictName(report.verdict()));
  return out;
}

}  // namespace torpor::gpu_check
