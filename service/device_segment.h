// SPDX-License-Identifier: Apache-2.0
//
// A segment of GPU memory that daemon and client share (CUDA IPC), the
// daemon's. Neither side works on it in place: rows pass through pinned host
// memory of the process's own. So what the daemon verified is what it serves or
// stores, whatever the client writes meanwhile.

#ifndef TORPOR_SERVICE_DEVICE_SEGMENT_H_
#define TORPOR_SERVICE_DEVICE_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda_shared_memory.h"
#include "service/segment.h"
#include "service/unique_fd.h"

namespace torpor::service {

class DeviceSegment final : public Segment {
 public:
  // The daemon's side. Errors as CudaSharedMemory::Create.
  static absl::StatusOr<std::unique_ptr<DeviceSegment>> Create(
      const std::shared_ptr<const kernels::CudaContext>& context,
      kernels::CudaHandleKind kind, uint64_t bytes);
  // The client's side, with what descriptors() named. Errors as
  // CudaSharedMemory's; kDataLoss when the last is no control page.
  static absl::StatusOr<std::unique_ptr<DeviceSegment>> Open(
      const std::shared_ptr<const kernels::CudaContext>& context,
      kernels::CudaHandleKind kind, std::vector<UniqueFd> descriptors,
      uint64_t bytes);
  // How many descriptors a client is handed.
  static size_t DescriptorsOf(kernels::CudaHandleKind kind) {
    return kind == kernels::CudaHandleKind::kFd ? 2 : 1;
  }

  [[nodiscard]] kernels::CudaHandleKind kind() const { return memory_->kind(); }
  [[nodiscard]] std::vector<int> descriptors() const override;
  [[nodiscard]] const char* plane() const override { return "cuda_ipc"; }
  // Freeing what a handle opened elsewhere is undefined.
  [[nodiscard]] bool outlives_owner() const override { return true; }
  std::span<uint8_t> writable() override { return memory_->host(); }
  absl::Status Publish(uint64_t offset, uint64_t n) override {
    return memory_->ToDevice(offset, n);
  }
  absl::StatusOr<std::span<const uint8_t>> Read(uint64_t offset,
                                                uint64_t n) override;

 private:
  DeviceSegment(std::unique_ptr<kernels::CudaSharedMemory> memory,
                ControlPage control)
      : Segment(memory->bytes(), std::move(control)),
        memory_(std::move(memory)) {}

  const std::unique_ptr<kernels::CudaSharedMemory> memory_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_DEVICE_SEGMENT_H_
