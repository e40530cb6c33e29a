// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/device.h"

#include "absl/strings/str_format.h"

#ifndef TORPOR_CUDA_EMULATED
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#endif

namespace torpor::gpu_check {

using nlohmann::json;

#ifdef TORPOR_CUDA_EMULATED

json DescribeDevice() {
  return {{"name", "emulator"},   {"compute_major", 0}, {"compute_minor", 0},
          {"memory_bytes", 0},    {"l2_bytes", 0},      {"driver", 0},
          {"multiprocessors", 0}, {"runtime", 0}};
}

#else

namespace {

// The kernels' oldest code.
constexpr int kComputeMajorMin = 8;

json Error(const std::string& what) { return {{"error", what}}; }

json Error(const std::string& what, cudaError_t error) {
  return Error(absl::StrFormat("%s: CUDA error %d, %s", what,
                               static_cast<int>(error),
                               cudaGetErrorString(error)));
}

}  // namespace

json DescribeDevice() {
  if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) {
    return Error(absl::StrFormat("no CUDA driver: %s", std::string(dlerror())));
  }
  int n = 0;
  cudaError_t error = cudaGetDeviceCount(&n);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (error == cudaErrorInsufficientDriver) {
    return Error(absl::StrFormat(
        "CUDA driver: got version %d, wanted one of CUDA %d.0 (%d) or later",
        driver, CUDART_VERSION / 1000, CUDART_VERSION / 1000 * 1000));
  }
  if (error != cudaSuccess) return Error("device", error);
  if (n == 0) return Error("no CUDA device");
  cudaDeviceProp p;
  error = cudaGetDeviceProperties(&p, 0);
  if (error != cudaSuccess) return Error("device 0", error);
  if (p.major < kComputeMajorMin) {
    return Error(absl::StrFormat(
        "%s: got compute capability %d.%d, wanted %d.0 or later", p.name,
        p.major, p.minor, kComputeMajorMin));
  }
  // The first call that needs a context.
  error = cudaFree(nullptr);
  if (error != cudaSuccess) return Error(p.name, error);
  return {{"name", p.name},
          {"compute_major", p.major},
          {"compute_minor", p.minor},
          {"memory_bytes", p.totalGlobalMem},
          {"multiprocessors", p.multiProcessorCount},
          {"l2_bytes", p.l2CacheSize},
          {"driver", driver},
          {"runtime", CUDART_VERSION}};
}

#endif  // TORPOR_CUDA_EMULATED

}  // namespace torpor::gpu_check
