// SPDX-License-Identifier: Apache-2.0
//
// torpor-bench: `torpor bench` runs it. Results go to the terminal, and with
// --out as JSON and SVG into a directory. Exits non-zero when something that
// must hold does not.

#include <signal.h>
#include <sodium.h>

#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "bench/command.h"
#include "bench/error_study.h"
#include "bench/kernel_speed.h"
#include "bench/limits.h"
#include "bench/machine.h"
#include "bench/peer.h"
#include "bench/plane_limits.h"
#include "bench/replay_speed.h"
#include "bench/resume.h"
#include "bench/rig.h"
#include "bench/scale.h"
#include "bench/size.h"
#include "bench/store_limits.h"
#include "service/version.h"

namespace torpor::bench {
namespace {

// `torpor-bench --help` lists them in this order.
constexpr std::array kCommands = {
    Command{"limits", "Every number that must hold, in one table",
            AddLimitsCommand},
    Command{"store", "The store against the disk and memory below it",
            AddStoreCommand},
    Command{"size", "Bytes a token of a sleeping session, layout and disk",
            AddSizeCommand},
    Command{"plane", "Rows between client and daemon, gRPC and shared memory",
            AddPlaneCommand},
    Command{"rig", "Sessions of any layout that sleep and wake at once",
            AddRigCommand},
    Command{"scale", "One session among 100 to 100,000", AddScaleCommand},
    Command{"resume", "From a sleeping session to its next token, every mode",
            AddResumeCommand},
    Command{"replay", "Replay alone, in process, against a prefill",
            AddReplayCommand},
    Command{"kernels", "Codecs and attention, every path", AddKernelsCommand},
    Command{"error", "How wrong bounded wakes are, on models that run here",
            AddErrorCommand},
    Command{"peer", "Prefill and decode against llama.cpp", AddPeerCommand},
};

struct Flags {
  Common common;
  std::string out_dir;
  std::string commit = "unknown";
  bool json = false;
  // The command line, for the results to name.
  std::vector<std::string> words;
};

absl::Status Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  if (out) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("write %s: failed", path.string()));
}

absl::Status Publish(const Command& command, const Flags& flags,
                     const Machine& machine, Result result) {
  result.json["benchmark"] = command.name;
  result.json["machine"] = ToJson(machine);
  result.json["flags"] = flags.words;
  result.json["seed"] = flags.common.seed;
  result.json["holds"] = result.holds;
  const std::string json = result.json.dump(2) + "\n";
  std::cout << (flags.json ? json : "\n" + result.text) << std::flush;
  if (flags.out_dir.empty()) return absl::OkStatus();
  const std::filesystem::path dir = flags.out_dir;
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  const std::string name =
      result.file_name.empty() ? command.name : result.file_name;
  TORPOR_RETURN_IF_ERROR(Write(dir / (name + ".json"), json));
  TORPOR_RETURN_IF_ERROR(
      Write(dir / (name + ".svg"),
            result.page.Render(absl::StrFormat(
                "%s, %d processors; commit %s; seed %d", machine.processor,
                machine.n_processors, machine.commit, flags.common.seed))));
  if (!flags.json) {
    std::cout << absl::StrFormat("Written: %s and %s.svg\n",
                                 (dir / (name + ".json")).string(), name);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RunOne(const Command& command, const Flags& flags,
                            const RunBenchmark& run) {
  // As it is before the run loads it.
  const Machine machine = ThisMachine(flags.commit);
  TORPOR_ASSIGN_OR_RETURN(Result result, run());
  std::vector<Result> results = std::move(result.further);
  results.insert(results.begin(), std::move(result));
  bool holds = true;
  for (Result& one : results) {
    holds = holds && one.holds;
    TORPOR_RETURN_IF_ERROR(Publish(command, flags, machine, std::move(one)));
  }
  return holds;
}

void AddFlags(CLI::App* app, Flags* flags) {
  Common& common = flags->common;
  common.dir = std::filesystem::temp_directory_path().string();
  std::error_code error;
  common.bin_dir = std::filesystem::read_symlink("/proc/self/exe", error)
                       .parent_path()
                       .string();
  common.say = [](const std::string& line) {
    std::cerr << "  " << line << std::endl;
  };
  app->add_option("--dir", common.dir, "On the disk to measure")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app->add_option("--out", flags->out_dir, "Directory for JSON and SVG");
  app->add_flag("--json", flags->json, "JSON instead of tables");
  app->add_option("--seed", common.seed, "Of made-up tokens, rows and times")
      ->capture_default_str();
  app->add_option("--commit", flags->commit, "Named in the results");
  app->add_option("--bin", common.bin_dir,
                  "Holds torpord (default: where torpor-bench is)");
}

// CLI11 lets "-1" wrap to the largest number.
void RefuseNegativeCounts(CLI::App* command) {
  for (CLI::Option* option : command->get_options()) {
    if (option->get_type_name() == "UINT") {
      option->check(CLI::Validator(CLI::NonNegativeNumber).description(""));
    }
  }
}

int Main(int argc, char** argv) {
  if (sodium_init() < 0) {
    std::cerr << "torpor-bench: libsodium does not start\n";
    return 1;
  }
  // A daemon that was killed must not take us with it.
  signal(SIGPIPE, SIG_IGN);
  Flags flags;
  flags.words.assign(argv + 1, argv + argc);
  CLI::App app{"Measures Torpor; every benchmark verifies before it times"};
  app.set_version_flag("--version",
                       std::string("torpor-bench ") + service::kVersion);
  // One is required; asked for below, so that an unknown one is named.
  app.require_subcommand(0, 1);
  app.fallthrough();
  AddFlags(&app, &flags);
  std::map<const CLI::App*, std::pair<Command, RunBenchmark>> runs;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.help);
    runs[sub] = {command, command.add(sub, &flags.common)};
    RefuseNegativeCounts(sub);
  }
  CLI11_PARSE(app, argc, argv);
  if (app.get_subcommands().empty()) {
    std::cerr << "torpor-bench: wanted a subcommand; --help lists them\n";
    return 1;
  }
  const auto& [command, run] = runs.at(app.get_subcommands().front());
  const absl::StatusOr<bool> holds = RunOne(command, flags, run);
  if (!holds.ok()) {
    std::cerr << absl::StrFormat(
        "torpor-bench %s: %s: %s\n", command.name,
        absl::StatusCodeToString(holds.status().code()),
        std::string(holds.status().message()));
    return 1;
  }
  return *holds ? 0 : 1;
}

}  // namespace
}  // namespace torpor::bench

int main(int argc, char** argv) { return torpor::bench::Main(argc, argv); }
