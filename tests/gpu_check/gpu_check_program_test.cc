// SPDX-License-Identifier: Apache-2.0
//
// The program that goes to a machine with a GPU, on one that may have none.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>

#include "tests/gpu_check/test_log.h"
#include "tests/testing/temp_dir.h"

namespace torpor::gpu_check {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int status = -1;
  std::string output;
};

Ended Shell(const std::string& command) {
  Ended ended;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ended.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ended;
}

TEST(GpuCheckProgramTest, NeedsNothingButGlibc) {
  const Ended ldd = Shell("ldd " TORPOR_GPU_CHECK);
  ASSERT_EQ(ldd.status, 0) << ldd.output;
  static const std::regex kLine("\\s*(\\S+)( => \\S+)? \\(0x[0-9a-f]+\\)");
  static const std::regex kGlibc(
      "linux-vdso\\.so\\.1|/lib64/ld-linux-x86-64\\.so\\.2|"
      "lib(c|m|dl|rt|pthread)\\.so\\.[0-9]");
  std::stringstream lines(ldd.output);
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) {
    std::smatch match;
    ASSERT_TRUE(std::regex_match(line, match, kLine)) << line;
    EXPECT_TRUE(std::regex_match(match[1].str(), kGlibc)) << line;
  }
  EXPECT_GE(n, 3);
}

// docs/CUDA.md says which glibc is enough.
TEST(GpuCheckProgramTest, NeedsNoNewerGlibcThanIsSaid) {
  const Ended dump = Shell("objdump -T " TORPOR_GPU_CHECK);
  ASSERT_EQ(dump.status, 0) << dump.output;
  static const std::regex kVersion("GLIBC_2\\.([0-9]+)");
  int newest = 0;
  for (std::sregex_iterator it(dump.output.begin(), dump.output.end(),
                               kVersion);
       it != std::sregex_iterator(); ++it) {
    newest = std::max(newest, std::stoi((*it)[1]));
  }
  EXPECT_GT(newest, 0);
  EXPECT_LE(newest, 35);
}

TEST(GpuCheckProgramTest, HasTheTestsOfEveryStage) {
  const auto names = ParseTestList(
      Shell(TORPOR_GPU_CHECK " child-tests --gtest_list_tests").output);
  for (const char* name :
       {"RmsNormCudaTest.NoRowsAreNoLaunch",
        "GemmCudaTest.TensorCoresAgreeAndRowsIgnoreTheirCompany",
        "Backends/RowsTest.CopiesTouchNothingBetweenRows/cuda_bf16",
        "CudaSharedMemoryTest.TwoProcessesShareItByDescriptor",
        "Streams/OpsCudaTest.UploadsOutrunNothing/at_once"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
  EXPECT_THAT(names, ::testing::Contains(::testing::MatchesRegex(
                         "Gemma3/FamilyConformance\\..*/w5_cuda")));
}

TEST(GpuCheckProgramTest, SaysThatThereIsNoDriver) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) {
    GTEST_SKIP() << "this machine has a driver";
  }
  const testing::TempDir dir;
  const Ended check = Shell(TORPOR_GPU_CHECK " --out " + dir.path());
  EXPECT_EQ(check.status, 1);
  EXPECT_THAT(check.output, HasSubstr("no CUDA driver: libcuda.so.1"));
  std::ifstream in(dir.File("report.json"));
  const auto report = nlohmann::json::parse(in, nullptr, false);
  ASSERT_TRUE(report.is_object()) << check.output;
  EXPECT_EQ(report["verdict"], "failed");
  EXPECT_EQ(report["stages"][0]["verdict"], "failed");
  for (size_t i = 1; i < report["stages"].size(); ++i) {
    EXPECT_EQ(report["stages"][i]["verdict"], "not run");
    EXPECT_EQ(report["stages"][i]["reason"], "no device");
  }
}

}  // namespace
}  // namespace torpor::gpu_check
