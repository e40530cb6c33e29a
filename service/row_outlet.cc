// SPDX-License-Identifier: Apache-2.0

#include "service/row_outlet.h"

#include <algorithm>
#include <utility>

#include "base/microseconds.h"
#include "base/status.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A message costs both sides some 50 us however little it says: few of them,
// and one batch for each side to work on.
constexpr uint64_t kMostBatchBytes = uint64_t{4} << 20;
constexpr uint64_t kBatchesInRing = 2;
constexpr size_t kMostPieces = 1024;

}  // namespace

absl::Status RowOutlet::Send(RowMessageBuilder* builder, uint64_t bytes) {
  const SteadyClock::time_point begin = SteadyClock::now();
  const bool sent = write_(builder->Finish(nullptr));
  bytes_ += bytes;
  AddWait(begin);
  return sent ? absl::OkStatus()
              : absl::CancelledError("rows: nobody reads them");
}

void RowOutlet::AddWait(SteadyClock::time_point begin) {
  transfer_us_ += MicrosecondsSince(begin);
}

absl::StatusOr<std::span<uint8_t>> MessageOutlet::Append(size_t bytes) {
  if (builder_.data_bytes() + bytes > kMaxRowBytesPerMessage) {
    TORPOR_RETURN_IF_ERROR(Flush());
  }
  return builder_.Append(bytes);
}

absl::Status MessageOutlet::Flush() {
  if (builder_.empty()) return absl::OkStatus();
  return Send(&builder_, builder_.data_bytes());
}

SharedOutlet::SharedOutlet(Segment* segment, Limits limits, Write write)
    : RowOutlet(std::move(write)),
      limits_(std::move(limits)),
      batch_bytes_(
          std::min(kMostBatchBytes, segment->bytes() / kBatchesInRing)),
      ring_(segment) {}

absl::StatusOr<std::span<uint8_t>> SharedOutlet::Append(size_t bytes) {
  if (gathered_bytes_ >= batch_bytes_ || gathered_pieces_ >= kMostPieces ||
      !ring_.HasRoom(bytes)) {
    // The consumer cannot be done with what it was not told of.
    TORPOR_RETURN_IF_ERROR(Flush());
  }
  const SteadyClock::time_point begin = SteadyClock::now();
  TORPOR_ASSIGN_OR_RETURN(const RingRoom room,
                          ring_.Reserve(bytes, limits_.stall, limits_.give_up));
  AddWait(begin);
  position_ = room.position;
  return room.bytes;
}

void SharedOutlet::Describe(v1::RowPiece piece) {
  gathered_bytes_ += uint64_t{piece.n_rows()} * piece.row_bytes();
  ++gathered_pieces_;
  piece.set_position(position_);
  builder_.Describe(piece);
}

absl::Status SharedOutlet::Flush() {
  if (builder_.empty()) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(ring_.Publish());
  gathered_pieces_ = 0;
  return Send(&builder_, std::exchange(gathered_bytes_, 0));
}

}  // namespace torpor::service
