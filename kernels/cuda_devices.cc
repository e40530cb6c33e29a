// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_devices.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda_plugin.h"

namespace torpor::kernels {
namespace {

constexpr char kPlugin[] = "libtorpor_cuda.so";

// Never unloaded: a CUDA runtime does not come back.
absl::StatusOr<void*> LoadPlugin() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string beside = (program.parent_path() / kPlugin).string();
  void* plugin = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) plugin = dlopen(kPlugin, RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("CUDA plugin: %s", dlerror()));
  }
  return plugin;
}

template <typename Function>
absl::StatusOr<Function*> Find(void* plugin, const char* name) {
  auto* function = reinterpret_cast<Function*>(dlsym(plugin, name));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("CUDA plugin: has no %s", name));
  }
  return function;
}

// The plugin, of this release.
absl::StatusOr<void*> Plugin() {
  static const absl::StatusOr<void*> plugin = LoadPlugin();
  TORPOR_RETURN_IF_ERROR(plugin.status());
  TORPOR_ASSIGN_OR_RETURN(
      TorporCudaInterfaceFn * interface,
      Find<TorporCudaInterfaceFn>(*plugin, "torpor_cuda_interface"));
  if (interface() != kTorporCudaInterface) {
    return absl::FailedPreconditionError(
        absl::StrFormat("CUDA plugin: got interface %d, wanted %d", interface(),
                        kTorporCudaInterface));
  }
  return *plugin;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Ops>> OpenCudaDevice(
    const CudaBackendOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<CudaDevice> devices, CudaDevices());
  if (options.device < 0 ||
      static_cast<size_t>(options.device) >= devices.size()) {
    return absl::UnavailableError(
        absl::StrFormat("cuda:%d: there are %d devices, counted from 0",
                        options.device, devices.size()));
  }
  TORPOR_ASSIGN_OR_RETURN(void* plugin, Plugin());
  TORPOR_ASSIGN_OR_RETURN(TorporCudaOpsFn * open,
                          Find<TorporCudaOpsFn>(plugin, "torpor_cuda_ops"));
  std::array<char, 256> error{};
  void* ops =
      open(options.device, options.memory_bytes, options.tensor_cores ? 1 : 0,
           error.data(), static_cast<int>(error.size()));
  if (ops == nullptr) {
    return absl::UnavailableError(
        absl::StrFormat("cuda:%d: %s", options.device, error.data()));
  }
  return std::shared_ptr<Ops>(static_cast<Ops*>(ops));
}

absl::StatusOr<std::vector<CudaDevice>> CudaDevices() {
  TORPOR_ASSIGN_OR_RETURN(void* plugin, Plugin());
  TORPOR_ASSIGN_OR_RETURN(
      TorporCudaDevicesFn * list,
      Find<TorporCudaDevicesFn>(plugin, "torpor_cuda_devices"));
  std::array<TorporCudaDevice, 64> found{};
  std::array<char, 256> error{};
  const int n = list(found.data(), static_cast<int>(found.size()), error.data(),
                     static_cast<int>(error.size()));
  if (n < 0) {
    return absl::UnavailableError(
        absl::StrFormat("CUDA runtime: %s", error.data()));
  }
  if (n == 0) return absl::UnavailableError("CUDA runtime: no device");
  std::vector<CudaDevice> devices;
  for (int i = 0; i < n && i < static_cast<int>(found.size()); ++i) {
    devices.push_back({found[i].name, found[i].compute_major,
                       found[i].compute_minor, found[i].memory_bytes});
  }
  return devices;
}

}  // namespace torpor::kernels
