// SPDX-License-Identifier: Apache-2.0

#include "tests/service/plane_client.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "base/status.h"
#include "service/status.h"

namespace torpor::service {
namespace {

constexpr std::chrono::seconds kLimit{120};

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + kLimit);
}

}  // namespace

v1::DataPlaneOffer Offer(const std::vector<v1::DataPlane>& planes) {
  v1::DataPlaneOffer offer;
  for (const v1::DataPlane plane : planes) offer.add_planes(plane);
  return offer;
}

absl::StatusOr<v1::BeginResumeResponse> BeginResumeAt(
    const std::string& address, const v1::BeginResumeHeader& header) {
  const auto stub = v1::SessionService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::BeginResumeResponse begun;
  const auto writer = stub->BeginResume(&context, &begun);
  v1::BeginResumeRequest message;
  *message.mutable_header() = header;
  writer->Write(message);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return begun;
}

v1::RowPiece RandomPiece(std::mt19937_64* random) {
  const auto any = [&] { return (*random)() >> ((*random)() % 64); };
  v1::RowPiece piece;
  piece.set_slot(static_cast<uint32_t>((*random)() % 3));
  piece.set_row_begin((*random)() % 320);
  piece.set_n_rows(static_cast<uint32_t>(any()));
  piece.set_row_bytes(kToyRowBytes[piece.slot()]);
  piece.set_position(any());
  piece.set_checksum((*random)());
  return piece;
}

absl::Status LayInto(RingProducer* ring, v1::PutRowsRequest* message,
                     const std::function<bool()>& give_up) {
  const std::string data = std::move(*message->mutable_data());
  message->clear_data();
  size_t at = 0;
  for (v1::RowPiece& piece : *message->mutable_pieces()) {
    const size_t n = size_t{piece.n_rows()} * piece.row_bytes();
    TORPOR_ASSIGN_OR_RETURN(const RingRoom room,
                            ring->Reserve(n, kLimit, give_up));
    // Hostile tests change them meanwhile.
    for (size_t i = 0; i < n; ++i) {
      std::atomic_ref(room.bytes[i])
          .store(static_cast<uint8_t>(data[at + i]), std::memory_order_relaxed);
    }
    piece.set_position(room.position);
    at += n;
  }
  return ring->Publish();
}

absl::StatusOr<uint64_t> PutShared(v1::SessionService::Stub* stub,
                                   const std::string& ticket,
                                   const v1::DataPlaneChoice& choice,
                                   SegmentLink* link,
                                   std::vector<v1::PutRowsRequest> messages) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::PutRowsResponse response;
  const auto writer = stub->PutRows(&context, &response);
  v1::PutRowsRequest first;
  first.set_ticket(ticket);
  first.set_segment(choice.segment());
  bool writing = writer->Write(first);
  RingProducer ring(&link->memory());
  for (v1::PutRowsRequest& message : messages) {
    if (!writing) break;
    // Of a call that is over only a write tells.
    const absl::Status laid = LayInto(
        &ring, &message, [&] { return !writer->Write(v1::PutRowsRequest()); });
    if (absl::IsCancelled(laid)) break;
    TORPOR_RETURN_IF_ERROR(laid);
    writing = writer->Write(message);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response.bytes_received();
}

absl::StatusOr<Woken> ReadShared(v1::SessionService::Stub* stub,
                                 v1::ReadRowsRequest request,
                                 const v1::DataPlaneChoice& choice,
                                 SegmentLink* link) {
  grpc::ClientContext context;
  SetDeadline(&context);
  request.set_segment(choice.segment());
  const auto reader = stub->ReadRows(&context, request);
  Woken woken;
  RingConsumer ring(&link->memory());
  v1::RowChunk chunk;
  absl::Status taken;
  while (reader->Read(&chunk)) {
    taken.Update(TakeShared(chunk, false, &ring, &woken));
    ++woken.n_messages;
    // Damage: nothing more is wanted, and the daemon would wait for us.
    if (absl::IsInternal(taken)) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (absl::IsInternal(taken)) return taken;
  if (!status.ok()) return FromGrpcStatus(status);
  if (!taken.ok()) return taken;
  return woken;
}

}  // namespace torpor::service
