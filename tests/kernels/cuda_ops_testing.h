// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend for tests that run on the emulator and on a GPU.

#ifndef TORPOR_TESTS_KERNELS_CUDA_OPS_TESTING_H_
#define TORPOR_TESTS_KERNELS_CUDA_OPS_TESTING_H_

#ifdef TORPOR_CUDA_EMULATED

#include "tests/kernels/emulated_ops.h"

namespace torpor::kernels {

using TestDevice = EmulatedDevice;

}  // namespace torpor::kernels

#else

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/ops_cuda.h"
#include "tests/kernels/cuda_testing.h"

namespace torpor::kernels {

// The first GPU.
class TestDevice {
 public:
  struct Options {
    // Of the emulator's streams; a GPU's run when they may.
    bool late = false;
  };
  TestDevice() = default;
  explicit TestDevice(const Options& /*options*/) {}

  // As EmulatedDevice::NewOps.
  static std::unique_ptr<Ops> NewOps(bool tensor_cores = false) {
    auto ops = MakeCudaOps({.name = "cuda/test",
                            .tensor_cores = tensor_cores,
                            .keep_memory = false,
                            .staging_bytes = 4096,
                            .staging_pieces = 2});
    EXPECT_TRUE(ops.ok()) << ops.status();
    return *std::move(ops);
  }
};

}  // namespace torpor::kernels

#endif  // TORPOR_CUDA_EMULATED

#endif  // TORPOR_TESTS_KERNELS_CUDA_OPS_TESTING_H_
