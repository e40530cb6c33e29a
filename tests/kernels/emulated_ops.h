// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on an emulated device of its own.

#ifndef TORPOR_TESTS_KERNELS_EMULATED_OPS_H_
#define TORPOR_TESTS_KERNELS_EMULATED_OPS_H_

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/cuda_emulation/stream.h"
#include "kernels/ops_cuda.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {

// One at a time. When it ends, nothing may be left of what it allocated, and
// the emulator may have found no fault.
class EmulatedDevice {
 public:
  using Options = emulation::DeviceControl::Options;
  explicit EmulatedDevice(const Options& options = {}) : control_(options) {}
  ~EmulatedDevice() {
    EXPECT_EQ(Reports(), "");
    EXPECT_EQ(control_.bytes_allocated(), 0u);
  }
  EmulatedDevice(const EmulatedDevice&) = delete;
  EmulatedDevice& operator=(const EmulatedDevice&) = delete;

  // A backend with little pinned memory, so that it is used again and again.
  static std::unique_ptr<Ops> NewOps(bool tensor_cores = false) {
    auto ops = MakeCudaOps({.name = "cuda/emulated",
                            .tensor_cores = tensor_cores,
                            .keep_memory = false,
                            .staging_bytes = 4096,
                            .staging_pieces = 2});
    EXPECT_TRUE(ops.ok()) << ops.status();
    return *std::move(ops);
  }
  emulation::DeviceControl& control() { return control_; }

 private:
  emulation::DeviceControl control_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_EMULATED_OPS_H_
