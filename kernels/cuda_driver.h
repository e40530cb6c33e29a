// SPDX-License-Identifier: Apache-2.0
//
// The calls of the CUDA driver that memory between processes wants, found in
// the driver's library at run time: no toolkit is needed to build this. Their
// types are declared by hand; kernels/cuda_driver_cuda.cc compares them with
// cuda.h where there is one. Thread-safe.

#ifndef TORPOR_KERNELS_CUDA_DRIVER_H_
#define TORPOR_KERNELS_CUDA_DRIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace torpor::kernels {

inline constexpr char kCudaDriverLibrary[] = "libcuda.so.1";

// CUdeviceptr.
using CudaAddress = unsigned long long;
// CUmemGenericAllocationHandle.
using CudaAllocation = unsigned long long;
// CUuuid, CUipcMemHandle.
struct CudaUuid {
  std::array<uint8_t, 16> bytes = {};
  bool operator==(const CudaUuid&) const = default;
};
struct CudaIpcHandle {
  std::array<uint8_t, 64> bytes = {};
};
// CUmemLocation, CUmemAllocationProp, CUmemAccessDesc.
struct CudaLocation {
  int type = 0;
  int device = 0;
};
struct CudaAllocationProperties {
  int type = 0;
  int handle_types = 0;
  CudaLocation location;
  void* win32_meta_data = nullptr;
  std::array<uint8_t, 8> flags = {};
};
struct CudaAccess {
  CudaLocation location;
  int flags = 0;
};

inline constexpr int kCudaSuccess = 0;
inline constexpr int kCudaOutOfMemory = 2;
inline constexpr int kCudaNotSupported = 801;
inline constexpr int kCudaAttributeVirtualMemory = 102;
inline constexpr int kCudaAttributeFdHandles = 103;
inline constexpr int kCudaAllocationPinned = 1;
inline constexpr int kCudaHandleFd = 1;
inline constexpr int kCudaLocationDevice = 1;
inline constexpr int kCudaAccessReadWrite = 3;
inline constexpr int kCudaGranularityMinimum = 0;
inline constexpr unsigned int kCudaStreamNonBlocking = 1;
inline constexpr unsigned int kCudaIpcLazyPeerAccess = 1;

// CALL(member, name, version, arguments): the library has the call under `name`
// with the version that cuda.h maps the name to.
#define TORPOR_CUDA_DRIVER_CALLS(CALL)                                         \
  CALL(init, cuInit, , (unsigned int flags))                                   \
  CALL(get_error_name, cuGetErrorName, , (int error, const char** name))       \
  CALL(get_error_string, cuGetErrorString, , (int error, const char** text))   \
  CALL(device_get_count, cuDeviceGetCount, , (int* count))                     \
  CALL(device_get, cuDeviceGet, , (int* device, int ordinal))                  \
  CALL(device_get_uuid, cuDeviceGetUuid, _v2, (CudaUuid * uuid, int device))   \
  CALL(device_get_attribute, cuDeviceGetAttribute, ,                           \
       (int* value, int attribute, int device))                                \
  CALL(primary_context_retain, cuDevicePrimaryCtxRetain, ,                     \
       (void** context, int device))                                           \
  CALL(primary_context_release, cuDevicePrimaryCtxRelease, _v2, (int device))  \
  CALL(context_push, cuCtxPushCurrent, _v2, (void* context))                   \
  CALL(context_pop, cuCtxPopCurrent, _v2, (void** context))                    \
  CALL(stream_create, cuStreamCreate, , (void** stream, unsigned int flags))   \
  CALL(stream_destroy, cuStreamDestroy, _v2, (void* stream))                   \
  CALL(stream_synchronize, cuStreamSynchronize, , (void* stream))              \
  CALL(host_allocate, cuMemAllocHost, _v2, (void** host, size_t bytes))        \
  CALL(host_free, cuMemFreeHost, , (void* host))                               \
  CALL(copy_to_device, cuMemcpyHtoDAsync, _v2,                                 \
       (CudaAddress to, const void* from, size_t bytes, void* stream))         \
  CALL(copy_to_host, cuMemcpyDtoHAsync, _v2,                                   \
       (void* to, CudaAddress from, size_t bytes, void* stream))               \
  CALL(fill, cuMemsetD8Async, ,                                                \
       (CudaAddress to, unsigned char value, size_t bytes, void* stream))      \
  CALL(allocate, cuMemAlloc, _v2, (CudaAddress * address, size_t bytes))       \
  CALL(free, cuMemFree, _v2, (CudaAddress address))                            \
  CALL(address_range, cuMemGetAddressRange, _v2,                               \
       (CudaAddress * base, size_t * bytes, CudaAddress address))              \
  CALL(ipc_get_handle, cuIpcGetMemHandle, ,                                    \
       (CudaIpcHandle * handle, CudaAddress address))                          \
  CALL(ipc_open_handle, cuIpcOpenMemHandle, _v2,                               \
       (CudaAddress * address, CudaIpcHandle handle, unsigned int flags))      \
  CALL(ipc_close_handle, cuIpcCloseMemHandle, , (CudaAddress address))         \
  CALL(granularity, cuMemGetAllocationGranularity, ,                           \
       (size_t * bytes, const CudaAllocationProperties* properties,            \
        int option))                                                           \
  CALL(create, cuMemCreate, ,                                                  \
       (CudaAllocation * allocation, size_t bytes,                             \
        const CudaAllocationProperties* properties, unsigned long long flags)) \
  CALL(release, cuMemRelease, , (CudaAllocation allocation))                   \
  CALL(export_handle, cuMemExportToShareableHandle, ,                          \
       (void* handle, CudaAllocation allocation, int type,                     \
        unsigned long long flags))                                             \
  CALL(import_handle, cuMemImportFromShareableHandle, ,                        \
       (CudaAllocation * allocation, void* handle, int type))                  \
  CALL(reserve, cuMemAddressReserve, ,                                         \
       (CudaAddress * address, size_t bytes, size_t alignment,                 \
        CudaAddress hint, unsigned long long flags))                           \
  CALL(unreserve, cuMemAddressFree, , (CudaAddress address, size_t bytes))     \
  CALL(map, cuMemMap, ,                                                        \
       (CudaAddress address, size_t bytes, size_t offset,                      \
        CudaAllocation allocation, unsigned long long flags))                  \
  CALL(unmap, cuMemUnmap, , (CudaAddress address, size_t bytes))               \
  CALL(                                                                        \
      set_access, cuMemSetAccess, ,                                            \
      (CudaAddress address, size_t bytes, const CudaAccess* access, size_t n))

struct CudaDriver {
  // The driver's library, initialised and never unloaded. kUnavailable, with
  // the reason: no library, one without a call of the list, no device.
  static absl::StatusOr<CudaDriver> Load(
      const char* library = kCudaDriverLibrary);

  // What `call` returned: kResourceExhausted for want of memory, else
  // kUnavailable, by the driver's name of the error.
  absl::Status Check(int result, const char* call) const;

// A name and a parameter list.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define TORPOR_CUDA_DRIVER_MEMBER(member, name, version, arguments) \
  int(*member) arguments = nullptr;
  // NOLINTEND(bugprone-macro-parentheses)
  TORPOR_CUDA_DRIVER_CALLS(TORPOR_CUDA_DRIVER_MEMBER)
#undef TORPOR_CUDA_DRIVER_MEMBER
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_DRIVER_H_
