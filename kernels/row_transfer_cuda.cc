// SPDX-License-Identifier: Apache-2.0

#include "kernels/row_transfer_cuda.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/record_rows_cuda.h"

namespace torpor::kernels {
namespace {

// Bytes of rows that stand on the device between stored form and pages.
constexpr size_t kPieceBytes = size_t{4} << 20;

// Rows [row, row + n) of `range`; the device has the list of pages at `pages`.
RecordRange OnDevice(RecordRange range, uint8_t* const* pages, int64_t row,
                     int64_t n) {
  range.of.pages = pages;
  range.row += row;
  range.n_rows = n;
  return range;
}

}  // namespace

RowTransfer::~RowTransfer() {
  lane_->Wait();
  MutexLock lock(&mu_);
  heap_.Free(rows_.data);
  heap_.Free(lists_.data);
}

// `move` is one of kernels/kv_rows_cuda.h; K or V, in the pages' own dtype.
RowTransfer::Travel RowTransfer::Kv(const KvRowBytes& rows,
                                    int (*move)(const KvRowsParams&,
                                                CudaStream)) {
  return {.row_bytes = rows.shape.row_bytes(),
          .n_rows = rows.n_rows,
          .pages = rows.pages,
          .n_pages = rows.n_pages,
          .move = [this, rows, move](const Piece& piece) -> int {
            auto* const there =
                reinterpret_cast<KvRowSegment*>(piece.pages + rows.n_pages);
            const KvRowSegment segment{.n_rows = piece.n,
                                       .position = rows.position + piece.row,
                                       .pages = piece.pages,
                                       .n_pages = rows.n_pages};
            const cudaError_t sent =
                lane_->Upload(there, &segment, sizeof(segment));
            if (sent != cudaSuccess) return sent;
            return move({.shape = rows.shape,
                         .k = rows.is_k ? piece.data : nullptr,
                         .k_stride = rows.shape.row_elements(),
                         .v = rows.is_k ? nullptr : piece.data,
                         .v_stride = rows.shape.row_elements(),
                         .rows_dtype = rows.shape.dtype,
                         .segments = there,
                         .n_segments = 1,
                         .n_rows = piece.n},
                        lane_->stream());
          }};
}

absl::Status RowTransfer::Import(const KvRowBytes& to,
                                 std::span<const uint8_t> from) {
  return Import(Kv(to, PutKvRowsCuda), from);
}

absl::Status RowTransfer::Import(const RecordRange& to,
                                 std::span<const uint8_t> from) {
  return Import({.row_bytes = static_cast<size_t>(to.of.row_bytes),
                 .n_rows = to.n_rows,
                 .pages = to.of.pages,
                 .n_pages = to.of.n_pages,
                 .move =
                     [this, to](const Piece& piece) {
                       return ImportRecordsCuda(
                           OnDevice(to, piece.pages, piece.row, piece.n),
                           piece.data, lane_->stream());
                     }},
                from);
}

absl::Status RowTransfer::Export(const KvRowBytes& from,
                                 std::span<uint8_t> to) {
  return Export(Kv(from, GetKvRowsCuda), to);
}

absl::Status RowTransfer::Export(const RecordRange& from,
                                 std::span<uint8_t> to) {
  return Export({.row_bytes = static_cast<size_t>(from.of.row_bytes),
                 .n_rows = from.n_rows,
                 .pages = from.of.pages,
                 .n_pages = from.of.n_pages,
                 .move =
                     [this, from](const Piece& piece) {
                       return ExportRecordsCuda(
                           OnDevice(from, piece.pages, piece.row, piece.n),
                           piece.data, lane_->stream());
                     }},
                to);
}

absl::Status RowTransfer::Import(const Travel& travel,
                                 std::span<const uint8_t> from) {
  MutexLock lock(&mu_);
  cudaSetDevice(device_);
  absl::Status status = Send(travel, from);
  status.Update(CudaStatus(lane_->Wait(), "import of rows"));
  return status;
}

absl::Status RowTransfer::Export(const Travel& travel, std::span<uint8_t> to) {
  MutexLock lock(&mu_);
  cudaSetDevice(device_);
  absl::Status status = Fetch(travel, to);
  // Whatever happened, nothing is written to `to` any more.
  status.Update(CudaStatus(lane_->Wait(), "export of rows"));
  return status;
}

absl::Status RowTransfer::Send(const Travel& travel,
                               std::span<const uint8_t> from) {
  TORPOR_ASSIGN_OR_RETURN(Piece piece, Begin(travel));
  for (; piece.row < travel.n_rows; piece.row += piece.n) {
    piece.n = std::min(piece.n, travel.n_rows - piece.row);
    const size_t at = static_cast<size_t>(piece.row) * travel.row_bytes;
    const size_t bytes = static_cast<size_t>(piece.n) * travel.row_bytes;
    TORPOR_RETURN_IF_ERROR(CudaStatus(
        lane_->Upload(piece.data, from.data() + at, bytes), "upload of rows"));
    TORPOR_RETURN_IF_ERROR(CudaStatus(travel.move(piece), "import of rows"));
  }
  return absl::OkStatus();
}

absl::Status RowTransfer::Fetch(const Travel& travel, std::span<uint8_t> to) {
  TORPOR_ASSIGN_OR_RETURN(Piece piece, Begin(travel));
  TORPOR_RETURN_IF_ERROR(
      CudaStatus(lane_->RunAfter(compute_), "export of rows"));
  for (; piece.row < travel.n_rows; piece.row += piece.n) {
    piece.n = std::min(piece.n, travel.n_rows - piece.row);
    const size_t at = static_cast<size_t>(piece.row) * travel.row_bytes;
    const size_t bytes = static_cast<size_t>(piece.n) * travel.row_bytes;
    TORPOR_RETURN_IF_ERROR(CudaStatus(travel.move(piece), "export of rows"));
    TORPOR_RETURN_IF_ERROR(
        CudaStatus(lane_->Download(to.data() + at, piece.data, bytes),
                   "download of rows"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RowTransfer::Piece> RowTransfer::Begin(const Travel& travel) {
  for (int64_t i = 0; i < travel.n_pages; ++i) {
    if (travel.pages[i] == nullptr) {
      return absl::ResourceExhaustedError(
          "CUDA: a page of the sequence found no room in device memory");
    }
  }
  const auto at_most =
      static_cast<int64_t>(std::max<size_t>(1, kPieceBytes / travel.row_bytes));
  Piece piece{.n = std::min(at_most, travel.n_rows)};
  TORPOR_RETURN_IF_ERROR(
      Grow(static_cast<size_t>(piece.n) * travel.row_bytes, &rows_));
  piece.data = rows_.data;
  const size_t pages_bytes =
      static_cast<size_t>(travel.n_pages) * sizeof(uint8_t*);
  TORPOR_RETURN_IF_ERROR(Grow(pages_bytes + sizeof(KvRowSegment), &lists_));
  piece.pages = reinterpret_cast<uint8_t**>(lists_.data);
  TORPOR_RETURN_IF_ERROR(
      CudaStatus(lane_->Upload(lists_.data, travel.pages, pages_bytes),
                 "upload of lists"));
  return piece;
}

absl::Status RowTransfer::Grow(size_t bytes, Block* block) {
  if (bytes <= block->bytes) return absl::OkStatus();
  heap_.Free(block->data);
  *block = {};
  TORPOR_ASSIGN_OR_RETURN(void* data, heap_.Allocate(bytes));
  block->data = static_cast<uint8_t*>(data);
  block->bytes = bytes;
  return absl::OkStatus();
}

}  // namespace torpor::kernels
