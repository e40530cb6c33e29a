// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace torpor::kernels {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// With or without plugin, driver and device: devices, or the reason.
TEST(CudaDevicesTest, GivesDevicesOrTheReason) {
  const auto devices = CudaDevices();
  if (devices.ok()) {
    ASSERT_FALSE(devices->empty());
    for (const CudaDevice& device : *devices) {
      EXPECT_FALSE(device.name.empty());
      EXPECT_GE(device.compute_major, 1);
      EXPECT_GT(device.memory_bytes, 0u);
    }
    return;
  }
  EXPECT_TRUE(absl::IsUnavailable(devices.status())) << devices.status();
  const std::string message(devices.status().message());
#ifdef TORPOR_CUDA
  // The plugin was built beside this test: it must load, without a driver too.
  EXPECT_THAT(message, HasSubstr("CUDA runtime: "));
  EXPECT_THAT(message, Not(HasSubstr("CUDA plugin")));
#else
  EXPECT_THAT(message, HasSubstr("CUDA plugin: "));
  EXPECT_THAT(message, HasSubstr("libtorpor_cuda.so"));
#endif
}

TEST(CudaDevicesTest, SaysTheSameTwice) {
  EXPECT_EQ(CudaDevices().status(), CudaDevices().status());
}

}  // namespace
}  // namespace torpor::kernels
