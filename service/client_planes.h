// SPDX-License-Identifier: Apache-2.0
//
// A client's side of the data planes: what its calls offer, the segments that
// answers give them, and those that it keeps for its next calls.

#ifndef TORPOR_SERVICE_CLIENT_PLANES_H_
#define TORPOR_SERVICE_CLIENT_PLANES_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda_shared_memory.h"
#include "service/segment_link.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {

// How rows travel.
enum class RowPlane {
  // Shared memory where the daemon serves it, else gRPC.
  kAuto,
  kGrpc,
  // Nothing else: kFailedPrecondition with the daemon's reason.
  kSharedMemory,
  // Likewise, through memory of the first GPU that this process sees.
  kCudaIpc,
};

// Thread-safe.
class ClientPlanes {
 public:
  // kUnavailable for kCudaIpc without a driver or a GPU.
  static absl::StatusOr<std::unique_ptr<ClientPlanes>> Make(
      RowPlane plane, const std::string& address);

  // Whether gRPC will not do.
  [[nodiscard]] bool WantsSegment() const;
  // Whether calls offer a plane beside gRPC.
  [[nodiscard]] bool OffersSegment() const;

  // What one call offers.
  struct Offer {
    v1::DataPlaneOffer message;
    // Named in it; null when none is kept.
    std::unique_ptr<SegmentLink> kept;
  };
  Offer MakeOffer(Flow flow);
  // The segment of the answer to `offer`; null for gRPC, an error when a
  // segment alone would do. kNotFound when it is gone; other errors of kAuto
  // end its offers.
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice, Flow flow, Offer offer);
  // Of a call that ended well; may be null.
  void Keep(std::unique_ptr<SegmentLink> link);
  // Lets go of kept ones that the daemon has let go of. Nobody else tells a
  // client that makes no call.
  void Reap();

 private:
  ClientPlanes(RowPlane plane, std::string unix_path)
      : plane_(plane), unix_path_(std::move(unix_path)) {}

  const RowPlane plane_;
  // Of the daemon's socket; empty when it is none.
  const std::string unix_path_;
  // Its descriptor socket could not be reached, for example from a container
  // that sees the main one only.
  std::atomic<bool> unreachable_{false};
  // Of kCudaIpc.
  std::shared_ptr<const kernels::CudaContext> cuda_;
  Mutex mu_;
  // The last one last.
  std::vector<std::unique_ptr<SegmentLink>> kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CLIENT_PLANES_H_
