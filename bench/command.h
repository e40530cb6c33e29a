// SPDX-License-Identifier: Apache-2.0
//
// A subcommand of torpor-bench: a file of its own with an options struct, a
// function that measures, and one that adds it to the command line. It is
// entered in the table of bench_main.cc, which writes what it returns. Every
// benchmark verifies its results before it times.

#ifndef TORPOR_BENCH_COMMAND_H_
#define TORPOR_BENCH_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/svg.h"

namespace torpor::bench {

// What all subcommands are given.
struct Common {
  // A directory on the disk to measure; Scratch makes others in it.
  std::string dir;
  // Holds torpord.
  std::string bin_dir;
  uint64_t seed = 1;
  // One line for each step; null = silent.
  std::function<void(const std::string&)> say;

  void Say(const std::string& line) const {
    if (say) say(line);
  }
};

struct Result {
  // An object; machine, flags and seed are added to it.
  nlohmann::json json = nlohmann::json::object();
  // Tables for a terminal.
  std::string text;
  SvgPage page{""};
  // False when something that must hold does not: a non-zero exit.
  bool holds = true;
  // Of its JSON and SVG; empty = the benchmark's name.
  std::string file_name;
  // Published after it, each in files of its own.
  std::vector<Result> further;
};

using RunBenchmark = std::function<absl::StatusOr<Result>()>;

struct Command {
  const char* name;
  const char* help;
  // Adds options to the subcommand; what it returns runs after parsing.
  // `common` outlives it.
  RunBenchmark (*add)(CLI::App* app, const Common* common);
};

// A new directory in `parent`, removed with all that is in it at the end.
class Scratch {
 public:
  static absl::StatusOr<Scratch> Make(const std::string& parent);
  Scratch(Scratch&& other) noexcept { std::swap(path_, other.path_); }
  Scratch& operator=(Scratch&& other) noexcept {
    std::swap(path_, other.path_);
    return *this;
  }
  ~Scratch();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  Scratch() = default;
  std::string path_;
};

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_COMMAND_H_
