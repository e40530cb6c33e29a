// SPDX-License-Identifier: Apache-2.0

#include "service/client_planes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

// As many calls at once find one of their own.
constexpr size_t kMostKept = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<ClientPlanes>> ClientPlanes::Make(
    RowPlane plane, const std::string& address) {
  std::unique_ptr<ClientPlanes> planes(
      new ClientPlanes(plane, UnixPathOf(address)));
  if (plane == RowPlane::kCudaIpc) {
    TORPOR_ASSIGN_OR_RETURN(const kernels::CudaDriver driver,
                            kernels::CudaDriver::Load());
    TORPOR_ASSIGN_OR_RETURN(planes->cuda_,
                            kernels::CudaContext::OpenFirst(driver));
  }
  return planes;
}

bool ClientPlanes::WantsSegment() const {
  return plane_ == RowPlane::kSharedMemory || plane_ == RowPlane::kCudaIpc;
}

bool ClientPlanes::OffersSegment() const {
  return WantsSegment() || (plane_ == RowPlane::kAuto && !unix_path_.empty() &&
                            !unreachable_.load());
}

ClientPlanes::Offer ClientPlanes::MakeOffer(Flow flow) {
  Offer offer;
  if (cuda_ != nullptr) {
    offer.message.add_planes(v1::DATA_PLANE_CUDA_IPC);
    const auto& uuid = cuda_->gpu().bytes;
    v1::CudaOffer& cuda = *offer.message.mutable_cuda();
    cuda.set_gpu_uuid(std::string(uuid.begin(), uuid.end()));
    cuda.add_handle_kinds(v1::CUDA_HANDLE_KIND_FD);
    cuda.add_handle_kinds(v1::CUDA_HANDLE_KIND_LEGACY);
    return offer;
  }
  offer.message.add_planes(v1::DATA_PLANE_SHARED_MEMORY);
  offer.message.set_keep(true);
  MutexLock lock(&mu_);
  const auto last =
      std::find_if(kept_.rbegin(), kept_.rend(),
                   [&](const auto& link) { return link->flow() == flow; });
  if (last != kept_.rend()) {
    offer.kept = std::move(*last);
    kept_.erase(std::next(last).base());
    offer.message.set_kept(offer.kept->nonce());
  }
  return offer;
}

absl::StatusOr<std::unique_ptr<SegmentLink>> ClientPlanes::Take(
    const v1::DataPlaneChoice& choice, Flow flow, Offer offer) {
  if (choice.nonce().empty() && !choice.kept()) {
    if (!WantsSegment()) return std::unique_ptr<SegmentLink>();
    return absl::FailedPreconditionError(
        choice.reason().empty()
            ? "data plane: this daemon does not negotiate it"
            : choice.reason());
  }
  const auto& planes = offer.message.planes();
  if (std::find(planes.begin(), planes.end(), choice.plane()) == planes.end()) {
    return absl::DataLossError(
        absl::StrFormat("data plane: got %s, which was not offered",
                        v1::DataPlane_Name(choice.plane())));
  }
  if (choice.kept()) {
    if (offer.kept != nullptr &&
        choice.segment_bytes() == offer.kept->memory().bytes()) {
      return std::move(offer.kept);
    }
    return absl::DataLossError(absl::StrFormat(
        "data plane: got a kept segment of %d bytes, which was not offered",
        choice.segment_bytes()));
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> link =
      SegmentLink::Take(unix_path_, choice, flow, cuda_);
  // The socket answers, and only this segment is gone.
  const bool gone = absl::IsNotFound(link.status());
  if (!WantsSegment() && !link.ok() && !gone) unreachable_.store(true);
  return link;
}

void ClientPlanes::Keep(std::unique_ptr<SegmentLink> link) {
  if (link == nullptr || cuda_ != nullptr) return;
  // Closed after the lock.
  std::unique_ptr<SegmentLink> oldest;
  MutexLock lock(&mu_);
  if (kept_.size() == kMostKept) {
    oldest = std::move(kept_.front());
    kept_.erase(kept_.begin());
  }
  kept_.push_back(std::move(link));
}

void ClientPlanes::Reap() {
  MutexLock lock(&mu_);
  std::erase_if(kept_, [](const auto& link) { return link->lost(); });
}

}  // namespace torpor::service
