// SPDX-License-Identifier: Apache-2.0

#include "kernels/memory_cuda.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda_errors.h"

namespace torpor::kernels {
namespace {

constexpr size_t kAlign = 256;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

absl::Status CudaStatus(int error, const char* what) {
  if (error == 0) return absl::OkStatus();
  const std::string message =
      absl::StrFormat("CUDA: %s: %s", what,
                      cudaGetErrorString(static_cast<cudaError_t>(error)));
  if (error == kCudaInvalidValue || error == kCudaInvalidConfiguration) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::UnavailableError(message);
}

// ---- DeviceHeap ----------------------------------------------------------

DeviceHeap::~DeviceHeap() {
  MutexLock lock(&mu_);
  for (const auto& [block, bytes] : sizes_) cudaFree(block);
  DropFree();
}

// Few sizes, so that freed blocks fit again: an eighth is lost at most.
size_t DeviceHeap::BlockBytes(size_t bytes) const {
  if (!keep_) return std::max<size_t>(bytes, 1);
  const size_t step = std::max(kAlign, std::bit_floor(bytes) / 8);
  return RoundUp(std::max<size_t>(bytes, 1), step);
}

void* DeviceHeap::TakeFree(size_t block) {
  const auto found = free_.find(block);
  if (found == free_.end() || found->second.empty()) return nullptr;
  void* p = found->second.back();
  found->second.pop_back();
  return p;
}

void DeviceHeap::DropFree() {
  for (const auto& [bytes, blocks] : free_) {
    for (void* block : blocks) cudaFree(block);
    held_ -= bytes * blocks.size();
  }
  free_.clear();
}

absl::Status DeviceHeap::NoRoom(size_t block) const {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "CUDA: no room for %d bytes of device memory; %d are in use", block,
      used_));
}

absl::StatusOr<void*> DeviceHeap::Allocate(size_t bytes) {
  const size_t block = BlockBytes(bytes);
  MutexLock lock(&mu_);
  void* p = TakeFree(block);
  if (p == nullptr) {
    cudaSetDevice(device_);
    if (held_ + block > limit_) DropFree();
    if (held_ + block > limit_) return NoRoom(block);
    cudaError_t status = cudaMalloc(&p, block);
    if (status == cudaErrorMemoryAllocation) {
      // The runtime would tell it again at the next launch.
      cudaGetLastError();
      DropFree();
      status = cudaMalloc(&p, block);
      if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return NoRoom(block);
      }
    }
    TORPOR_RETURN_IF_ERROR(CudaStatus(status, "memory"));
    held_ += block;
  }
  sizes_[p] = block;
  used_ += block;
  return p;
}

void DeviceHeap::Free(void* p) {
  if (p == nullptr) return;
  MutexLock lock(&mu_);
  retired_.push_back(p);
}

void DeviceHeap::Recycle() {
  MutexLock lock(&mu_);
  for (void* p : retired_) {
    const auto found = sizes_.find(p);
    const size_t block = found->second;
    sizes_.erase(found);
    used_ -= block;
    if (keep_) {
      free_[block].push_back(p);
    } else {
      held_ -= block;
      cudaFree(p);
    }
  }
  retired_.clear();
}

uint64_t DeviceHeap::bytes_used() const {
  MutexLock lock(&mu_);
  return used_;
}

// ---- PinnedStaging ---------------------------------------------------------

PinnedStaging::PinnedStaging(CUstream_st* stream, size_t piece_bytes,
                             int n_pieces)
    : stream_(stream),
      piece_bytes_(piece_bytes),
      pieces_(static_cast<size_t>(n_pieces)) {
  for (Piece& piece : pieces_) {
    void* data = nullptr;
    status_ = cudaMallocHost(&data, piece_bytes_);
    if (status_ != cudaSuccess) return;
    piece.data = static_cast<uint8_t*>(data);
    status_ = cudaEventCreateWithFlags(&piece.done, cudaEventDisableTiming);
    if (status_ != cudaSuccess) return;
  }
}

void PinnedStaging::Release() {
  for (const Piece& piece : pieces_) {
    if (piece.done != nullptr) cudaEventDestroy(piece.done);
    if (piece.data != nullptr) cudaFreeHost(piece.data);
  }
  pieces_.clear();
}

cudaError_t PinnedStaging::NextPiece() {
  Piece& full = pieces_[current_];
  cudaError_t status = cudaEventRecord(full.done, stream_);
  if (status != cudaSuccess) return status;
  full.in_flight = true;
  current_ = (current_ + 1) % pieces_.size();
  Piece& next = pieces_[current_];
  if (next.in_flight) status = cudaEventSynchronize(next.done);
  next.in_flight = false;
  next.used = 0;
  return status;
}

cudaError_t PinnedStaging::Upload(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  while (bytes > 0) {
    if (pieces_[current_].used == piece_bytes_) {
      const cudaError_t status = NextPiece();
      if (status != cudaSuccess) return status;
    }
    Piece& piece = pieces_[current_];
    const size_t n = std::min(bytes, piece_bytes_ - piece.used);
    std::memcpy(piece.data + piece.used, in, n);
    const cudaError_t status = cudaMemcpyAsync(out, piece.data + piece.used, n,
                                               cudaMemcpyHostToDevice, stream_);
    if (status != cudaSuccess) return status;
    piece.used = std::min(piece_bytes_, RoundUp(piece.used + n, 16));
    out += n;
    in += n;
    bytes -= n;
  }
  return cudaSuccess;
}

}  // namespace torpor::kernels
