// SPDX-License-Identifier: Apache-2.0
//
// torpor-gpu-check: the kernel tests, the backend, the families and the
// benchmarks on this machine's GPU (docs/CUDA.md). Exits with 0 when all
// passed, 1 when something failed, 2 when nothing failed and a stage was
// stopped.

#include <gtest/gtest.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu_check/child_run.h"
#include "tests/gpu_check/device.h"
#include "tests/gpu_check/kernel_bench.h"
#include "tests/gpu_check/replay_bench.h"
#include "tests/gpu_check/stages.h"

namespace torpor::gpu_check {
namespace {

int RunTestsHere(int argc, char** argv) {
  // Where the bundle has the oracles.
  std::filesystem::current_path(
      std::filesystem::path(ThisProgram()).parent_path());
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

int RunBenchHere(int argc, char** argv,
                 bool (*run)(const BenchOptions& options)) {
  CLI::App app{"A child of torpor-gpu-check"};
  BenchOptions options;
  app.add_flag("--tiny", options.tiny);
  app.add_option("--budget", options.budget_s);
  CLI11_PARSE(app, argc, argv);
  return run(options) ? 0 : 1;
}

// Beside this program, else on the path, else none.
std::string FindSanitizer() {
  std::vector<std::filesystem::path> folders = {
      std::filesystem::path(ThisProgram()).parent_path() / "compute-sanitizer"};
  const char* path = std::getenv("PATH");
  std::stringstream words(path == nullptr ? "" : path);
  for (std::string word; std::getline(words, word, ':');) {
    folders.emplace_back(word);
  }
  for (const auto& folder : folders) {
    const std::string file = (folder / "compute-sanitizer").string();
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

int Main(int argc, char** argv) {
  CheckOptions options{.sanitizer = FindSanitizer(), .commit = "unknown"};
  options.out_dir = "gpu-check-results";
  CLI::App app{"Checks and measures Torpor's CUDA kernels on the first GPU"};
  app.add_option("--out", options.out_dir, "Directory of report and logs")
      ->capture_default_str();
  app.add_option("--only", options.only, "Stages; all unless named")
      ->delimiter(',')
      ->check(CLI::IsMember(StageNames()));
  app.add_option("--filter", options.filter, "Tests, as GoogleTest takes them");
  app.add_flag("--tiny", options.tiny, "Shapes for an emulator");
  app.add_option("--budget-scale", options.budget_scale,
                 "Of each stage's seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sanitizer", options.sanitizer, "compute-sanitizer");
  app.add_option("--commit", options.commit, "Named in the report");
  app.add_option("--seed", options.seed, "Of the tests' numbers")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::error_code error;
  std::filesystem::create_directories(options.out_dir, error);
  options.out_dir = std::filesystem::absolute(options.out_dir).string();
  const Report report = RunStages(options);
  const std::string text = ToText(report);
  std::cout << text << std::flush;
  std::ofstream json(options.out_dir + "/report.json");
  json << ToJson(report).dump(2) << "\n";
  std::ofstream table(options.out_dir + "/report.txt");
  table << text;
  if (!json.flush() || !table.flush()) {
    std::cerr << "gpu-check: cannot write to " << options.out_dir << "\n";
    return 1;
  }
  switch (report.verdict()) {
    case Verdict::kPassed:
      return 0;
    case Verdict::kStopped:
      return 2;
    default:
      return 1;
  }
}

int Dispatch(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "";
  if (first == kDeviceChild) {
    std::cout << DescribeDevice().dump() << std::endl;
    return 0;
  }
  if (first == kTestsChild) return RunTestsHere(argc - 1, argv + 1);
  if (first == kKernelsChild) {
    return RunBenchHere(argc - 1, argv + 1, BenchKernels);
  }
  if (first == kReplayChild) {
    return RunBenchHere(argc - 1, argv + 1, BenchReplays);
  }
  return Main(argc, argv);
}

}  // namespace
}  // namespace torpor::gpu_check

int main(int argc, char** argv) {
  return torpor::gpu_check::Dispatch(argc, argv);
}
