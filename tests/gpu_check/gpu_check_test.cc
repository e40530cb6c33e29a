// SPDX-License-Identifier: Apache-2.0
//
// torpor-gpu-check from end to end under the emulator, at tiny sizes: what it
// reports, and that it fails when a kernel, a tool or the time does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/gpu_check/test_log.h"
#include "tests/testing/temp_dir.h"

namespace torpor::gpu_check {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// ---- what GoogleTest writes ------------------------------------------------

constexpr char kLog[] =
    "Note: Google Test filter = A.*\n"
    "[----------] 3 tests from A\n"
    "[ RUN      ] A.Passes\n"
    "some words\n"
    "[       OK ] A.Passes (1 ms)\n"
    "[ RUN      ] A.Fails/w5\n"
    "file.cc:3: Failure\n"
    "[  FAILED  ] A.Fails/w5, where GetParam() = w5 (2 ms)\n"
    "[ RUN      ] A.IsSkipped\n"
    "[  SKIPPED ] A.IsSkipped (0 ms)\n";

TEST(TestLogTest, EveryVerdictIsRead) {
  const auto tests = ParseTestLog(
      std::string(kLog) +
      "[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.Fails/w5\n");
  ASSERT_EQ(tests.size(), 3);
  EXPECT_EQ(tests[0].name, "A.Passes");
  EXPECT_EQ(tests[0].kind, TestVerdict::Kind::kPassed);
  EXPECT_EQ(tests[1].name, "A.Fails/w5");
  EXPECT_EQ(tests[1].kind, TestVerdict::Kind::kFailed);
  EXPECT_EQ(tests[1].text, "file.cc:3: Failure\n");
  EXPECT_EQ(tests[2].kind, TestVerdict::Kind::kSkipped);
}

TEST(TestLogTest, ATestThatACrashEndedIsUnfinished) {
  const auto tests =
      ParseTestLog(std::string(kLog) + "[ RUN      ] A.Crashes\nlast words\n");
  ASSERT_EQ(tests.size(), 4);
  EXPECT_EQ(tests[3].name, "A.Crashes");
  EXPECT_EQ(tests[3].kind, TestVerdict::Kind::kUnfinished);
  EXPECT_THAT(tests[3].text, HasSubstr("last words"));
}

TEST(TestLogTest, NamesOfAListHaveTheirSuite) {
  EXPECT_EQ(
      ParseTestList("Running main()\nA.\n  One\n  Two\nP/B.  # TypeParam\n"
                    "  Three/w5  # GetParam() = w5\n"),
      (std::vector<std::string>{"A.One", "A.Two", "P/B.Three/w5"}));
}

// ---- the program -----------------------------------------------------------

class GpuCheckTest : public ::testing::Test {
 protected:
  // Its exit status; no compute-sanitizer of this machine is found. Budgets do,
  // however busy the machine is, unless the arguments say other ones.
  int Run(const std::string& program, const std::string& arguments) {
    const bool has_scale =
        arguments.find("--budget-scale") != std::string::npos;
    const std::string command =
        "PATH=/nonexistent " + program + " --tiny --out " + dir_.path() + " " +
        arguments + (has_scale ? "" : " --budget-scale 5") + " >" +
        dir_.File("stdout") + " 2>&1";
    const int status = std::system(command.c_str());
    std::ifstream in(dir_.File("report.json"));
    report_ = json::parse(in, nullptr, false);
    EXPECT_TRUE(report_.is_object()) << Text("stdout");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string Text(const std::string& file) {
    std::ifstream in(dir_.File(file));
    return {std::istreambuf_iterator<char>(in),
            std::istreambuf_iterator<char>()};
  }
  // An empty object when it was not run.
  json Stage(const std::string& name) {
    for (const json& stage : report_["stages"]) {
      if (stage["name"] == name) return stage;
    }
    ADD_FAILURE() << "no stage " << name;
    return json::object();
  }
  static std::set<std::string> FailuresOf(const json& stage) {
    std::set<std::string> names;
    for (const json& failure : stage["failures"]) {
      names.insert(failure["name"].get<std::string>());
    }
    return names;
  }

  // Keys of docs/CUDA.md's report, with their types.
  void ExpectSchema() {
    ExpectKeys(report_, {{"format", "number"},
                         {"verdict", "string"},
                         {"commit", "string"},
                         {"seed", "number"},
                         {"machine", "object"},
                         {"device", "object"},
                         {"ceilings", "array"},
                         {"kernels", "array"},
                         {"replays", "array"},
                         {"stages", "array"}});
    ExpectKeys(report_["device"], {{"name", "string"},
                                   {"compute_major", "number"},
                                   {"memory_bytes", "number"},
                                   {"driver", "number"}});
    for (const json& c : report_["ceilings"]) {
      ExpectKeys(c,
                 {{"name", "string"}, {"value", "number"}, {"unit", "string"}});
    }
    for (const json& k : report_["kernels"]) {
      ExpectKeys(k, {{"name", "string"},
                     {"shape", "string"},
                     {"bytes", "number"},
                     {"operations", "number"},
                     {"us", "number"},
                     {"floor_us", "number"},
                     {"over_floor", "number"},
                     {"bound_by", "string"},
                     {"gb_per_s", "number"},
                     {"tflop_per_s", "number"}});
    }
    for (const json& r : report_["replays"]) {
      ExpectKeys(r, {{"mode", "string"},
                     {"gemm", "string"},
                     {"numerics_id", "string"},
                     {"sessions", "number"},
                     {"us", "number"},
                     {"us_per_session", "number"},
                     {"token_layers_per_s", "number"}});
    }
    for (const json& s : report_["stages"]) {
      ExpectKeys(s, {{"name", "string"},
                     {"verdict", "string"},
                     {"reason", "string"},
                     {"seconds", "number"},
                     {"budget_s", "number"},
                     {"n_passed", "number"},
                     {"failures", "array"}});
    }
  }
  static void ExpectKeys(
      const json& of,
      const std::vector<std::pair<std::string, std::string>>& keys) {
    for (const auto& [key, type] : keys) {
      ASSERT_TRUE(of.contains(key)) << key << " in " << of;
      EXPECT_EQ(of[key].type_name(), type) << key << " in " << of;
    }
  }

  testing::TempDir dir_;
  json report_;
};

// One or two tests of each stage; all kernels and replays.
constexpr char kFewTests[] =
    " --filter 'RmsNormCudaTest.*:GemmCudaTest.Tensor*"
    ":*RowsTest.Copies*:*OpsCudaTest.AnExport*:CudaSharedMemoryTest.*"
    ":*FamilyConformance.Bad*/w5_cuda:*.ACancelled*/w5_cuda"
    ":*.ACancelledForward*/w8_tensor_cuda'";

TEST_F(GpuCheckTest, EveryStageReports) {
  EXPECT_EQ(Run(TORPOR_GPU_CHECK, kFewTests), 0) << Text("stdout");
  ExpectSchema();
  EXPECT_EQ(report_["verdict"], "passed");
  for (const char* name : {"device", "kernels", "backend", "ipc", "families",
                           "kernel-speed", "replay-speed"}) {
    EXPECT_EQ(Stage(name)["verdict"], "passed") << name;
    EXPECT_GT(Stage(name)["n_passed"], 0) << name;
  }
  for (const char* name : {"memcheck", "racecheck", "initcheck", "synccheck"}) {
    EXPECT_EQ(Stage(name)["verdict"], "not run") << name;
    EXPECT_THAT(Stage(name)["reason"].get<std::string>(),
                HasSubstr("no compute-sanitizer"));
  }
  double budget = 0;
  for (const json& stage : report_["stages"]) {
    budget += stage["budget_s"].get<double>();
  }
  EXPECT_LE(budget / 5, 480);
  EXPECT_EQ(report_["ceilings"].size(), 5);
  // Every way to wake, in every batch, with each way to multiply.
  std::map<std::string, std::set<std::string>> replays;
  for (const json& r : report_["replays"]) {
    replays[r["gemm"].get<std::string>()].insert(absl::StrFormat(
        "%s x %d", r["mode"].get<std::string>(), r["sessions"].get<int>()));
    EXPECT_THAT(r["numerics_id"].get<std::string>(),
                ::testing::StartsWith(r["gemm"] == "simt"
                                          ? "cuda/gpu-check/gemma3"
                                          : "cuda/gpu-check/tensor/gemma3"));
  }
  EXPECT_EQ(replays.size(), 2u);
  EXPECT_EQ(replays["simt"].size(), 5u);
  EXPECT_EQ(replays["simt"], replays["tensor cores"]);
  EXPECT_THAT(Text("report.txt"), HasSubstr("gpu-check: passed"));
}

// "RmsNorm" for each `int RmsNormCuda(` that a header of the folder declares;
// every such header states a floor.
std::set<std::string> LaunchersOf(const std::string& folder) {
  static const std::regex kLauncher("(^|\\n)int (\\w+)Cuda\\(");
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (!path.ends_with("_cuda.h")) continue;
    std::ifstream in(path);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    const std::sregex_iterator found(text.begin(), text.end(), kLauncher);
    for (auto it = found; it != std::sregex_iterator(); ++it) {
      names.insert((*it)[2]);
      EXPECT_THAT(text, HasSubstr("Floor:")) << path;
    }
  }
  return names;
}

TEST_F(GpuCheckTest, EveryLauncherIsMeasured) {
  EXPECT_EQ(Run(TORPOR_GPU_CHECK, "--only kernel-speed"), 0) << Text("stdout");
  std::set<std::string> measured;
  for (const json& kernel : report_["kernels"]) {
    measured.insert(kernel["name"].get<std::string>());
  }
  EXPECT_EQ(LaunchersOf(TORPOR_SOURCE_DIR "/kernels"), measured);
}

TEST_F(GpuCheckTest, AWrongKernelFailsAndIsNamed) {
  EXPECT_EQ(Run(TORPOR_GPU_CHECK_PLANTED,
                "--only kernels,kernel-speed,replay-speed "
                "--filter 'RmsNormCudaTest.*:RopeCudaTest.*'"),
            1);
  EXPECT_EQ(report_["verdict"], "failed");
  EXPECT_THAT(
      FailuresOf(Stage("kernels")),
      ::testing::IsSupersetOf(
          {"RmsNormCudaTest.F32RowsAgreeWithTheReferenceUnderEverySchedule",
           "RmsNormCudaTest.Bf16RowsAreRoundedOnce"}));
  for (const std::string& name : FailuresOf(Stage("kernels"))) {
    EXPECT_THAT(name, ::testing::StartsWith("RmsNormCudaTest."));
  }
  EXPECT_EQ(FailuresOf(Stage("kernel-speed")),
            (std::set<std::string>{"RmsNorm 3x640", "RmsNorm 12x256"}));
  EXPECT_THAT(Text("stdout"),
              HasSubstr("kernels: FAILED: RmsNormCudaTest.F32Rows"));
}

TEST_F(GpuCheckTest, AStageOverItsBudgetIsStoppedAndSaid) {
  EXPECT_EQ(Run(TORPOR_GPU_CHECK, "--only families --budget-scale 0.03"), 2);
  EXPECT_EQ(report_["verdict"], "stopped");
  EXPECT_EQ(Stage("families")["verdict"], "stopped");
  EXPECT_THAT(Stage("families")["reason"].get<std::string>(),
              HasSubstr("over its budget of 3 s, during Gemma3/"));
}

TEST_F(GpuCheckTest, AFilterThatMatchesNothingFails) {
  EXPECT_EQ(Run(TORPOR_GPU_CHECK, "--only kernels --filter Nobody.*"), 1);
  EXPECT_THAT(FailuresOf(Stage("kernels")), ::testing::ElementsAre("tests"));
  // Its tool would find nothing.
  EXPECT_EQ(Run(TORPOR_GPU_CHECK,
                "--only memcheck --filter Nobody.* --sanitizer /bin/true"),
            1);
  EXPECT_THAT(FailuresOf(Stage("memcheck")), ::testing::ElementsAre("tests"));
}

// Tools that find a fault in one test, none, none, and do not come to their
// end.
TEST_F(GpuCheckTest, WhatComputeSanitizerFindsIsNamed) {
  const std::string tool = dir_.File("tool");
  std::ofstream(tool) << R"(#!/bin/sh
export PATH=/usr/bin:/bin
tool=$2
[ "$1 $3 $4" = '--tool --check-exit-code no' ] || exit 3
shift 4
case $tool in
  memcheck)
    "$@" | sed '/RUN .*RmsNorm.*NoRows/a ========= Invalid __global__ write of size 4 bytes'
    echo '========= ERROR SUMMARY: 1 error' ;;
  racecheck)
    "$@"
    echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)' ;;
  initcheck)
    [ "$1 $2 $TORPOR_CUDA_UNPOISONED" = '--check-api-memory-access no 1' ] || exit 3
    shift 2
    "$@"
    echo '========= ERROR SUMMARY: 0 errors' ;;
  synccheck)
    "$@" ;;
esac
)";
  chmod(tool.c_str(), 0755);
  EXPECT_EQ(Run(TORPOR_GPU_CHECK,
                "--only memcheck,racecheck,initcheck,synccheck --sanitizer " +
                    tool + " --filter 'RmsNormCudaTest.No*:RopeCudaTest.*'"),
            1);
  EXPECT_THAT(FailuresOf(Stage("memcheck")),
              ::testing::ElementsAre("RmsNormCudaTest.NoRowsAreNoLaunch"));
  EXPECT_THAT(Stage("memcheck")["failures"][0]["text"].get<std::string>(),
              HasSubstr("Invalid __global__ write"));
  EXPECT_EQ(Stage("racecheck")["verdict"], "passed");
  EXPECT_EQ(Stage("initcheck")["verdict"], "passed");
  EXPECT_GT(Stage("initcheck")["n_passed"], 1);
  EXPECT_THAT(Stage("synccheck")["failures"][0]["text"].get<std::string>(),
              HasSubstr("ended without a summary"));
}

}  // namespace
}  // namespace torpor::gpu_check
