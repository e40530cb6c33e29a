// SPDX-License-Identifier: Apache-2.0
//
// Holds kernels/cuda_driver.h against the real cuda.h, at compile time.

#include "kernels/cuda_driver.h"

#include <cuda.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace torpor::kernels {
namespace {

// Passed alike: the driver's enums are ints here, its objects void pointers.
template <typename Ours, typename Theirs>
constexpr bool kSame = sizeof(Ours) == sizeof(Theirs) &&
                       alignof(Ours) == alignof(Theirs) &&
                       std::is_pointer_v<Ours> ==
                           std::is_pointer_v<Theirs>&& std::is_class_v<Ours> ==
                           std::is_class_v<Theirs>;

template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename... Ours, typename... Theirs>
constexpr bool kSameCall<int (*)(Ours...), CUresult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (kSame<Ours, Theirs> && ...);
  } else {
    return false;
  }
}();

#define TORPOR_TEXT_(x) #x
#define TORPOR_TEXT(x) TORPOR_TEXT_(x)
#define TORPOR_CHECK_CALL(member, name, version, arguments)                  \
  static_assert(kSameCall<decltype(CudaDriver::member), decltype(&(name))>); \
  static_assert(std::string_view(TORPOR_TEXT(name)) == #name #version);
TORPOR_CUDA_DRIVER_CALLS(TORPOR_CHECK_CALL)

static_assert(kSame<CudaAddress, CUdeviceptr>);
static_assert(kSame<CudaUuid, CUuuid>);
static_assert(kSame<CudaIpcHandle, CUipcMemHandle>);
static_assert(kSame<CudaLocation, CUmemLocation>);
static_assert(kSame<CudaAccess, CUmemAccessDesc>);
static_assert(kSame<CudaAllocationProperties, CUmemAllocationProp>);
static_assert(offsetof(CudaLocation, device) == offsetof(CUmemLocation, id));
static_assert(offsetof(CudaAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(offsetof(CudaAllocationProperties, handle_types) ==
              offsetof(CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(CudaAllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));

static_assert(kCudaSuccess == static_cast<int>(CUDA_SUCCESS));
static_assert(kCudaOutOfMemory == static_cast<int>(CUDA_ERROR_OUT_OF_MEMORY));
static_assert(kCudaNotSupported == static_cast<int>(CUDA_ERROR_NOT_SUPPORTED));
static_assert(
    kCudaAttributeVirtualMemory ==
    static_cast<int>(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(
    kCudaAttributeFdHandles ==
    static_cast<int>(
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(kCudaAllocationPinned ==
              static_cast<int>(CU_MEM_ALLOCATION_TYPE_PINNED));
static_assert(kCudaHandleFd ==
              static_cast<int>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
static_assert(kCudaLocationDevice ==
              static_cast<int>(CU_MEM_LOCATION_TYPE_DEVICE));
static_assert(kCudaAccessReadWrite ==
              static_cast<int>(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
static_assert(kCudaGranularityMinimum ==
              static_cast<int>(CU_MEM_ALLOC_GRANULARITY_MINIMUM));
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kCudaIpcLazyPeerAccess == CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

}  // namespace
}  // namespace torpor::kernels
