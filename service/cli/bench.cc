// SPDX-License-Identifier: Apache-2.0
//
// torpor bench ARGS: runs torpor-bench, which stands beside this program.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/str_format.h"
#include "service/cli/context.h"

namespace torpor::service::cli {
namespace {

// Does not return when it succeeds.
absl::Status RunBench(const std::vector<std::string>& args) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string program = (self.parent_path() / "torpor-bench").string();
  std::vector<std::string> words = {program};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  return absl::NotFoundError(absl::StrFormat(
      "bench: start %s: %s; wanted torpor-bench beside torpor (its target is "
      "built with TORPOR_BUILD_BENCH)",
      program, std::strerror(errno)));
}

}  // namespace

void AddBenchCommand(CLI::App* app, Context* context, Run* run) {
  CLI::App* command = app->add_subcommand(
      "bench", "Measures: torpor bench --help lists the benchmarks");
  // Everything after it belongs to torpor-bench.
  command->set_help_flag();
  command->fallthrough(false);
  command->prefix_command();
  command->callback([=] {
    *run = [=] {
      std::vector<std::string> args = command->remaining();
      if (context->json) args.emplace_back("--json");
      return RunBench(args);
    };
  });
}

}  // namespace torpor::service::cli
