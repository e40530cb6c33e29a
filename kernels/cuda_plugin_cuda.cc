// SPDX-License-Identifier: Apache-2.0
//
// libtorpor_cuda.so: what programs ask of CUDA.

#include "kernels/cuda_plugin.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

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
}
