// SPDX-License-Identifier: Apache-2.0
//
// The CUDA devices of this host. Everything of CUDA lives in a plugin,
// libtorpor_cuda.so, built by the preset `cuda` with cudart inside and loaded
// at run time: one package starts with and without a GPU (design D13).
// Thread-safe.

#ifndef TORPOR_KERNELS_CUDA_DEVICES_H_
#define TORPOR_KERNELS_CUDA_DEVICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace torpor::kernels {

struct CudaDevice {
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
};

// kUnavailable, with the reason: no plugin beside the program or on the
// library path, no driver, no device; kFailedPrecondition for a plugin of
// another release.
absl::StatusOr<std::vector<CudaDevice>> CudaDevices();

// As those of kernels/ops_cuda.h.
struct CudaBackendOptions {
  // Its number.
  int device = 0;
  uint64_t memory_bytes = UINT64_MAX;
  bool tensor_cores = false;
};

// A backend on a device. As CudaDevices, and kUnavailable when the device
// cannot be used.
absl::StatusOr<std::shared_ptr<Ops>> OpenCudaDevice(
    const CudaBackendOptions& options);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_DEVICES_H_
