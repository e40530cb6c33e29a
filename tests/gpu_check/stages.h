// SPDX-License-Identifier: Apache-2.0
//
// The stages of a check, each in processes of its own: what a kernel's fault
// takes along is one test, and a stage that hangs is stopped at its budget.

#ifndef TORPOR_TESTS_GPU_CHECK_STAGES_H_
#define TORPOR_TESTS_GPU_CHECK_STAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu_check/report.h"

namespace torpor::gpu_check {

// The first words of this program's own children.
inline constexpr char kDeviceChild[] = "child-device";
inline constexpr char kTestsChild[] = "child-tests";
inline constexpr char kKernelsChild[] = "child-kernels";
inline constexpr char kReplayChild[] = "child-replay";

struct CheckOptions {
  // Exists; takes the children's logs.
  std::string out_dir;
  // Names of stages; empty = all.
  std::vector<std::string> only;
  // Of GoogleTest, within each stage's own tests; empty = all of them.
  std::string filter;
  // Shapes that an emulator can run.
  bool tiny = false;
  // Of every stage's budget.
  double budget_scale = 1.0;
  // compute-sanitizer; empty = there is none.
  std::string sanitizer;
  std::string commit;
  uint64_t seed = 1;
};

// Names of the stages, in their order.
std::vector<std::string> StageNames();

Report RunStages(const CheckOptions& options);

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_STAGES_H_
