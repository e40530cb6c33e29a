// SPDX-License-Identifier: Apache-2.0
//
// A shared segment as a ring: the producer lays pieces at growing positions,
// the consumer says how far it is done. Position p lies at byte p mod size, a
// piece never wraps. One thread uses an object; the two sides may be two
// processes. Nothing that the other side writes is trusted: positions are
// checked against the segment, the counter against what was produced, and no
// wait is without an end.

#ifndef TORPOR_SERVICE_SHM_RING_H_
#define TORPOR_SERVICE_SHM_RING_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "service/segment.h"

namespace torpor::service {

// A piece's place in the ring.
struct RingRoom {
  uint64_t position = 0;
  std::span<uint8_t> bytes;
};

class RingProducer {
 public:
  // Begins at position 0 with an empty ring. `segment` outlives the producer.
  explicit RingProducer(Segment* segment);

  // Whether Reserve would return at once.
  bool HasRoom(size_t bytes);

  // Contiguous room, valid until it was consumed. Waits while the ring is
  // full: kCancelled when `give_up` says so (polled every 10 ms),
  // kDeadlineExceeded when there is no room after `limit`. kInvalidArgument for
  // a piece larger than the segment, or when the consumer claims more than
  // there was.
  absl::StatusOr<RingRoom> Reserve(size_t bytes,
                                   std::chrono::milliseconds limit,
                                   const std::function<bool()>& give_up);
  // Pieces so far are filled: the consumer may be told of them.
  absl::Status Publish();
  // Returns when the consumer is done with every piece; errors as Reserve.
  absl::Status Drain(std::chrono::milliseconds limit,
                     const std::function<bool()>& give_up);

 private:
  // Waits until `ready` says so.
  absl::Status WaitFor(const std::function<absl::StatusOr<bool>()>& ready,
                       std::chrono::milliseconds limit,
                       const std::function<bool()>& give_up);
  // Where a piece of these bytes would go.
  [[nodiscard]] uint64_t PlaceFor(size_t bytes) const;
  // Reads the consumer's counter.
  absl::StatusOr<bool> Fits(uint64_t position, size_t bytes);

  Segment* const segment_;
  // End of the last piece.
  uint64_t head_ = 0;
  // Pieces from here on are not published.
  uint64_t unpublished_ = 0;
  // The furthest that the consumer has said.
  uint64_t consumed_ = 0;
};

class RingConsumer {
 public:
  explicit RingConsumer(Segment* segment) : segment_(segment) {}

  // The piece, valid until the next call (Segment::Read). kInvalidArgument when
  // it lies outside the segment or behind an earlier one.
  absl::StatusOr<std::span<const uint8_t>> View(uint64_t position,
                                                uint64_t bytes);
  // All pieces so far may be overwritten.
  void Release();

 private:
  absl::Status Advance(uint64_t position, uint64_t bytes);

  Segment* const segment_;
  // End of the last piece.
  uint64_t end_ = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SHM_RING_H_
