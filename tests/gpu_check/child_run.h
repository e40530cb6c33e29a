// SPDX-License-Identifier: Apache-2.0
//
// Commands that may crash or hang: a GPU that faults takes its process along.

#ifndef TORPOR_TESTS_GPU_CHECK_CHILD_RUN_H_
#define TORPOR_TESTS_GPU_CHECK_CHILD_RUN_H_

#include <chrono>
#include <string>
#include <vector>

namespace torpor::gpu_check {

using Clock = std::chrono::steady_clock;

struct ChildEnd {
  // Whether it was killed because its time was over.
  bool stopped = false;
  // Whether it ended with 0.
  bool ok = false;
  // "exit status 1", "signal 11"; what failed when it did not start.
  std::string how;
  // What it wrote, stdout and stderr as they came.
  std::string output;
};

// Runs argv with these additions to the environment ("NAME=value") until
// `deadline`; then it and its own children are killed. What it writes goes to
// the end of file `log` too.
ChildEnd RunChild(const std::vector<std::string>& argv,
                  const std::vector<std::string>& environment,
                  const std::string& log, Clock::time_point deadline);

// Path of this program.
std::string ThisProgram();

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_CHILD_RUN_H_
