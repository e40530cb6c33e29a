// SPDX-License-Identifier: Apache-2.0
//
// OpenPlane: one more segment for a ticket or a lease.

#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "service/data_plane.h"
#include "service/row_sender.h"
#include "service/session_service.h"

namespace torpor::service {
namespace {

// A lost segment of OpenPlane takes nothing but itself away.
template <typename Owner>
std::function<void(ServerSegment&)> RemoveFrom(
    const std::shared_ptr<Owner>& owner, PlaneSet* planes) {
  return [weak = std::weak_ptr<Owner>(owner), planes](ServerSegment& segment) {
    const std::shared_ptr<Owner> alive = weak.lock();
    if (alive != nullptr) planes->Remove(segment.id());
  };
}

v1::DataPlaneChoice Open(SegmentBroker* broker, const PlaneAsk& ask,
                         PlaneSet* planes) {
  PlaneAnswer answer = ChoosePlane(broker, ask);
  if (answer.segment != nullptr) {
    planes->Add(answer.segment);
    // A kept one may have been lost already, before it was there to be removed.
    if (answer.segment->lost()) planes->Remove(answer.segment->id());
  }
  return std::move(answer.choice);
}

}  // namespace

grpc::ServerUnaryReactor* SessionServiceImpl::OpenPlane(
    grpc::CallbackServerContext* context, const v1::OpenPlaneRequest* request,
    v1::DataPlaneChoice* response) {
  return RunUnary(context, &backend_.workers(), [=, this](Call& call) {
    return backend_.Serve(
        "OpenPlane", call, [&](uint32_t tenant) -> absl::Status {
          PlaneAsk ask{.offer = &request->planes(),
                       .peer = call.context()->peer()};
          if (request->owner_case() == v1::OpenPlaneRequest::kTicket) {
            TORPOR_ASSIGN_OR_RETURN(
                const std::shared_ptr<Ticket> ticket,
                backend_.tickets().Get(tenant, request->ticket()));
            ask.bytes = ticket->row_bytes;
            ask.flow = Flow::kToServer;
            ask.on_lost = RemoveFrom(ticket, &ticket->planes);
            *response = Open(&backend_.segments(), ask, &ticket->planes);
            return absl::OkStatus();
          }
          TORPOR_ASSIGN_OR_RETURN(
              const std::shared_ptr<Lease> lease,
              backend_.leases().Get(tenant, request->lease()));
          ask.bytes = CompactBytes(*lease) + WindowBytes(*lease);
          ask.flow = Flow::kToClient;
          ask.on_lost = RemoveFrom(lease, &lease->planes());
          *response = Open(&backend_.segments(), ask, &lease->planes());
          return absl::OkStatus();
        });
  });
}

}  // namespace torpor::service
