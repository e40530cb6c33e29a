// SPDX-License-Identifier: Apache-2.0
//
// Device memory that two processes share, through the driver alone (no plugin,
// no CUDA runtime): one creates it, the other opens it by a file descriptor or
// by a 64-byte handle. Copies end before they return, so that a message that
// follows one orders the two processes.

#ifndef TORPOR_KERNELS_CUDA_SHARED_MEMORY_H_
#define TORPOR_KERNELS_CUDA_SHARED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda_driver.h"

namespace torpor::kernels {

// As nvidia-smi writes it: "GPU-1b2c3d4e-...".
std::string ToText(const CudaUuid& uuid);

// GPUs that the driver shows this process, in its order.
absl::StatusOr<std::vector<CudaUuid>> CudaGpus(const CudaDriver& driver);

// The primary context of a GPU, which the CUDA runtime uses too, held while
// this lives. Thread-safe.
class CudaContext {
 public:
  // kUnavailable when the driver does not show the GPU: names it and those that
  // there are.
  static absl::StatusOr<std::shared_ptr<const CudaContext>> Open(
      const CudaDriver& driver, const CudaUuid& gpu);
  // That of the first GPU.
  static absl::StatusOr<std::shared_ptr<const CudaContext>> OpenFirst(
      const CudaDriver& driver);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  [[nodiscard]] const CudaDriver& driver() const { return driver_; }
  [[nodiscard]] const CudaUuid& gpu() const { return gpu_; }
  [[nodiscard]] int device() const { return device_; }
  [[nodiscard]] void* handle() const { return handle_; }

 private:
  CudaContext(const CudaDriver& driver, const CudaUuid& gpu, int device)
      : driver_(driver), gpu_(gpu), device_(device) {}

  const CudaDriver driver_;
  const CudaUuid gpu_;
  const int device_;
  void* handle_ = nullptr;
};

// How memory is named to another process.
enum class CudaHandleKind {
  // A file descriptor, for processes that can be handed one.
  kFd,
  // 64 bytes, for processes of one PID namespace: wherever fd is not served.
  kLegacy,
};

// One thread uses an object at a time.
class CudaSharedMemory {
 public:
  // What sizes are multiples of: the block that the driver shares as a whole.
  static constexpr uint64_t kUnit = uint64_t{2} << 20;

  // New memory, all zero. REQUIRES: bytes is a multiple of kUnit, not 0.
  // kFailedPrecondition when the GPU does not serve this kind, kUnavailable
  // when it is lost, kResourceExhausted when it has no room.
  static absl::StatusOr<std::unique_ptr<CudaSharedMemory>> Create(
      const std::shared_ptr<const CudaContext>& context, CudaHandleKind kind,
      uint64_t bytes);
  // That of another process; the descriptor stays the caller's. kUnavailable
  // when the driver refuses, as it does memory by descriptor that is smaller
  // than `bytes`; kDataLoss for such memory by handle.
  static absl::StatusOr<std::unique_ptr<CudaSharedMemory>> OpenFd(
      const std::shared_ptr<const CudaContext>& context, int fd,
      uint64_t bytes);
  static absl::StatusOr<std::unique_ptr<CudaSharedMemory>> OpenLegacy(
      const std::shared_ptr<const CudaContext>& context,
      const CudaIpcHandle& handle, uint64_t bytes);
  ~CudaSharedMemory();
  CudaSharedMemory(const CudaSharedMemory&) = delete;
  CudaSharedMemory& operator=(const CudaSharedMemory&) = delete;

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] CudaHandleKind kind() const { return kind_; }
  // Of memory that Create made: the descriptor of kFd (closed with this), the
  // handle of kLegacy.
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const CudaIpcHandle& handle() const { return handle_; }

  // Pinned host memory of this process alone, as long as the device's.
  [[nodiscard]] std::span<uint8_t> host() const { return {host_, bytes_}; }
  // Bytes [offset, offset + n) of one to the same place of the other; the copy
  // has ended on return. REQUIRES: within them. kUnavailable when the GPU is
  // lost.
  absl::Status ToDevice(uint64_t offset, uint64_t n);
  absl::Status ToHost(uint64_t offset, uint64_t n);

 private:
  CudaSharedMemory(std::shared_ptr<const CudaContext> context,
                   CudaHandleKind kind, uint64_t bytes)
      : context_(std::move(context)), kind_(kind), bytes_(bytes) {}

  // The context is current for all of these.
  absl::Status CreateFd();
  absl::Status CreateLegacy();
  // The allocation at an address of its own.
  absl::Status Map(CudaAllocation allocation);
  // Stream and host memory.
  absl::Status Prepare();

  const std::shared_ptr<const CudaContext> context_;
  const CudaHandleKind kind_;
  const uint64_t bytes_;
  // What was made, in the order of making; the destructor takes it back.
  CudaAddress reserved_ = 0;
  bool mapped_ = false;
  int fd_ = -1;
  bool opened_ = false;
  CudaAddress address_ = 0;
  CudaIpcHandle handle_;
  void* stream_ = nullptr;
  uint8_t* host_ = nullptr;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_SHARED_MEMORY_H_
