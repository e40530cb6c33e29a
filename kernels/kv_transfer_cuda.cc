// SPDX-License-Identifier: Apache-2.0

#include "kernels/kv_transfer_cuda.h"

#include <algorithm>
#include <vector>

#include "base/status.h"

namespace torpor::kernels {
namespace {

// Bytes of rows that stand on the device between stored form and pages.
constexpr size_t kPieceBytes = size_t{4} << 20;

// The parameters of one piece: K or V, in the pages' own dtype.
KvRowsParams PieceParams(const KvRowBytes& rows, uint8_t* data,
                         const KvRowSegment* segment, int64_t n_rows) {
  return {.shape = rows.shape,
          .k = rows.is_k ? data : nullptr,
          .k_stride = rows.shape.row_elements(),
          .v = rows.is_k ? nullptr : data,
          .v_stride = rows.shape.row_elements(),
          .rows_dtype = rows.shape.dtype,
          .segments = segment,
          .n_segments = 1,
          .n_rows = n_rows};
}

}  // namespace

KvTransfer::~KvTransfer() {
  lane_->Wait();
  MutexLock lock(&mu_);
  heap_.Free(rows_.data);
  heap_.Free(lists_.data);
}

absl::Status KvTransfer::Grow(size_t bytes, Block* block) {
  if (bytes <= block->bytes) return absl::OkStatus();
  heap_.Free(block->data);
  *block = {};
  TORPOR_ASSIGN_OR_RETURN(void* data, heap_.Allocate(bytes));
  block->data = static_cast<uint8_t*>(data);
  block->bytes = bytes;
  return absl::OkStatus();
}

absl::StatusOr<KvTransfer::Pieces> KvTransfer::SendLists(
    const KvRowBytes& rows) {
  for (int64_t i = 0; i < rows.n_pages; ++i) {
    if (rows.pages[i] == nullptr) {
      return absl::ResourceExhaustedError(
          "CUDA: a page of the sequence found no room in device memory");
    }
  }
  const auto in_piece = static_cast<int64_t>(
      std::max<size_t>(1, kPieceBytes / rows.shape.row_bytes()));
  Pieces pieces{.rows = std::min(in_piece, rows.n_rows)};
  TORPOR_RETURN_IF_ERROR(
      Grow(static_cast<size_t>(pieces.rows) * rows.shape.row_bytes(), &rows_));
  const int64_t n = (rows.n_rows + pieces.rows - 1) / pieces.rows;
  const size_t capacity = Lists::BytesFor<uint8_t*>(rows.n_pages) +
                          Lists::BytesFor<KvRowSegment>(n);
  TORPOR_RETURN_IF_ERROR(Grow(capacity, &lists_));
  Lists lists(lists_.data, capacity);
  uint8_t* const* pages = lists.Add(rows.pages, rows.n_pages);
  std::vector<KvRowSegment> segments;
  for (int64_t row = 0; row < rows.n_rows; row += pieces.rows) {
    segments.push_back({.n_rows = std::min(pieces.rows, rows.n_rows - row),
                        .position = rows.position + row,
                        .pages = pages,
                        .n_pages = rows.n_pages});
  }
  pieces.segments = lists.Add(segments.data(), n);
  TORPOR_RETURN_IF_ERROR(CudaStatus(
      lane_->Upload(lists_.data, lists.bytes().data(), lists.bytes().size()),
      "upload of lists"));
  return pieces;
}

absl::Status KvTransfer::Import(const KvRowBytes& to,
                                std::span<const uint8_t> from) {
  MutexLock lock(&mu_);
  cudaSetDevice(device_);
  absl::Status status = SendRows(to, from);
  status.Update(CudaStatus(lane_->Wait(), "import of rows"));
  return status;
}

absl::Status KvTransfer::Export(const KvRowBytes& from, std::span<uint8_t> to) {
  MutexLock lock(&mu_);
  cudaSetDevice(device_);
  absl::Status status = FetchRows(from, to);
  // Whatever happened, nothing is written to `to` any more.
  status.Update(CudaStatus(lane_->Wait(), "export of rows"));
  return status;
}

absl::Status KvTransfer::SendRows(const KvRowBytes& to,
                                  std::span<const uint8_t> from) {
  TORPOR_ASSIGN_OR_RETURN(const Pieces pieces, SendLists(to));
  const size_t row_bytes = to.shape.row_bytes();
  for (int64_t i = 0; i * pieces.rows < to.n_rows; ++i) {
    const int64_t row = i * pieces.rows;
    const int64_t n = std::min(pieces.rows, to.n_rows - row);
    TORPOR_RETURN_IF_ERROR(CudaStatus(
        lane_->Upload(rows_.data,
                      from.data() + static_cast<size_t>(row) * row_bytes,
                      static_cast<size_t>(n) * row_bytes),
        "upload of rows"));
    TORPOR_RETURN_IF_ERROR(CudaStatus(
        PutKvRowsCuda(PieceParams(to, rows_.data, pieces.segments + i, n),
                      lane_->stream()),
        "import of rows"));
  }
  return absl::OkStatus();
}

absl::Status KvTransfer::FetchRows(const KvRowBytes& from,
                                   std::span<uint8_t> to) {
  TORPOR_ASSIGN_OR_RETURN(const Pieces pieces, SendLists(from));
  TORPOR_RETURN_IF_ERROR(
      CudaStatus(lane_->RunAfter(compute_), "export of rows"));
  const size_t row_bytes = from.shape.row_bytes();
  for (int64_t i = 0; i * pieces.rows < from.n_rows; ++i) {
    const int64_t row = i * pieces.rows;
    const int64_t n = std::min(pieces.rows, from.n_rows - row);
    TORPOR_RETURN_IF_ERROR(CudaStatus(
        GetKvRowsCuda(PieceParams(from, rows_.data, pieces.segments + i, n),
                      lane_->stream()),
        "export of rows"));
    TORPOR_RETURN_IF_ERROR(CudaStatus(
        lane_->Download(to.data() + static_cast<size_t>(row) * row_bytes,
                        rows_.data, static_cast<size_t>(n) * row_bytes),
        "download of rows"));
  }
  return absl::OkStatus();
}

}  // namespace torpor::kernels
