// SPDX-License-Identifier: Apache-2.0
//
// libtorpor_cuda.so: what programs ask of CUDA.

#include "kernels/cuda_plugin.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "kernels/ops_cuda.h"

extern "C" {

__attribute__((visibility("default"))) int torpor_cuda_interface() {
  return kTorporCudaInterface;
}

__attribute__((visibility("default"))) int torpor_cuda_devices(
    TorporCudaDevice* devices, int max, char* error, int error_size) {
  int n = 0;
  cudaError_t status = cudaGetDeviceCount(&n);
  if (status == cudaErrorNoDevice) return 0;
  for (int i = 0; status == cudaSuccess && i < n && i < max; ++i) {
    cudaDeviceProp properties;
    status = cudaGetDeviceProperties(&properties, i);
    if (status != cudaSuccess) break;
    std::snprintf(devices[i].name, sizeof(devices[i].name), "%s",
                  properties.name);
    devices[i].compute_major = properties.major;
    devices[i].compute_minor = properties.minor;
    devices[i].memory_bytes = properties.totalGlobalMem;
  }
  if (status == cudaSuccess) return n;
  std::snprintf(error, static_cast<size_t>(error_size), "%s",
                cudaGetErrorString(status));
  return -1;
}

__attribute__((visibility("default"))) void* torpor_cuda_ops(
    int device, uint64_t memory_bytes, int tensor_cores, char* error,
    int error_size) {
  cudaDeviceProp properties;
  const cudaError_t status = cudaGetDeviceProperties(&properties, device);
  std::string text = cudaGetErrorString(status);
  if (status == cudaSuccess) {
    auto ops = torpor::kernels::MakeCudaOps(
        {.device = device,
         .name = absl::StrFormat("cuda/sm_%d%d", properties.major,
                                 properties.minor),
         .tensor_cores = tensor_cores != 0,
         .memory_bytes = memory_bytes});
    if (ops.ok()) return ops->release();
    text = std::string(ops.status().message());
  }
  std::snprintf(error, static_cast<size_t>(error_size), "%s", text.c_str());
  return nullptr;
}
}
