// SPDX-License-Identifier: Apache-2.0
//
// Stored rows into device pages and back, on a stream beside the one that
// computes. Thread-safe; each call returns when its rows are there.

#ifndef TORPOR_KERNELS_ROW_TRANSFER_CUDA_H_
#define TORPOR_KERNELS_ROW_TRANSFER_CUDA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/kv_rows.h"
#include "kernels/kv_rows_cuda.h"
#include "kernels/lane_cuda.h"
#include "kernels/memory_cuda.h"
#include "kernels/record_rows.h"

namespace torpor::kernels {

class RowTransfer {
 public:
  // `compute` is the lane whose work comes before an export; both outlive it.
  RowTransfer(int device, std::unique_ptr<Lane> lane, const Lane* compute,
              DeviceHeap* heap)
      : device_(device),
        lane_(std::move(lane)),
        compute_(*compute),
        heap_(*heap) {}
  ~RowTransfer();
  RowTransfer(const RowTransfer&) = delete;
  RowTransfer& operator=(const RowTransfer&) = delete;

  // kResourceExhausted when a page or the memory for a piece is missing;
  // kUnavailable.
  absl::Status Import(const KvRowBytes& to, std::span<const uint8_t> from);
  absl::Status Import(const RecordRange& to, std::span<const uint8_t> from);
  absl::Status Export(const KvRowBytes& from, std::span<uint8_t> to);
  absl::Status Export(const RecordRange& from, std::span<uint8_t> to);

 private:
  // Device memory that grows.
  struct Block {
    uint8_t* data = nullptr;
    size_t bytes = 0;
  };
  // Rows [row, row + n) on their way: they stand one after the other in `data`.
  struct Piece {
    int64_t row = 0;
    int64_t n = 0;
    uint8_t* data = nullptr;
    // The list of pages on the device; room for one KvRowSegment follows.
    uint8_t** pages = nullptr;
  };
  // What travels, and how a piece gets into the pages or out of them: CUDA's
  // error number.
  struct Travel {
    size_t row_bytes = 0;
    int64_t n_rows = 0;
    uint8_t* const* pages = nullptr;
    int64_t n_pages = 0;
    std::function<int(const Piece&)> move;
  };

  Travel Kv(const KvRowBytes& rows,
            int (*move)(const KvRowsParams&, CudaStream));

  // Waits until all is there.
  absl::Status Import(const Travel& travel, std::span<const uint8_t> from);
  absl::Status Export(const Travel& travel, std::span<uint8_t> to);
  // Give the lane its work; somebody waits for it then.
  absl::Status Send(const Travel& travel, std::span<const uint8_t> from)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Fetch(const Travel& travel, std::span<uint8_t> to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first piece: those behind it have as many rows, or the rest.
  absl::StatusOr<Piece> Begin(const Travel& travel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Grow(size_t bytes, Block* block)
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

#endif  // TORPOR_KERNELS_ROW_TRANSFER_CUDA_H_
