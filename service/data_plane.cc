// SPDX-License-Identifier: Apache-2.0

#include "service/data_plane.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/device_segment.h"

namespace torpor::service {
namespace {

constexpr char kUnixPeer[] = "unix:";
constexpr size_t kMostPlanes = 8;

void AddReason(const char* plane, absl::string_view why,
               v1::DataPlaneChoice* choice) {
  if (!choice->reason().empty()) choice->mutable_reason()->append("; ");
  choice->mutable_reason()->append(
      absl::StrFormat("%s: %s", plane, std::string(why)));
}

// What the offer says of CUDA. kInvalidArgument names the field.
absl::StatusOr<kernels::CudaUuid> GpuOf(const v1::CudaOffer& offer) {
  kernels::CudaUuid gpu;
  if (offer.gpu_uuid().size() != gpu.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cuda.gpu_uuid: got %d bytes, wanted %d",
                        offer.gpu_uuid().size(), gpu.bytes.size()));
  }
  std::copy(offer.gpu_uuid().begin(), offer.gpu_uuid().end(),
            gpu.bytes.begin());
  return gpu;
}

std::vector<kernels::CudaHandleKind> KindsOf(const v1::CudaOffer& offer) {
  std::vector<kernels::CudaHandleKind> kinds;
  for (const int number : offer.handle_kinds()) {
    if (number != v1::CUDA_HANDLE_KIND_FD &&
        number != v1::CUDA_HANDLE_KIND_LEGACY) {
      continue;
    }
    const auto kind = number == v1::CUDA_HANDLE_KIND_FD
                          ? kernels::CudaHandleKind::kFd
                          : kernels::CudaHandleKind::kLegacy;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

// A segment of the plane, or why not.
absl::StatusOr<SegmentBroker::Made> Make(SegmentBroker* broker,
                                         v1::DataPlane plane,
                                         const PlaneAsk& ask) {
  if (!absl::StartsWith(ask.peer, kUnixPeer)) {
    return absl::FailedPreconditionError("this connection is no unix socket");
  }
  if (ask.flow == Flow::kToClient && ask.bytes == 0) {
    return absl::FailedPreconditionError("there are no rows to carry");
  }
  if (plane == v1::DATA_PLANE_SHARED_MEMORY) {
    return broker->Make(ask.bytes, ask.flow, ask.on_lost,
                        {.keep = ask.offer->keep(), .kept = ask.offer->kept()});
  }
  TORPOR_ASSIGN_OR_RETURN(const kernels::CudaUuid gpu,
                          GpuOf(ask.offer->cuda()));
  return broker->MakeOnDevice(ask.bytes, gpu, KindsOf(ask.offer->cuda()),
                              ask.on_lost);
}

}  // namespace

void PlaneSet::Add(std::shared_ptr<ServerSegment> segment) {
  MutexLock lock(&mu_);
  segments_.push_back(std::move(segment));
}

void PlaneSet::Remove(const std::string& id) {
  // Freed after the lock.
  std::shared_ptr<ServerSegment> removed;
  MutexLock lock(&mu_);
  const auto it = std::find_if(segments_.begin(), segments_.end(),
                               [&](const auto& s) { return s->id() == id; });
  if (it == segments_.end()) return;
  removed = std::move(*it);
  segments_.erase(it);
}

absl::StatusOr<std::unique_ptr<SegmentUse>> PlaneSet::Use(
    const std::string& id) {
  MutexLock lock(&mu_);
  for (const auto& segment : segments_) {
    if (segment->id() != id) continue;
    if (!segment->BeginUse()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("segment '%s': another stream uses it", id));
    }
    return std::make_unique<SegmentUse>(segment);
  }
  return absl::NotFoundError(absl::StrFormat(
      "segment '%s': unknown here, or its connection was closed", id));
}

PlaneAnswer ChoosePlane(SegmentBroker* broker, const PlaneAsk& ask) {
  PlaneAnswer answer;
  v1::DataPlaneChoice& choice = answer.choice;
  choice.set_plane(v1::DATA_PLANE_GRPC);
  // A list may be as long as a message: each plane is tried once.
  std::set<int> tried;
  for (const int plane : ask.offer->planes()) {
    if (plane == v1::DATA_PLANE_GRPC) return answer;
    if (tried.size() == kMostPlanes || !tried.insert(plane).second) continue;
    const bool cuda = plane == v1::DATA_PLANE_CUDA_IPC;
    if (!cuda && plane != v1::DATA_PLANE_SHARED_MEMORY) {
      AddReason("unknown plane", std::to_string(plane), &choice);
      continue;
    }
    const auto known = static_cast<v1::DataPlane>(plane);
    absl::StatusOr<SegmentBroker::Made> made = Make(broker, known, ask);
    if (!made.ok()) {
      AddReason(cuda ? "CUDA IPC" : "shared memory", made.status().message(),
                &choice);
      continue;
    }
    choice.set_plane(known);
    if (cuda) {
      const auto& memory =
          static_cast<const DeviceSegment&>(made->segment->memory());
      choice.set_cuda_handle_kind(memory.kind() == kernels::CudaHandleKind::kFd
                                      ? v1::CUDA_HANDLE_KIND_FD
                                      : v1::CUDA_HANDLE_KIND_LEGACY);
    }
    choice.set_nonce(made->nonce);
    choice.set_kept(made->nonce.empty());
    choice.set_segment(made->segment->id());
    choice.set_segment_bytes(made->segment->memory().bytes());
    answer.segment = std::move(made->segment);
    return answer;
  }
  return answer;
}

}  // namespace torpor::service
