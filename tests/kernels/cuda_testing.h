// SPDX-License-Identifier: Apache-2.0
//
// For tests of kernels/*_cuda.cu, on the emulator or on a GPU:
//
//   class RmsNormCudaTest : public CudaTest {};
//   TEST_F(RmsNormCudaTest, ...) {
//     ForEachSchedule([&] {
//       const DeviceBuffer<float> x(values, "x");
//       const DeviceBuffer<float> out(n, "out");       // poisoned
//       ASSERT_EQ(RmsNormCuda(params, nullptr), 0) << Reports();
//       EXPECT_TRUE(Near(out.Download(), wanted, 1e-6));
//     });
//   }
//
// A test may touch device memory by DeviceBuffer alone: a GPU's is closed to
// it.

#ifndef TORPOR_TESTS_KERNELS_CUDA_TESTING_H_
#define TORPOR_TESTS_KERNELS_CUDA_TESTING_H_

#ifdef TORPOR_CUDA_EMULATED
#include "tests/kernels/cuda_testing_emulated.h"
#else
#include "tests/kernels/cuda_testing_device.h"
#endif

#endif  // TORPOR_TESTS_KERNELS_CUDA_TESTING_H_
