// SPDX-License-Identifier: Apache-2.0
//
// Where a program's models run, as `--device` and the config file say it.

#ifndef TORPOR_SERVICE_DEVICE_H_
#define TORPOR_SERVICE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace torpor::service {

struct Device {
  // "cpu", "cuda:0".
  std::string name;
  // Of `auto`, why it is the CPU.
  std::string reason;
  // A backend for one more model; null on the CPU.
  std::function<absl::StatusOr<std::shared_ptr<kernels::Ops>>()> open;
};

// `cpu`; `cuda:N`; `auto`: the first CUDA device, else the CPU. Each backend
// holds `memory_bytes` of a device at most, 0 = as much as there is.
// kInvalidArgument for another text; kUnavailable, with the reason, when the
// named device is not there.
absl::StatusOr<Device> ChooseDevice(const std::string& text,
                                    uint64_t memory_bytes);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_DEVICE_H_
