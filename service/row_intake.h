// SPDX-License-Identifier: Apache-2.0
//
// The bytes of the pieces of a stream of row messages, whatever plane carries
// them: inside the message, or in a shared segment when it has no data. Not
// thread-safe.

#ifndef TORPOR_SERVICE_ROW_INTAKE_H_
#define TORPOR_SERVICE_ROW_INTAKE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "service/row_codec.h"
#include "service/shm_ring.h"

namespace torpor::service {

class RowIntake {
 public:
  // `segment` (null: messages alone) outlives the intake.
  explicit RowIntake(Segment* segment = nullptr);

  // The next message; its pieces are taken in their order.
  absl::Status Begin(const RowMessage& message);
  // The bytes of its next piece, valid until the next call. kInvalidArgument
  // when the message or the segment does not hold them.
  absl::StatusOr<std::span<const uint8_t>> Take(const v1::RowPiece& piece);
  // Behind its last piece. kInvalidArgument when bytes are left.
  absl::Status End();

  // Row bytes so far that came through the segment.
  [[nodiscard]] uint64_t shared_bytes() const { return shared_bytes_; }

 private:
  Segment* const segment_;
  std::optional<RingConsumer> ring_;
  bool inline_ = true;
  std::span<const uint8_t> rest_;
  // Taken out of the ring and not released.
  uint64_t held_bytes_ = 0;
  uint64_t shared_bytes_ = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_ROW_INTAKE_H_
