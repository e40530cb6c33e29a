// SPDX-License-Identifier: Apache-2.0

#include "service/row_intake.h"

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

// Told to the producer in steps, not piece by piece.
constexpr uint64_t kReleasesInRing = 16;

}  // namespace

RowIntake::RowIntake(Segment* segment) : segment_(segment) {
  if (segment != nullptr) ring_.emplace(segment);
}

absl::Status RowIntake::Begin(const RowMessage& message) {
  if (message.data.size() > kMaxRowBytesPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrFormat("row message: got %d bytes of rows, wanted at most %d",
                        message.data.size(), kMaxRowBytesPerMessage));
  }
  inline_ = !ring_.has_value() || !message.data.empty();
  rest_ = message.data;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const uint8_t>> RowIntake::Take(
    const v1::RowPiece& piece) {
  const uint64_t bytes = uint64_t{piece.n_rows()} * piece.row_bytes();
  if (inline_) {
    if (bytes > rest_.size()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rows [%d, +%d) of slot %d: %d bytes of the message are left, wanted "
          "%d",
          piece.row_begin(), piece.n_rows(), piece.slot(), rest_.size(),
          bytes));
    }
    const std::span<const uint8_t> out = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return out;
  }
  if (bytes > kMaxRowBytesPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrFormat("rows [%d, +%d) of slot %d: got a piece of %d bytes in "
                        "a segment, wanted at most %d",
                        piece.row_begin(), piece.n_rows(), piece.slot(), bytes,
                        kMaxRowBytesPerMessage));
  }
  // What earlier calls handed out is no longer looked at.
  if (held_bytes_ > segment_->bytes() / kReleasesInRing) {
    ring_->Release();
    held_bytes_ = 0;
  }
  held_bytes_ += bytes;
  shared_bytes_ += bytes;
  return ring_->View(piece.position(), bytes);
}

absl::Status RowIntake::End() {
  if (ring_.has_value() && held_bytes_ > 0) {
    ring_->Release();
    held_bytes_ = 0;
  }
  if (!rest_.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "row message: %d bytes that no piece describes", rest_.size()));
  }
  return absl::OkStatus();
}

}  // namespace torpor::service
