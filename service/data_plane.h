// SPDX-License-Identifier: Apache-2.0
//
// Which plane carries rows: the negotiation of BeginSuspend, BeginResume,
// Resume and OpenPlane, and the segments that a ticket or lease holds.

#ifndef TORPOR_SERVICE_DATA_PLANE_H_
#define TORPOR_SERVICE_DATA_PLANE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "service/segment_broker.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// One stream's hold on a segment.
class SegmentUse {
 public:
  explicit SegmentUse(std::shared_ptr<ServerSegment> segment)
      : segment_(std::move(segment)) {}
  ~SegmentUse() { segment_->EndUse(); }
  SegmentUse(const SegmentUse&) = delete;
  SegmentUse& operator=(const SegmentUse&) = delete;

  ServerSegment& segment() { return *segment_; }

 private:
  const std::shared_ptr<ServerSegment> segment_;
};

// The segments of one ticket or lease. Thread-safe.
class PlaneSet {
 public:
  void Add(std::shared_ptr<ServerSegment> segment);
  // Frees it as soon as no stream uses it.
  void Remove(const std::string& id);

  // For one stream. kNotFound; kFailedPrecondition when another stream uses it.
  absl::StatusOr<std::unique_ptr<SegmentUse>> Use(const std::string& id);

  // Row bytes that went through segments.
  void AddBytes(uint64_t n) { bytes_.fetch_add(n); }
  [[nodiscard]] uint64_t bytes() const { return bytes_.load(); }

 private:
  Mutex mu_;
  std::vector<std::shared_ptr<ServerSegment>> segments_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> bytes_{0};
};

struct PlaneAsk {
  const v1::DataPlaneOffer* offer = nullptr;
  // grpc::ServerContext::peer().
  std::string peer;
  // Bytes that will travel, as far as known.
  uint64_t bytes = 0;
  Flow flow = Flow::kToClient;
  // See SegmentBroker::Make.
  std::function<void(ServerSegment&)> on_lost;
};

struct PlaneAnswer {
  v1::DataPlaneChoice choice;
  // Null for gRPC.
  std::shared_ptr<ServerSegment> segment;
};

// The first plane of the offer that can be served, gRPC behind the last, and
// why not those before it.
PlaneAnswer ChoosePlane(SegmentBroker* broker, const PlaneAsk& ask);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_DATA_PLANE_H_
