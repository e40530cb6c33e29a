// SPDX-License-Identifier: Apache-2.0
//
// torpor-bench: what was measured, what bounds it, the ratio, and whether it
// holds. Exits non-zero when a row does not.

#include <sodium.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/machine.h"
#include "bench/store_limits.h"
#include "bench/table.h"

namespace torpor::bench {
namespace {

std::string Table(const std::vector<LimitRow>& rows) {
  std::vector<std::vector<std::string>> table = {
      {"", "measured", "limit", "of", "ratio", "must", "holds"}};
  for (const LimitRow& row : rows) {
    table.push_back(
        {row.what, absl::StrFormat("%.4g %s", row.measured, row.unit),
         absl::StrFormat("%.4g %s", row.limit, row.unit), row.limit_name,
         absl::StrFormat("%.3f", row.ratio()),
         absl::StrFormat("%s %.3g", row.at_least ? ">=" : "<=", row.must),
         row.holds() ? "yes" : "NO"});
  }
  return AlignedTable(table);
}

std::string Json(const std::vector<LimitRow>& rows, const Machine& machine) {
  nlohmann::json out = {{"machine", ToJson(machine)},
                        {"rows", nlohmann::json::array()}};
  for (const LimitRow& row : rows) {
    out["rows"].push_back({{"what", row.what},
                           {"measured", row.measured},
                           {"limit", row.limit},
                           {"unit", row.unit},
                           {"limit_is", row.limit_name},
                           {"ratio", row.ratio()},
                           {"must", row.must},
                           {"must_be", row.at_least ? "at least" : "at most"},
                           {"holds", row.holds()}});
  }
  return out.dump(2) + "\n";
}

int Main(int argc, char** argv) {
  if (sodium_init() < 0) {
    std::cerr << "torpor-bench: libsodium does not start\n";
    return 1;
  }
  StoreLimitsOptions options;
  std::string parent = std::filesystem::temp_directory_path().string();
  std::string out_file;
  std::string commit = "unknown";
  CLI::App app{"Measures the store against the disk and memory below it"};
  app.add_option("--dir", parent, "On the disk to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "Interleaved rounds")
      ->check(CLI::Range(1, 1001))
      ->capture_default_str();
  app.add_option("--out", out_file, "JSON file for the results");
  app.add_option("--commit", commit, "Named in the results");
  CLI11_PARSE(app, argc, argv);

  std::string directory = parent + "/torpor-bench-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) {
    std::cerr << absl::StrFormat("torpor-bench: no directory under %s\n",
                                 parent);
    return 1;
  }
  options.directory = directory;
  const absl::StatusOr<std::vector<LimitRow>> rows = MeasureStore(options);
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  if (!rows.ok()) {
    std::cerr << absl::StrFormat("torpor-bench: %s\n",
                                 rows.status().ToString());
    return 1;
  }
  std::cout << Table(*rows);
  if (!out_file.empty()) {
    std::ofstream out(out_file);
    out << Json(*rows, ThisMachine(commit)) << std::flush;
    if (!out) {
      std::cerr << absl::StrFormat("torpor-bench: write %s: failed\n",
                                   out_file);
      return 1;
    }
  }
  return std::all_of(rows->begin(), rows->end(),
                     [](const LimitRow& row) { return row.holds(); })
             ? 0
             : 1;
}

}  // namespace
}  // namespace torpor::bench

int main(int argc, char** argv) { return torpor::bench::Main(argc, argv); }
