// SPDX-License-Identifier: Apache-2.0
//
// For the tests of the emulator itself, with the faults of
// cuda_emulation_kernels.h.

#ifndef TORPOR_TESTS_KERNELS_CUDA_EMULATION_TESTING_H_
#define TORPOR_TESTS_KERNELS_CUDA_EMULATION_TESTING_H_

#include <gmock/gmock.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {

// 1, 2, ...
inline std::vector<float> Count(size_t n) {
  std::vector<float> out(n);
  std::iota(out.begin(), out.end(), 1.0f);
  return out;
}

inline std::vector<float> Reversed(const std::vector<float>& in) {
  return {in.rbegin(), in.rend()};
}

class CudaEmulationTest : public CudaTest {
 protected:
  // `launch` faults under each schedule, first by `fault` with a text that
  // matches the regular expression.
  void ExpectFault(emulation::Fault fault, const std::string& text,
                   const std::function<int()>& launch) {
    ForEachSchedule([&] {
      EXPECT_EQ(launch(), 719);
      const std::vector<emulation::Report> reports = emulation::TakeReports();
      ASSERT_FALSE(reports.empty());
      EXPECT_EQ(reports[0].fault, fault) << ToString(reports[0]);
      EXPECT_THAT(ToString(reports[0]), ::testing::ContainsRegex(text));
    });
  }

  void ExpectRefused(const std::string& text, int error) {
    EXPECT_EQ(error, 9);
    const std::vector<emulation::Report> reports = emulation::TakeReports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].fault, emulation::Fault::kLaunchLimit);
    EXPECT_THAT(ToString(reports[0]), ::testing::HasSubstr(text));
  }
};

// Of accesses, which need the compiler's hooks.
class CudaAccessTest : public CudaEmulationTest {
 protected:
  void SetUp() override {
    CudaEmulationTest::SetUp();
    if (!emulation::AccessesAreChecked()) {
      GTEST_SKIP() << "accesses go unseen under ThreadSanitizer";
    }
  }
};

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_CUDA_EMULATION_TESTING_H_
