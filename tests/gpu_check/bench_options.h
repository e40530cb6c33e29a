// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_TESTS_GPU_CHECK_BENCH_OPTIONS_H_
#define TORPOR_TESTS_GPU_CHECK_BENCH_OPTIONS_H_

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

namespace torpor::gpu_check {

struct BenchOptions {
  // Shapes that an emulator can run.
  bool tiny = false;
  // Seconds until this program is stopped.
  double budget_s = 60;
};

// One line of JSON on stdout, for whoever runs this program.
inline void Tell(const std::string& key, const nlohmann::json& value) {
  std::cout << nlohmann::json{{key, value}}.dump() << std::endl;
}

}  // namespace torpor::gpu_check

#endif  // TORPOR_TESTS_GPU_CHECK_BENCH_OPTIONS_H_
