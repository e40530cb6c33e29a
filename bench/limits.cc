// SPDX-License-Identifier: Apache-2.0

#include "bench/limits.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "bench/plane_limits.h"
#include "bench/resume.h"
#include "bench/store_limits.h"
#include "bench/synthetic.h"
#include "replay/planner.h"

namespace torpor::bench {
namespace {

// design.md, "Numbers that must hold".
struct StatedLayout {
  const char* config;
  // "native" or "bf16".
  const char* kv_dtype;
  double compact_bytes;
  double all_bytes;
  // 0 where no layer has a window.
  uint64_t bounded_tokens;
  uint64_t exact_tokens;
};
constexpr StatedLayout kStated[] = {
    {"DeepSeek-V4.1-Flash", "native", 890, 22'010, 128, 5'080},
    {"DeepSeek-V4-Flash", "native", 3'514.25, 28'626.25, 128, 5'461},
    {"gemma-3-270m", "bf16", 3'072, 18'432, 512, 7'665},
    {"gpt-oss-20b", "bf16", 24'576, 49'152, 128, 1'524},
    {"Qwen3-8B", "bf16", 147'456, 147'456, 0, 0},
    {"Llama-3.3-70B-Instruct", "bf16", 327'680, 327'680, 0, 0},
};
constexpr double kChecksumMust = 0.10;

// Exactly what is stated: at most it, and at least it.
void AddStated(const std::string& what, double got, double stated,
               const std::string& unit, std::vector<LimitRow>* rows) {
  LimitRow row{what, got, stated, unit, "design.md", 1, /*at_least=*/true};
  // One of the two sides tells that both are equal.
  row.at_least = got <= stated;
  if (stated == 0) {
    row.measured = got + 1;
    row.limit = 1;
    row.unit = unit + " + 1";
  }
  rows->push_back(row);
}

// Seconds that verifying adds to copying a byte, in sections of the size that
// stores have.
double ChecksumSecondsPerByte() {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr size_t kSection = 147'456;
  constexpr int kRounds = 9;
  const std::vector<uint8_t> from(kBytes, 1);
  std::vector<uint8_t> to(kBytes, 2);
  std::vector<double> copied;
  std::vector<double> verified;
  uint64_t sum = 0;
  const auto walk = [&](bool verify) {
    return SecondsOf([&] {
      for (size_t at = 0; at + kSection <= kBytes; at += kSection) {
        std::memcpy(&to[at], &from[at], kSection);
        if (verify) sum += Xxh3(std::span(to).subspan(at, kSection));
      }
    });
  };
  for (int round = 0; round < kRounds; ++round) {
    copied.push_back(walk(false));
    verified.push_back(walk(true));
  }
  // Uses the sums, so that none is left out.
  const double added = Median(verified) - Median(copied);
  return std::max(sum == 0 ? 0.0 : added, 0.0) / kBytes;
}

std::vector<LimitRow> UnmeasuredWakes() {
  std::vector<LimitRow> rows;
  for (const char* what :
       {"cold / bounded at 32768 tokens", "cold / exact at 32768 tokens",
        "checksums of a bounded wake"}) {
    LimitRow row;
    row.what = what;
    row.not_measured = "wants --model, a directory with Gemma 3 270M";
    rows.push_back(row);
  }
  rows[0].must = 30;
  rows[1].must = 5;
  rows[2].must = kChecksumMust;
  rows[2].at_least = false;
  return rows;
}

// Parts of the table. One that fails says why in its place, and the others
// stand.
struct Groups {
  std::vector<std::pair<const char*, std::vector<LimitRow>>> parts;
  bool failed = false;

  void Add(const char* name, absl::StatusOr<std::vector<LimitRow>> rows) {
    if (!rows.ok()) {
      failed = true;
      LimitRow row;
      row.what = "failed";
      row.not_measured = rows.status().ToString();
      rows = std::vector<LimitRow>{row};
    }
    parts.emplace_back(name, *std::move(rows));
  }
};

Result ReportOf(const Groups& groups) {
  Result result;
  result.holds = !groups.failed;
  result.page = SvgPage("Numbers that must hold");
  result.json["rows"] = nlohmann::json::array();
  for (const auto& [name, rows] : groups.parts) {
    for (nlohmann::json& entry : LimitsJson(rows)) {
      entry["group"] = name;
      result.json["rows"].push_back(entry);
    }
    result.text += absl::StrFormat("%s\n%s\n", name, LimitTable(rows));
    BarPlot plot = LimitsPlot(rows);
    plot.title = name;
    if (!plot.groups.empty()) result.page.Add(plot);
    result.holds = result.holds && AllHold(rows);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<LimitRow>> MeasureLayouts(
    const LimitsOptions& options) {
  std::vector<LimitRow> rows;
  for (const StatedLayout& stated : kStated) {
    const std::string path =
        absl::StrFormat("%s/%s.json", options.configs_dir, stated.config);
    TORPOR_ASSIGN_OR_RETURN(const replay::ModelLayout layout,
                            LayoutOf(path, stated.kv_dtype));
    const replay::LayoutFigures figures = replay::FiguresOf(layout, 0);
    const std::string name = stated.config;
    AddStated(name + ", stored", figures.compact_bytes_per_token,
              stated.compact_bytes, "B/token", &rows);
    AddStated(name + ", every window row kept",
              figures.all_window_bytes_per_token, stated.all_bytes, "B/token",
              &rows);
    AddStated(name + ", bounded", static_cast<double>(figures.bounded_tokens),
              static_cast<double>(stated.bounded_tokens), "tokens", &rows);
    AddStated(name + ", exact", static_cast<double>(figures.exact_tokens),
              static_cast<double>(stated.exact_tokens), "tokens", &rows);
  }
  return rows;
}

absl::StatusOr<std::vector<LimitRow>> MeasureWakes(const LimitsOptions& options,
                                                   const Common& common) {
  if (options.peer.model_dir.empty()) return UnmeasuredWakes();
  ResumeOptions resume;
  resume.cases.model_dir = options.peer.model_dir;
  resume.cases.engine = options.peer.engine;
  resume.cases.lengths = {options.wake_tokens};
  resume.cases.modes = {"bounded", "exact", "cold"};
  resume.cases.repeats = options.wake_repeats;
  resume.variants = {"hot"};
  resume.seed = common.seed;
  TORPOR_ASSIGN_OR_RETURN(const ResumeResult result,
                          MeasureResume(resume, common));
  std::vector<LimitRow> rows = result.Limits();
  const double per_byte = ChecksumSecondsPerByte();
  for (const ResumeResult::Case& c : result.cases) {
    if (c.mode.mode != replay::ReplayMode::kBounded) continue;
    // By the store, and by who receives.
    rows.push_back({absl::StrFormat("checksums of a %s wake at %d tokens",
                                    c.mode.name, c.n_tokens),
                    2e3 * per_byte * static_cast<double>(c.bytes_read),
                    c.to_next_token.Quantile(0.5), "ms",
                    "the wake to its next token", kChecksumMust,
                    /*at_least=*/false});
  }
  return rows;
}

RunBenchmark AddLimitsCommand(CLI::App* app, const Common* common) {
  auto options = std::make_shared<LimitsOptions>();
  app->add_option("--configs", options->configs_dir,
                  "Directory of the models' config files")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app->add_option("--model", options->peer.model_dir,
                  "Directory with Gemma 3 270M (scripts/get-gemma3-270m)")
      ->check(CLI::ExistingDirectory);
  app->add_option("--rounds", options->rounds,
                  "Interleaved rounds of store and planes")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  app->add_option("--wake-repeats", options->wake_repeats,
                  "Timed wakes of each mode")
      ->check(CLI::Range(1, 101))
      ->capture_default_str();
  AddPeerOptions(app, &options->peer);
  options->peer.engine.AddTo(app);
  return [options, common]() -> absl::StatusOr<Result> {
    Groups groups;
    groups.Add("Layouts", MeasureLayouts(*options));
    TORPOR_ASSIGN_OR_RETURN(const Scratch scratch, Scratch::Make(common->dir));
    groups.Add("Store", MeasureStore({.directory = scratch.path(),
                                      .rounds = options->rounds}));
    groups.Add("Planes", MeasurePlanes({.rounds = options->rounds}, *common));
    groups.Add("Wakes", MeasureWakes(*options, *common));
    groups.Add("Against llama.cpp", MeasurePeer(options->peer, *common));
    return ReportOf(groups);
  };
}

}  // namespace torpor::bench
