// SPDX-License-Identifier: Apache-2.0
//
// torpor-demo: puts a session of the bundled model to sleep, kills everything,
// wakes it in every mode and prints what it cost and whether it is the same.

#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/demo/experiment.h"
#include "bench/demo/report.h"

namespace torpor::bench {
namespace {

absl::Status Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  if (out) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("write %s: failed", path.string()));
}

absl::StatusOr<bool> RunIn(DemoOptions options, const std::string& out_dir,
                           const std::string& commit) {
  std::array<char, 32> work = {"/tmp/torpor-demo-XXXXXX"};
  if (mkdtemp(work.data()) == nullptr) {
    return absl::ResourceExhaustedError("mkdtemp: no directory for the demo");
  }
  options.work_dir = work.data();
  const absl::StatusOr<DemoResult> result = RunDemo(
      options,
      [](const std::string& line) { std::cout << "  " << line << std::endl; });
  if (!result.ok()) {
    std::cerr << "logs: " << options.work_dir << '\n';
    return result.status();
  }
  std::error_code ignored;
  std::filesystem::remove_all(options.work_dir, ignored);
  std::cout << TextReport(*result) << std::flush;
  if (!out_dir.empty()) {
    const std::filesystem::path dir = out_dir;
    std::filesystem::create_directories(dir, ignored);
    const Machine machine = ThisMachine(commit);
    TORPOR_RETURN_IF_ERROR(
        Write(dir / "demo.json", JsonReport(*result, machine)));
    TORPOR_RETURN_IF_ERROR(
        Write(dir / "demo.svg", SvgReport(*result, machine)));
    std::cout << absl::StrFormat("Written: %s and demo.svg\n",
                                 (dir / "demo.json").string());
  }
  return result->holds();
}

int Main(int argc, char** argv) {
  if (sodium_init() < 0) {
    std::cerr << "torpor-demo: libsodium does not start\n";
    return 1;
  }
  DemoOptions options;
  options.bin_dir =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  std::string out_dir;
  std::string commit = "unknown";
  CLI::App app{"Puts a session to sleep, kills everything, wakes it"};
  app.add_option("--model", options.model_dir, "Directory of the model")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("--session", options.session_file, "Text of the session")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--feed", options.feed_file, "Real text that follows it")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--out", out_dir, "Directory for demo.json and demo.svg");
  app.add_option("--bin", options.bin_dir, "Holds torpord and torpor")
      ->capture_default_str();
  app.add_option("--generate", options.generated_tokens, "Tokens to sample")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", options.repeats, "Timed wakes of each mode")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of the sampler")
      ->capture_default_str();
  app.add_option("--isa", options.isa,
                 "CPU path: auto, portable, avx2, avx512bf16 or amx")
      ->capture_default_str();
  app.add_option("--threads", options.n_threads,
                 "Threads (default: one a processor)");
  app.add_option("--commit", commit, "Named in the results");
  CLI11_PARSE(app, argc, argv);

  const absl::StatusOr<bool> holds = RunIn(options, out_dir, commit);
  if (!holds.ok()) {
    std::cerr << absl::StrFormat(
        "torpor-demo: %s: %s\n",
        absl::StatusCodeToString(holds.status().code()),
        std::string(holds.status().message()));
    return 1;
  }
  return *holds ? 0 : 1;
}

}  // namespace
}  // namespace torpor::bench

int main(int argc, char** argv) { return torpor::bench::Main(argc, argv); }
