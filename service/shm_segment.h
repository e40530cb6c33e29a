// SPDX-License-Identifier: Apache-2.0
//
// A segment of shared memory, a memfd without a name. Sealed against shrinking
// and growing, so that no access of either side can fault; a segment of rows to
// the client is sealed against the client's writing as well, so that what the
// daemon verified in it stays as it was. The daemon never maps a segment that a
// client writes: it copies out of it.

#ifndef TORPOR_SERVICE_SHM_SEGMENT_H_
#define TORPOR_SERVICE_SHM_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "service/segment.h"
#include "service/unique_fd.h"

namespace torpor::service {

class ShmSegment final : public Segment {
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
  ~ShmSegment() override;

  [[nodiscard]] std::vector<int> descriptors() const override {
    return {segment_fd(), control_fd()};
  }
  [[nodiscard]] const char* plane() const override { return "shared_memory"; }
  [[nodiscard]] bool outlives_owner() const override { return false; }
  std::span<uint8_t> writable() override;
  absl::Status Publish(uint64_t, uint64_t) override { return absl::OkStatus(); }
  absl::StatusOr<std::span<const uint8_t>> Read(uint64_t offset,
                                                uint64_t n) override;

  [[nodiscard]] int segment_fd() const { return segment_fd_.get(); }
  // Empty on the daemon's side of a segment that the client writes.
  [[nodiscard]] std::span<const uint8_t> mapped() const {
    return {data_, data_ == nullptr ? 0 : bytes()};
  }

 private:
  ShmSegment(uint64_t bytes, UniqueFd segment, ControlPage control)
      : Segment(bytes, std::move(control)), segment_fd_(std::move(segment)) {}

  const UniqueFd segment_fd_;
  uint8_t* data_ = nullptr;
  bool may_write_ = false;
  // What was read of a segment that is not mapped.
  std::vector<uint8_t> copy_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SHM_SEGMENT_H_
