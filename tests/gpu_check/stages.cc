// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/stages.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <regex>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "bench/machine.h"
#include "tests/gpu_check/child_run.h"
#include "tests/gpu_check/test_log.h"

namespace torpor::gpu_check {
namespace {

using nlohmann::json;

// One stage while it runs.
class Stage {
 public:
  Stage(const CheckOptions& options, const std::string& name, double budget_s)
      : options_(options), begin_(Clock::now()) {
    result_.name = name;
    result_.budget_s = budget_s * options.budget_scale;
    deadline_ = begin_ + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(result_.budget_s));
    // Of an earlier run.
    std::filesystem::remove(log());
  }

  [[nodiscard]] const CheckOptions& options() const { return options_; }
  StageResult& result() { return result_; }

  ChildEnd Run(const std::vector<std::string>& argv,
               std::vector<std::string> environment = {}) {
    environment.push_back(
        absl::StrFormat("TORPOR_TEST_SEED=%d", options_.seed));
    return RunChild(argv, environment, log(), deadline_);
  }
  void Stop(const std::string& during) {
    if (result_.verdict == Verdict::kPassed) {
      result_.verdict = Verdict::kStopped;
    }
    result_.reason = absl::StrFormat("over its budget of %.0f s, during %s",
                                     result_.budget_s, during);
  }
  StageResult Done() {
    result_.seconds =
        std::chrono::duration<double>(Clock::now() - begin_).count();
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::string log() const {
    return options_.out_dir + "/" + result_.name + ".log";
  }

  const CheckOptions& options_;
  const Clock::time_point begin_;
  Clock::time_point deadline_;
  StageResult result_;
};

// Calls `take` with each line of JSON that a child wrote; the others are its
// own.
template <typename Take>
void ForEachJson(const std::string& output, const Take& take) {
  for (const auto& line : absl::StrSplit(output, '\n')) {
    const json value = json::parse(std::string(line), nullptr, false);
    if (value.is_object()) take(value);
  }
}

std::string Tail(const std::string& text) {
  return text.substr(text.size() - std::min<size_t>(text.size(), 2000));
}

// ---- the device ------------------------------------------------------------

void FindDevice(Stage* stage, Report* report) {
  const ChildEnd end = stage->Run({ThisProgram(), kDeviceChild});
  ForEachJson(end.output, [&](const json& line) { report->device = line; });
  if (end.stopped) {
    stage->Stop("the first call of CUDA");
  } else if (report->device.contains("error")) {
    stage->result().Fail("device", report->device["error"].get<std::string>());
  } else if (!end.ok) {
    stage->result().Fail("device", end.how + "\n" + Tail(end.output));
  } else {
    stage->result().n_passed = 1;
  }
}

// ---- tests -----------------------------------------------------------------

// Names of the tests that both this filter and the run's own let through; none
// is a failure.
std::vector<std::string> ListTests(Stage* stage, const std::string& filter) {
  const auto list = [&](const std::string& f) {
    return ParseTestList(
        stage
            ->Run({ThisProgram(), kTestsChild, "--gtest_list_tests",
                   "--gtest_filter=" + f})
            .output);
  };
  std::vector<std::string> names = list(filter);
  if (!stage->options().filter.empty()) {
    const std::vector<std::string> wanted = list(stage->options().filter);
    std::erase_if(names, [&](const std::string& name) {
      return std::find(wanted.begin(), wanted.end(), name) == wanted.end();
    });
  }
  if (names.empty()) {
    stage->result().Fail("tests", "no test matches " + filter + " and " +
                                      stage->options().filter);
  }
  return names;
}

// A stage whose tests were all skipped shows nothing.
void WantOne(Stage* stage) {
  StageResult& result = stage->result();
  if (result.verdict != Verdict::kPassed || result.n_passed > 0) return;
  result.Fail("tests", "every test was skipped");
}

std::vector<std::string> TestCommand(const std::vector<std::string>& names) {
  return {ThisProgram(), kTestsChild,
          "--gtest_filter=" + absl::StrJoin(names, ":")};
}

// Runs tests of one suite; those that a crash kept from running come in a new
// process. False when the stage is over.
bool RunSuite(Stage* stage, std::vector<std::string> names) {
  using Kind = TestVerdict::Kind;
  while (!names.empty()) {
    const ChildEnd end = stage->Run(TestCommand(names));
    const std::vector<TestVerdict> tests = ParseTestLog(end.output);
    for (const TestVerdict& test : tests) {
      std::erase(names, test.name);
      if (test.kind == Kind::kPassed) {
        ++stage->result().n_passed;
      } else if (test.kind == Kind::kFailed) {
        stage->result().Fail(test.name, test.text);
      } else if (test.kind == Kind::kUnfinished) {
        if (end.stopped) {
          stage->Stop(test.name);
          return false;
        }
        stage->result().Fail(test.name, end.how + "\n" + test.text);
      }
    }
    if (end.stopped) {
      stage->Stop(names.empty() ? "the end of the tests" : names.front());
      return false;
    }
    if (tests.empty()) {
      stage->result().Fail(names.front(), end.how + "\n" + Tail(end.output));
      return true;
    }
    // A program can fail behind its last test.
    if (!end.ok && names.empty() && tests.back().kind == Kind::kPassed &&
        stage->result().failures.empty()) {
      stage->result().Fail(tests.back().name,
                           end.how + "\n" + Tail(end.output));
    }
  }
  return true;
}

// Tests whose name has `first` in it come before the others, should the time
// not do.
void RunTests(Stage* stage, const std::string& filter,
              const std::string& first = "") {
  std::vector<std::string> names = ListTests(stage, filter);
  std::stable_partition(names.begin(), names.end(), [&](const auto& name) {
    return name.find(first) != std::string::npos;
  });
  if (names.empty()) return;
  std::vector<std::pair<std::string, std::vector<std::string>>> suites;
  for (const std::string& name : names) {
    const std::string suite = name.substr(0, name.find('.'));
    if (suites.empty() || suites.back().first != suite) {
      suites.push_back({suite, {}});
    }
    suites.back().second.push_back(name);
  }
  for (const auto& [suite, tests] : suites) {
    if (!RunSuite(stage, tests)) return;
  }
  WantOne(stage);
}

// Without the backend's, which are a stage of their own.
constexpr char kKernelTests[] = "*CudaTest.*-*OpsCudaTest.*";
constexpr char kBackendTests[] =
    "*RowsTest.*cuda*:*OpsCudaTest.*:MakeCudaOpsTest.*";
constexpr char kIpcTests[] = "CudaSharedMemoryTest.*";
constexpr char kFamilyTests[] = "*FamilyConformance.*_cuda";

void RunKernelTests(Stage* stage, Report* /*report*/) {
  RunTests(stage, kKernelTests);
}
void RunBackendTests(Stage* stage, Report* /*report*/) {
  RunTests(stage, kBackendTests);
}
void RunIpcTests(Stage* stage, Report* /*report*/) {
  RunTests(stage, kIpcTests);
}
void RunFamilyTests(Stage* stage, Report* /*report*/) {
  RunTests(stage, kFamilyTests, "EveryCutWakesExact");
}

// ---- compute-sanitizer -----------------------------------------------------

// The tool's lines among a test's.
std::string ToolLines(const std::string& text) {
  std::string out;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    if (line.starts_with("=====")) out += line + "\n";
  }
  return out;
}

// What a tool counted at its end; -1 when it did not come there.
int64_t FaultsOf(const std::string& output) {
  static const std::regex kSummary("SUMMARY: ([0-9]+) (error|hazard)");
  std::smatch match;
  return std::regex_search(output, match, kSummary) ? std::stoll(match[1]) : -1;
}

void RunSanitizer(Stage* stage, Report* /*report*/) {
  const std::string& tool = stage->result().name;
  if (stage->options().sanitizer.empty()) {
    stage->result().verdict = Verdict::kNotRun;
    stage->result().reason =
        "no compute-sanitizer beside this program, on the "
        "path or named by --sanitizer";
    return;
  }
  // The tests' own verdicts are those of another stage.
  std::vector<std::string> argv = {stage->options().sanitizer, "--tool", tool,
                                   "--check-exit-code", "no"};
  std::vector<std::string> environment;
  if (tool == "initcheck") {
    // Poison would be a write of every byte; and tests copy unwritten memory to
    // the host on purpose.
    environment = {"TORPOR_CUDA_UNPOISONED=1"};
    argv.insert(argv.end(), {"--check-api-memory-access", "no"});
  }
  const auto tests = ListTests(stage, kKernelTests);
  if (tests.empty()) return;
  const std::vector<std::string> command = TestCommand(tests);
  argv.insert(argv.end(), command.begin(), command.end());
  const ChildEnd end = stage->Run(argv, environment);
  const std::vector<TestVerdict> verdicts = ParseTestLog(end.output);
  const int64_t faults = FaultsOf(end.output);
  for (const TestVerdict& test : verdicts) {
    const std::string lines = ToolLines(test.text);
    if (!lines.empty() && faults != 0) {
      stage->result().Fail(test.name, lines);
    } else if (test.kind == TestVerdict::Kind::kPassed ||
               test.kind == TestVerdict::Kind::kFailed) {
      ++stage->result().n_passed;
    }
  }
  if (end.stopped) {
    stage->Stop(verdicts.empty() ? "its start" : verdicts.back().name);
  } else if (faults < 0) {
    stage->result().Fail(
        tool, "ended without a summary: " + end.how + "\n" + Tail(end.output));
  } else if (faults > 0 && stage->result().failures.empty()) {
    stage->result().Fail(tool, Tail(ToolLines(end.output)));
  }
  WantOne(stage);
}

// ---- benchmarks ------------------------------------------------------------

void RunBench(Stage* stage, const char* child, Report* report) {
  std::vector<std::string> argv = {ThisProgram(), child};
  if (stage->options().tiny) argv.push_back("--tiny");
  argv.push_back(absl::StrFormat("--budget=%g", stage->result().budget_s));
  const ChildEnd end = stage->Run(argv);
  const std::map<std::string, json*> places = {{"ceiling", &report->ceilings},
                                               {"kernel", &report->kernels},
                                               {"replay", &report->replays}};
  std::string last = "its start";
  ForEachJson(end.output, [&](const json& line) {
    for (const auto& [key, place] : places) {
      if (!line.contains(key)) continue;
      const json& entry = line[key];
      place->push_back(entry);
      last = entry["name"].get<std::string>();
      if (entry.contains("shape")) {
        last += " " + entry["shape"].get<std::string>();
      }
      if (entry.contains("fault")) {
        stage->result().Fail(last, entry["fault"].get<std::string>());
      } else {
        ++stage->result().n_passed;
      }
    }
    if (line.contains("left_out")) {
      stage->Stop(line["left_out"].get<std::string>());
    }
  });
  if (end.stopped) {
    stage->Stop("what follows " + last);
  } else if (!end.ok && stage->result().failures.empty()) {
    stage->result().Fail("what follows " + last,
                         end.how + "\n" + Tail(end.output));
  }
}
void RunKernelBench(Stage* stage, Report* report) {
  RunBench(stage, kKernelsChild, report);
}
void RunReplayBench(Stage* stage, Report* report) {
  RunBench(stage, kReplayChild, report);
}

// ---- all -------------------------------------------------------------------

struct StageEntry {
  const char* name;
  double budget_s;
  void (*run)(Stage*, Report*);
};
// Eight minutes together.
constexpr StageEntry kStages[] = {
    {"device", 20, FindDevice},           {"kernels", 70, RunKernelTests},
    {"backend", 20, RunBackendTests},     {"ipc", 10, RunIpcTests},
    {"families", 90, RunFamilyTests},     {"memcheck", 30, RunSanitizer},
    {"racecheck", 30, RunSanitizer},      {"initcheck", 30, RunSanitizer},
    {"synccheck", 30, RunSanitizer},      {"kernel-speed", 70, RunKernelBench},
    {"replay-speed", 80, RunReplayBench},
};

}  // namespace

