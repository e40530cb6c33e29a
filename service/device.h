// SPDX-License-Identifier: Apache-2.0
//
// Where a program's models run, as flags and the config file say it.

#ifndef TORPOR_SERVICE_DEVICE_H_
#define TORPOR_SERVICE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace torpor::service {

struct DeviceOptions {
  // `cpu`; `cuda:N`; `auto`: the first CUDA device, else the CPU.
  std::string name = "cpu";
  // Of its memory, what each backend holds at most; 0 = as much as there is.
  uint64_t memory_bytes = 0;
  // What multiplies on a CUDA device: `simt`, or `tensor`: its tensor cores
  // where they can (CudaOpsOptions), with bits and a numerics id of their own.
  std::string gemm = "simt";
};

struct Device {
  // "cpu", "cuda:0".
  std::string name;
  // Of `auto`, why it is the CPU.
  std::string reason;
  // A backend for one more model; null on the CPU.
  std::function<absl::StatusOr<std::shared_ptr<kernels::Ops>>()> open;
};

// kInvalidArgument for another text; kUnavailable, with the reason, when the
// named device is not there.
absl::StatusOr<Device> ChooseDevice(const DeviceOptions& options);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_DEVICE_H_
