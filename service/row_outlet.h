// SPDX-License-Identifier: Apache-2.0
//
// Where a producer of rows puts pieces, whatever plane carries them: room for
// a piece, its description, and messages that leave when enough has gathered.
// The daemon's ReadRows, Window and Resume and the client's suspends write
// through one of these. Not thread-safe.

#ifndef TORPOR_SERVICE_ROW_OUTLET_H_
#define TORPOR_SERVICE_ROW_OUTLET_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/statusor.h"
#include "service/row_codec.h"
#include "service/shm_ring.h"

namespace torpor::service {

class RowOutlet {
 public:
  // Sends a message; false when nobody takes it any more.
  using Write = std::function<bool(const grpc::ByteBuffer&)>;

  virtual ~RowOutlet() = default;

  // Room for a piece of at most kMaxRowBytesPerMessage bytes, to be filled and
  // described before the next call.
  virtual absl::StatusOr<std::span<uint8_t>> Append(size_t bytes) = 0;
  // Describes the piece of the last Append.
  virtual void Describe(v1::RowPiece piece) = 0;
  // Sends what has gathered. kCancelled when nobody takes it.
  virtual absl::Status Flush() = 0;
  // Returns when the consumer needs nothing more from here: a segment that
  // goes before its client took it takes its rows along. REQUIRES: flushed.
  virtual absl::Status Drain() { return absl::OkStatus(); }
  // Whether bytes go through a segment.
  [[nodiscard]] virtual bool shared() const = 0;

  // Row bytes that left, and the time that took.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  [[nodiscard]] uint64_t transfer_us() const { return transfer_us_; }

 protected:
  explicit RowOutlet(Write write) : write_(std::move(write)) {}
  // Sends the builder's message, which stands for so many bytes.
  absl::Status Send(RowMessageBuilder* builder, uint64_t bytes);
  void AddWait(std::chrono::steady_clock::time_point begin);

 private:
  const Write write_;
  uint64_t bytes_ = 0;
  uint64_t transfer_us_ = 0;
};

// Rows inside the messages.
class MessageOutlet final : public RowOutlet {
 public:
  explicit MessageOutlet(Write write) : RowOutlet(std::move(write)) {}

  absl::StatusOr<std::span<uint8_t>> Append(size_t bytes) override;
  void Describe(v1::RowPiece piece) override { builder_.Describe(piece); }
  absl::Status Flush() override;
  [[nodiscard]] bool shared() const override { return false; }

 private:
  RowMessageBuilder builder_;
};

// Rows in a segment, messages that say where.
class SharedOutlet final : public RowOutlet {
 public:
  struct Limits {
    // How long to wait for the consumer.
    std::chrono::milliseconds stall;
    // Polled meanwhile; see RingProducer::Reserve.
    std::function<bool()> give_up;
  };
  // `segment` outlives the outlet.
  SharedOutlet(Segment* segment, Limits limits, Write write);

  absl::StatusOr<std::span<uint8_t>> Append(size_t bytes) override;
  void Describe(v1::RowPiece piece) override;
  absl::Status Flush() override;
  absl::Status Drain() override {
    return ring_.Drain(limits_.stall, limits_.give_up);
  }
  [[nodiscard]] bool shared() const override { return true; }

 private:
  const Limits limits_;
  const uint64_t batch_bytes_;
  RingProducer ring_;
  RowMessageBuilder builder_;
  uint64_t position_ = 0;
  uint64_t gathered_bytes_ = 0;
  size_t gathered_pieces_ = 0;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_ROW_OUTLET_H_
