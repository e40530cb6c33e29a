// SPDX-License-Identifier: Apache-2.0
//
// Memory of one device, and the pinned memory through which the host fills it.

#ifndef TORPOR_KERNELS_MEMORY_CUDA_H_
#define TORPOR_KERNELS_MEMORY_CUDA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/runtime_cuda.h"

namespace torpor::kernels {

// OK for 0; kResourceExhausted for a launch of more than there can be, which
// harms no later one; else kUnavailable. With the runtime's text.
absl::Status CudaStatus(int error, const char* what);

// Blocks of device memory, kept when they are freed: cudaMalloc waits for the
// whole device. Thread-safe.
class DeviceHeap {
 public:
  // Of the device with that number. Holds `limit` bytes at most. `keep`: freed
  // blocks serve later calls; false gives them back, so that an emulator sees
  // who uses them after all.
  DeviceHeap(int device, uint64_t limit, bool keep)
      : device_(device), limit_(limit), keep_(keep) {}
  ~DeviceHeap();
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  // Aligned to 256 bytes. kResourceExhausted when there is no room,
  // kUnavailable when the device is lost.
  absl::StatusOr<void*> Allocate(size_t bytes);
  // The device may still be at work in it: nobody gets it before Recycle.
  void Free(void* p);
  // REQUIRES: the device has ended all that was asked of it before the call.
  void Recycle();

  // In blocks that are in use.
  [[nodiscard]] uint64_t bytes_used() const;

 private:
  [[nodiscard]] size_t BlockBytes(size_t bytes) const;
  [[nodiscard]] absl::Status NoRoom(size_t block) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void* TakeFree(size_t block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropFree() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  const uint64_t limit_;
  const bool keep_;

  mutable Mutex mu_;
  // Blocks in use and retired ones, with their sizes.
  std::unordered_map<void*, size_t> sizes_ ABSL_GUARDED_BY(mu_);
  std::vector<void*> retired_ ABSL_GUARDED_BY(mu_);
  std::map<size_t, std::vector<void*>> free_ ABSL_GUARDED_BY(mu_);
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t held_ ABSL_GUARDED_BY(mu_) = 0;
};

// Copies from ordinary host memory to the device in a stream's order without
// waiting for the stream: through pieces of pinned memory, each used again when
// the copies out of it have ended. Only then may it wait. One caller at a time.
class PinnedStaging {
 public:
  PinnedStaging(CUstream_st* stream, size_t piece_bytes, int n_pieces);
  ~PinnedStaging() { Release(); }
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // What went wrong when it was made.
  [[nodiscard]] cudaError_t status() const { return status_; }
  // `from` may change once it returns.
  cudaError_t Upload(void* to, const void* from, size_t bytes);
  // Gives its memory back. REQUIRES: the stream has ended its copies.
  void Release();

 private:
  struct Piece {
    uint8_t* data = nullptr;
    size_t used = 0;
    cudaEvent_t done = nullptr;
    bool in_flight = false;
  };

  cudaError_t NextPiece();

  CUstream_st* const stream_;
  const size_t piece_bytes_;
  cudaError_t status_ = cudaSuccess;
  std::vector<Piece> pieces_;
  size_t current_ = 0;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_MEMORY_CUDA_H_
