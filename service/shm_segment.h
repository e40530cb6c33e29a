// SPDX-License-Identifier: Apache-2.0
//
// Memory that daemon and client share: a segment for rows and a control page,
// two memfds without a name. Sealed against shrinking and growing, so that no
// access of either side can fault; a segment of rows to the client is sealed
// against the client's writing as well, so that what the daemon verified in it
// stays as it was. The daemon never maps a segment that a client writes: it
// copies out of it (CopyOut). The layout is in
// proto/torpor/v1/session_service.proto (DataPlaneChoice).

#ifndef TORPOR_SERVICE_SHM_SEGMENT_H_
#define TORPOR_SERVICE_SHM_SEGMENT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "service/unique_fd.h"

namespace torpor::service {

// Which way rows go.
enum class Flow { kToClient, kToServer };

inline constexpr size_t kControlBytes = 4096;

// The control page. Either side may hold any value: check what is read.
struct ShmControl {
  std::atomic<uint64_t> consumed;
  std::atomic<uint32_t> wake;
  alignas(64) std::atomic<uint32_t> waiting;
};
static_assert(offsetof(ShmControl, wake) == 8);
static_assert(offsetof(ShmControl, waiting) == 64);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class ShmSegment {
 public:
  // The daemon's side. kUnavailable names what the system refused.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(uint64_t bytes,
                                                            Flow flow);
  // The client's side: takes the descriptors over. kDataLoss when they are not
  // sealed memory of these sizes.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Map(UniqueFd segment,
                                                         UniqueFd control,
                                                         uint64_t bytes,
                                                         Flow flow);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  ShmControl& control() { return *control_; }

  // REQUIRES: this side produces.
  std::span<uint8_t> writable();
  // Empty on the daemon's side of a segment that the client writes.
  [[nodiscard]] std::span<const uint8_t> readable() const;
  // out.size() bytes from `offset` on, read once. REQUIRES: within the segment.
  absl::Status CopyOut(uint64_t offset, std::span<uint8_t> out) const;

  [[nodiscard]] int segment_fd() const { return segment_fd_.get(); }
  [[nodiscard]] int control_fd() const { return control_fd_.get(); }

 private:
  ShmSegment() = default;

  uint64_t bytes_ = 0;
  UniqueFd segment_fd_;
  UniqueFd control_fd_;
  uint8_t* data_ = nullptr;
  bool may_write_ = false;
  ShmControl* control_ = nullptr;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SHM_SEGMENT_H_
