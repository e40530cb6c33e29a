// SPDX-License-Identifier: Apache-2.0
//
// Stored rows into device pages and back, on a stream beside the one that
// computes. Thread-safe; each call returns when its rows are there.

#ifndef TORPOR_KERNELS_KV_TRANSFER_CUDA_H_
#define TORPOR_KERNELS_KV_TRANSFER_CUDA_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/kv_rows.h"
#include "kernels/kv_rows_cuda.h"
#include "kernels/lane_cuda.h"
#include "kernels/lists_cuda.h"
#include "kernels/memory_cuda.h"

namespace torpor::kernels {

class KvTransfer {
 public:
  // `compute` is the lane whose work comes before an export; both outlive it.
  KvTransfer(int device, std::unique_ptr<Lane> lane, const Lane* compute,
             DeviceHeap* heap)
      : device_(device),
        lane_(std::move(lane)),
        compute_(*compute),
        heap_(*heap) {}
  ~KvTransfer();
  KvTransfer(const KvTransfer&) = delete;
  KvTransfer& operator=(const KvTransfer&) = delete;

  // kResourceExhausted when a page or the memory for a piece is missing;
  // kUnavailable.
  absl::Status Import(const KvRowBytes& to, std::span<const uint8_t> from);
  absl::Status Export(const KvRowBytes& from, std::span<uint8_t> to);

 private:
  // Device memory that grows.
  struct Block {
    uint8_t* data = nullptr;
    size_t bytes = 0;
  };
  // Rows that travel together, and the lists that say where they go: one
  // segment a piece.
  struct Pieces {
    int64_t rows = 0;
    const KvRowSegment* segments = nullptr;
  };

  absl::Status Grow(size_t bytes, Block* block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Give the lane its work; somebody waits for it then.
  absl::Status SendRows(const KvRowBytes& to, std::span<const uint8_t> from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status FetchRows(const KvRowBytes& from, std::span<uint8_t> to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Pieces> SendLists(const KvRowBytes& rows)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int device_;
  Mutex mu_;
  const std::unique_ptr<Lane> lane_;
  const Lane& compute_;
  DeviceHeap& heap_;
  Block rows_ ABSL_GUARDED_BY(mu_);
  Block lists_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_KV_TRANSFER_CUDA_H_
