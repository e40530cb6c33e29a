// SPDX-License-Identifier: Apache-2.0
//
// A client's hold on a segment of the daemon: the descriptors taken over
// `<listen>.fd`, what they name mapped, and the connection that says it is
// alive.

#ifndef TORPOR_SERVICE_SEGMENT_LINK_H_
#define TORPOR_SERVICE_SEGMENT_LINK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda_shared_memory.h"
#include "service/segment.h"
#include "service/unique_fd.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// The path of "unix:///path" or "unix:/path"; empty for other addresses.
std::string UnixPathOf(const std::string& address);

class SegmentLink {
 public:
  // `listen_path` is the daemon's socket; `cuda` the GPU of the offer, for a
  // choice of CUDA IPC. kUnavailable when the descriptor socket does not
  // answer, kNotFound for a nonce it does not know (any more),
  // kPermissionDenied when we are another user; errors of ShmSegment::Map and
  // DeviceSegment::Open.
  static absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const std::string& listen_path, const v1::DataPlaneChoice& choice,
      Flow flow,
      const std::shared_ptr<const kernels::CudaContext>& cuda = nullptr);

  Segment& memory() { return *memory_; }
  // What it was taken by.
  [[nodiscard]] const std::string& nonce() const { return nonce_; }
  [[nodiscard]] Flow flow() const { return flow_; }
  // Whether the daemon has let the segment go.
  [[nodiscard]] bool lost() const;

 private:
  SegmentLink(UniqueFd connection, std::unique_ptr<Segment> memory,
              std::string nonce, Flow flow)
      : connection_(std::move(connection)),
        memory_(std::move(memory)),
        nonce_(std::move(nonce)),
        flow_(flow) {}

  // Closed last: see DataPlaneChoice of device memory.
  const UniqueFd connection_;
  const std::unique_ptr<Segment> memory_;
  const std::string nonce_;
  const Flow flow_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SEGMENT_LINK_H_
