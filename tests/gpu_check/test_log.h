// SPDX-License-Identifier: Apache-2.0
//
// What a GoogleTest program wrote: also one that crashed leaves its verdicts so
// far there.

#ifndef TORPOR_TESTS_GPU_CHECK_TEST_LOG_H_
#define TORPOR_TESTS_GPU_CHECK_TEST_LOG_H_

#include <string>
#include <string_view>
#include <vector>

namespace torpor::gpu_check {

struct TestVerdict {
  // "RmsNormCudaTest.NoRowsAreNoLaunch".
  std::string name;
  enum class Kind { kPassed, kFailed, kSkipped, kUnfinished };
  Kind kind = Kind::kUnfinished;
  // What it wrote.
  std::string text;
};

// In their order; only the last can be unfinished.
std::vector<TestVerdict> ParseTestLog(std::string_view output);

// Names in the answer to --gtest_list_tests.
std::vector<std::string> ParseTestList(std::string_view output);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_TEST_LOG_H_
