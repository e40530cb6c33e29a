// SPDX-License-Identifier: Apache-2.0
//
// The interface between programs and libtorpor_cuda.so.

#ifndef TORPOR_KERNELS_CUDA_PLUGIN_H_
#define TORPOR_KERNELS_CUDA_PLUGIN_H_

#include <cstdint>

extern "C" {

// Raised with every change of this file.
inline constexpr int kTorporCudaInterface = 3;

struct TorporCudaDevice {
  char name[256];
  int compute_major;
  int compute_minor;
  uint64_t memory_bytes;
};

// kTorporCudaInterface as the plugin was built.
using TorporCudaInterfaceFn = int();
// Writes up to `max` devices, returns how many there are; -1 with the CUDA
// runtime's text in `error` (NUL-terminated, at most `error_size` bytes).
using TorporCudaDevicesFn = int(TorporCudaDevice* devices, int max, char* error,
                                int error_size);
// A new torpor::kernels::Ops on a device, which the caller deletes; null with a
// text in `error`, likewise. Program and plugin are of one build: both have the
// same class. `memory_bytes`: device memory that it holds at most;
// `tensor_cores`: 1 to multiply on them (kernels/ops_cuda.h), else 0.
using TorporCudaOpsFn = void*(int device, uint64_t memory_bytes,
                              int tensor_cores, char* error, int error_size);
}

#endif  // TORPOR_KERNELS_CUDA_PLUGIN_H_
