// SPDX-License-Identifier: Apache-2.0

#include "service/data_plane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace torpor::service {
namespace {

constexpr char kUnixPeer[] = "unix:";

void AddReason(const char* plane, absl::string_view why,
               v1::DataPlaneChoice* choice) {
  if (!choice->reason().empty()) choice->mutable_reason()->append("; ");
  choice->mutable_reason()->append(
      absl::StrFormat("%s: %s", plane, std::string(why)));
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

PlaneAnswer ChoosePlane(SegmentBroker* broker, PlaneAsk ask) {
  PlaneAnswer answer;
  v1::DataPlaneChoice& choice = answer.choice;
  choice.set_plane(v1::DATA_PLANE_GRPC);
  for (const int plane : ask.offer->planes()) {
    if (plane == v1::DATA_PLANE_GRPC) return answer;
    if (plane == v1::DATA_PLANE_CUDA_IPC) {
      AddReason("CUDA IPC", "not served by this daemon", &choice);
      continue;
    }
    if (plane != v1::DATA_PLANE_SHARED_MEMORY) {
      AddReason("unknown plane", std::to_string(plane), &choice);
      continue;
    }
    if (!absl::StartsWith(ask.peer, kUnixPeer)) {
      AddReason("shared memory", "this connection is no unix socket", &choice);
      continue;
    }
    if (ask.flow == Flow::kToClient && ask.bytes == 0) {
      AddReason("shared memory", "there are no rows to carry", &choice);
      continue;
    }
    absl::StatusOr<SegmentBroker::Made> made =
        broker->Make(ask.bytes, ask.flow, ask.on_lost);
    if (!made.ok()) {
      AddReason("shared memory", made.status().message(), &choice);
      continue;
    }
    choice.set_plane(v1::DATA_PLANE_SHARED_MEMORY);
    choice.set_nonce(made->nonce);
    choice.set_segment(made->segment->id());
    choice.set_segment_bytes(made->segment->memory().bytes());
    answer.segment = std::move(made->segment);
    return answer;
  }
  return answer;
}

}  // namespace torpor::service