std::vector<std::string> StageNames() {
  std::vector<std::string> names;
  for (const StageEntry& entry : kStages) names.emplace_back(entry.name);
  return names;
}

Report RunStages(const CheckOptions& options) {
  Report report{.commit = options.commit, .seed = options.seed};
  report.machine = bench::ToJson(bench::ThisMachine(options.commit));
  const auto is_wanted = [&](const std::string& name) {
    // Nothing can be said of a device that was not found.
    return options.only.empty() || name == kStages[0].name ||
           std::find(options.only.begin(), options.only.end(), name) !=
               options.only.end();
  };
  for (const StageEntry& entry : kStages) {
    if (!is_wanted(entry.name)) continue;
    Stage stage(options, entry.name, entry.budget_s);
    if (!report.stages.empty() &&
        report.stages[0].verdict != Verdict::kPassed) {
      stage.result().verdict = Verdict::kNotRun;
      stage.result().reason = "no device";
    } else {
      entry.run(&stage, &report);
    }
    report.stages.push_back(stage.Done());
    const StageResult& done = report.stages.back();
    std::cerr << absl::StrFormat("gpu-check: %s: %s (%.1f s)\n", done.name,
                                 VerdictName(done.verdict), done.seconds);
  }
  return report;
}

}  // namespace torpor::gpu_check
