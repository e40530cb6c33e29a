// SPDX-License-Identifier: Apache-2.0

#include "service/shm_ring.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A sleeper looks around this often: for a peer that does not wake it, a call
// that was cancelled, a connection that is gone.
constexpr std::chrono::milliseconds kPoll{10};
// Wake-ups without room before each is followed by a pause: a peer that only
// changes the word would keep us busy.
constexpr int kEmptyWakes = 16;

// Shared (not private) futexes: the two sides are two processes.
void Sleep(std::atomic<uint32_t>* word, uint32_t seen) {
  const timespec limit = {0, std::chrono::nanoseconds(kPoll).count()};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, seen,
          &limit, nullptr, 0);
}

void Wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT32_MAX,
          nullptr, nullptr, 0);
}

}  // namespace

RingProducer::RingProducer(Segment* segment) : segment_(segment) {
  segment_->control().consumed.store(0);
  segment_->control().waiting.store(0);
}

uint64_t RingProducer::PlaceFor(size_t bytes) const {
  const uint64_t size = segment_->bytes();
  const uint64_t offset = head_ % size;
  return offset + bytes <= size ? head_ : head_ + (size - offset);
}

absl::StatusOr<bool> RingProducer::Fits(uint64_t position, size_t bytes) {
  const uint64_t said = segment_->control().consumed.load();
  if (said > head_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segment: the consumer is done with %d bytes of %d", said, head_));
  }
  // A counter that goes back takes nothing back.
  consumed_ = std::max(consumed_, said);
  return consumed_ == head_ ||
         position + bytes - consumed_ <= segment_->bytes();
}

bool RingProducer::HasRoom(size_t bytes) {
  const absl::StatusOr<bool> fits = Fits(PlaceFor(bytes), bytes);
  return !fits.ok() || *fits;
}

absl::StatusOr<RingRoom> RingProducer::Reserve(
    size_t bytes, std::chrono::milliseconds limit,
    const std::function<bool()>& give_up) {
  const uint64_t size = segment_->bytes();
  if (bytes > size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("segment of %d bytes: got a piece of %d", bytes, size));
  }
  const uint64_t position = PlaceFor(bytes);
  TORPOR_RETURN_IF_ERROR(
      WaitFor([&] { return Fits(position, bytes); }, limit, give_up));
  if (position % size == 0) {
    // What is published together ends where the segment does.
    TORPOR_RETURN_IF_ERROR(Publish());
    unpublished_ = position;
  }
  head_ = position + bytes;
  return RingRoom{position,
                  segment_->writable().subspan(position % size, bytes)};
}

absl::Status RingProducer::Publish() {
  const uint64_t begin = std::exchange(unpublished_, head_);
  if (begin == head_) return absl::OkStatus();
  return segment_->Publish(begin % segment_->bytes(), head_ - begin);
}

absl::Status RingProducer::Drain(std::chrono::milliseconds limit,
                                 const std::function<bool()>& give_up) {
  return WaitFor(
      [&]() -> absl::StatusOr<bool> {
        TORPOR_RETURN_IF_ERROR(Fits(head_, 0).status());
        return consumed_ == head_;
      },
      limit, give_up);
}

absl::Status RingProducer::WaitFor(
    const std::function<absl::StatusOr<bool>()>& ready,
    std::chrono::milliseconds limit, const std::function<bool()>& give_up) {
  ShmControl& control = segment_->control();
  const SteadyClock::time_point deadline = SteadyClock::now() + limit;
  TORPOR_ASSIGN_OR_RETURN(bool done, ready());
  for (int wakes = 0; !done; ++wakes) {
    if (give_up && give_up()) {
      return absl::CancelledError("segment: nobody reads the rows");
    }
    if (SteadyClock::now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrFormat(
          "segment: the consumer took nothing for %d ms", limit.count()));
    }
    control.waiting.store(1);
    const uint32_t seen = control.wake.load();
    TORPOR_ASSIGN_OR_RETURN(done, ready());
    if (!done) {
      Sleep(&control.wake, seen);
      if (wakes >= kEmptyWakes) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      TORPOR_ASSIGN_OR_RETURN(done, ready());
    }
    control.waiting.store(0);
  }
  return absl::OkStatus();
}

absl::Status RingConsumer::Advance(uint64_t position, uint64_t bytes) {
  const uint64_t size = segment_->bytes();
  if (position < end_ || position - end_ >= size || bytes > size ||
      position > UINT64_MAX - size || position % size > size - bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "segment: got a piece of %d bytes at position %d, wanted it "
        "behind %d and within the %d bytes of the segment",
        bytes, position, end_, size));
  }
  end_ = position + bytes;
  return absl::OkStatus();
}

absl::StatusOr<std::span<const uint8_t>> RingConsumer::View(uint64_t position,
                                                            uint64_t bytes) {
  TORPOR_RETURN_IF_ERROR(Advance(position, bytes));
  return segment_->Read(position % segment_->bytes(), bytes);
}

void RingConsumer::Release() {
  ShmControl& control = segment_->control();
  control.consumed.store(end_);
  control.wake.fetch_add(1);
  if (control.waiting.load() != 0) Wake(&control.wake);
}

}  // namespace torpor::service
