// SPDX-License-Identifier: Apache-2.0

#include "service/device.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda_devices.h"

namespace torpor::service {
namespace {

constexpr std::string_view kCuda = "cuda:";

// kUnavailable when there is no such device.
absl::StatusOr<Device> CudaDevice(int number, uint64_t memory_bytes) {
  TORPOR_ASSIGN_OR_RETURN(const auto devices, kernels::CudaDevices());
  if (static_cast<size_t>(number) >= devices.size()) {
    return absl::UnavailableError(
        absl::StrFormat("cuda:%d: there are %d devices, counted from 0", number,
                        devices.size()));
  }
  const uint64_t limit = memory_bytes == 0 ? UINT64_MAX : memory_bytes;
  return Device{.name = absl::StrFormat("cuda:%d", number),
                .open = [=] { return kernels::OpenCudaDevice(number, limit); }};
}

}  // namespace

absl::StatusOr<Device> ChooseDevice(const std::string& text,
                                    uint64_t memory_bytes) {
  if (text == "cpu") return Device{.name = "cpu"};
  if (text == "auto") {
    absl::StatusOr<Device> cuda = CudaDevice(0, memory_bytes);
    if (cuda.ok()) return cuda;
    return Device{.name = "cpu",
                  .reason = std::string(cuda.status().message())};
  }
  int number = 0;
  if (text.starts_with(kCuda) &&
      absl::SimpleAtoi(text.substr(kCuda.size()), &number) && number >= 0) {
    return CudaDevice(number, memory_bytes);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("device: got '%s', wanted auto, cpu or cuda:N", text));
}

}  // namespace torpor::service
