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
absl::StatusOr<Device> CudaDevice(const kernels::CudaBackendOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const auto devices, kernels::CudaDevices());
  if (static_cast<size_t>(options.device) >= devices.size()) {
    return absl::UnavailableError(
        absl::StrFormat("cuda:%d: there are %d devices, counted from 0",
                        options.device, devices.size()));
  }
  return Device{.name = absl::StrFormat("cuda:%d", options.device),
                .open = [=] { return kernels::OpenCudaDevice(options); }};
}

}  // namespace

absl::StatusOr<Device> ChooseDevice(const DeviceOptions& options) {
  if (options.gemm != "simt" && options.gemm != "tensor") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "device_gemm: got '%s', wanted simt or tensor", options.gemm));
  }
  kernels::CudaBackendOptions backend{.tensor_cores = options.gemm == "tensor"};
  if (options.memory_bytes != 0) backend.memory_bytes = options.memory_bytes;
  const std::string& name = options.name;
  if (name == "cpu") return Device{.name = "cpu"};
  if (name == "auto") {
    absl::StatusOr<Device> cuda = CudaDevice(backend);
    if (cuda.ok()) return cuda;
    return Device{.name = "cpu",
                  .reason = std::string(cuda.status().message())};
  }
  if (name.starts_with(kCuda) &&
      absl::SimpleAtoi(name.substr(kCuda.size()), &backend.device) &&
      backend.device >= 0) {
    return CudaDevice(backend);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("device: got '%s', wanted auto, cpu or cuda:N", name));
}

}  // namespace torpor::service
