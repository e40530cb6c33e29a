// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::kernels {
namespace {

template <typename Function>
absl::Status Find(void* library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(library, name));
  if (*function == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("CUDA driver: has no %s", name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Load(const char* library) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("CUDA driver: %s", dlerror()));
  }
  CudaDriver driver;
#define TORPOR_CUDA_DRIVER_FIND(member, name, version, arguments) \
  TORPOR_RETURN_IF_ERROR(Find(loaded, #name #version, &driver.member));
  TORPOR_CUDA_DRIVER_CALLS(TORPOR_CUDA_DRIVER_FIND)
#undef TORPOR_CUDA_DRIVER_FIND
  TORPOR_RETURN_IF_ERROR(driver.Check(driver.init(0), "cuInit"));
  return driver;
}

absl::Status CudaDriver::Check(int result, const char* call) const {
  if (result == kCudaSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(result, &name) != kCudaSuccess ||
      get_error_string(result, &text) != kCudaSuccess) {
    name = "unknown error";
    text = "no text";
  }
  const std::string message =
      absl::StrFormat("CUDA driver: %s: %s (%d), %s", call, name, result, text);
  switch (result) {
    case kCudaOutOfMemory:
      return absl::ResourceExhaustedError(message);
    case kCudaNotSupported:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnavailableError(message);
  }
}

}  // namespace torpor::kernels
