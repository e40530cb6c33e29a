// SPDX-License-Identifier: Apache-2.0
//
// tests/kernels/cuda_testing.h on the emulator. A test fails when the emulator
// has reports that it did not take.

#ifndef TORPOR_TESTS_KERNELS_CUDA_TESTING_EMULATED_H_
#define TORPOR_TESTS_KERNELS_CUDA_TESTING_EMULATED_H_

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda_emulation/device_memory.h"
#include "kernels/cuda_emulation/emulation.h"
#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {

using emulation::DeviceBuffer;

// Takes the emulator's reports, a line each.
inline std::string Reports() {
  std::string out;
  for (const emulation::Report& report : emulation::TakeReports()) {
    out += ToString(report) + "\n";
  }
  return out;
}

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override { emulation::SetSchedule({}); }
  void TearDown() override { EXPECT_EQ(Reports(), ""); }
};

// In order, in reverse, in two orders drawn from the test's seed, and in
// another with blocks on two threads of the host.
inline std::vector<emulation::Schedule> Schedules() {
  using emulation::Order;
  const uint64_t seed = testing::TestSeed();
  return {{.order = Order::kForward},
          {.order = Order::kReverse},
          {.order = Order::kRandom, .seed = seed},
          {.order = Order::kRandom, .seed = seed + 1},
          {.order = Order::kRandom, .seed = seed + 2, .n_host_threads = 2}};
}

inline void ForEachSchedule(const std::function<void()>& run) {
  for (const emulation::Schedule& schedule : Schedules()) {
    SCOPED_TRACE("schedule: " + ToString(schedule));
    emulation::SetSchedule(schedule);
    run();
    emulation::SetSchedule({});
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_CUDA_TESTING_EMULATED_H_
