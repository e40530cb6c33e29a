// SPDX-License-Identifier: Apache-2.0
//
// tests/kernels/cuda_testing.h on a GPU: one schedule, the device's own. A call
// that fails ends the program with CUDA's text, since after a fault nothing
// works in its process; whoever runs it names the test that ran.

#ifndef TORPOR_TESTS_KERNELS_CUDA_TESTING_DEVICE_H_
#define TORPOR_TESTS_KERNELS_CUDA_TESTING_DEVICE_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/kernels/kernel_testing.h"

namespace torpor::kernels {

// NaN as float and bf16, as fresh memory of the emulator. Unset where a tool
// looks for reads of memory that nobody wrote.
inline bool PoisonsFreshMemory() {
  static const bool poisons = std::getenv("TORPOR_CUDA_UNPOISONED") == nullptr;
  return poisons;
}

inline void CheckCuda(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  std::fflush(stdout);
  std::fprintf(stderr, "%s: CUDA error %d, %s\n", what.c_str(),
               static_cast<int>(error), cudaGetErrorString(error));
  std::fflush(stderr);
  std::_Exit(1);
}

// n elements of device memory, exactly so many bytes of it. Not copyable.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t n, std::string name = "")
      : n_(n), name_(std::move(name)) {
    void* p = nullptr;
    CheckCuda(cudaMalloc(&p, std::max<size_t>(bytes(), 1)), name_);
    data_ = static_cast<T*>(p);
    if (PoisonsFreshMemory()) CheckCuda(cudaMemset(p, 0xff, bytes()), name_);
  }
  explicit DeviceBuffer(std::span<const T> values, std::string name = "")
      : DeviceBuffer(values.size(), std::move(name)) {
    Upload(values);
  }
  explicit DeviceBuffer(const std::vector<T>& values, std::string name = "")
      : DeviceBuffer(std::span<const T>(values), std::move(name)) {}
  // Waits for the device.
  ~DeviceBuffer() { CheckCuda(cudaFree(data_), name_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  // REQUIRES: at + values.size() <= size().
  void Upload(std::span<const T> values, size_t at = 0) const {
    CheckCuda(cudaMemcpy(data_ + at, values.data(), values.size_bytes(),
                         cudaMemcpyHostToDevice),
              name_);
  }
  std::vector<T> Download() const {
    std::vector<T> out(n_);
    CheckCuda(cudaMemcpy(out.data(), data_, bytes(), cudaMemcpyDeviceToHost),
              name_);
    return out;
  }

  T* data() const { return data_; }
  size_t size() const { return n_; }

 private:
  size_t bytes() const { return n_ * sizeof(T); }

  size_t n_;
  std::string name_;
  T* data_ = nullptr;
};

// Waits for the device; what went wrong since the last call, empty as a rule.
inline std::string Reports() {
  CheckCuda(cudaDeviceSynchronize(), "work on the device");
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

class CudaTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(Reports(), ""); }
};

inline void ForEachSchedule(const std::function<void()>& run) { run(); }

}  // namespace torpor::kernels

#endif  // TORPOR_TESTS_KERNELS_CUDA_TESTING_DEVICE_H_
