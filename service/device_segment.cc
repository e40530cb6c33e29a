// SPDX-License-Identifier: Apache-2.0

#include "service/device_segment.h"

#include <utility>

#include "base/status.h"

namespace torpor::service {

using kernels::CudaContext;
using kernels::CudaHandleKind;
using kernels::CudaSharedMemory;

absl::StatusOr<std::unique_ptr<DeviceSegment>> DeviceSegment::Create(
    const std::shared_ptr<const CudaContext>& context, CudaHandleKind kind,
    uint64_t bytes) {
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<CudaSharedMemory> memory,
                          CudaSharedMemory::Create(context, kind, bytes));
  TORPOR_ASSIGN_OR_RETURN(ControlPage control, ControlPage::Create());
  if (kind == CudaHandleKind::kLegacy) {
    (*control).cuda_handle = memory->handle();
  }
  return std::unique_ptr<DeviceSegment>(
      new DeviceSegment(std::move(memory), std::move(control)));
}

absl::StatusOr<std::unique_ptr<DeviceSegment>> DeviceSegment::Open(
    const std::shared_ptr<const CudaContext>& context, CudaHandleKind kind,
    std::vector<UniqueFd> descriptors, uint64_t bytes) {
  TORPOR_ASSIGN_OR_RETURN(ControlPage control,
                          ControlPage::Map(std::move(descriptors.back())));
  TORPOR_ASSIGN_OR_RETURN(
      std::unique_ptr<CudaSharedMemory> memory,
      kind == CudaHandleKind::kFd
          ? CudaSharedMemory::OpenFd(context, descriptors.front().get(), bytes)
          : CudaSharedMemory::OpenLegacy(context, (*control).cuda_handle,
                                         bytes));
  return std::unique_ptr<DeviceSegment>(
      new DeviceSegment(std::move(memory), std::move(control)));
}

std::vector<int> DeviceSegment::descriptors() const {
  if (kind() == CudaHandleKind::kLegacy) return {control_fd()};
  return {memory_->fd(), control_fd()};
}

absl::StatusOr<std::span<const uint8_t>> DeviceSegment::Read(uint64_t offset,
                                                             uint64_t n) {
  TORPOR_RETURN_IF_ERROR(memory_->ToHost(offset, n));
  return std::span<const uint8_t>(memory_->host()).subspan(offset, n);
}

}  // namespace torpor::service
