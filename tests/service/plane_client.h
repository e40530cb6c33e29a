// SPDX-License-Identifier: Apache-2.0
//
// What a client with generated stubs does with a shared-memory segment: lays
// rows into it, takes rows out of it.

#ifndef TORPOR_TESTS_SERVICE_PLANE_CLIENT_H_
#define TORPOR_TESTS_SERVICE_PLANE_CLIENT_H_

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/segment_link.h"
#include "service/shm_ring.h"
#include "tests/service/toy_session.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::service {

v1::DataPlaneOffer Offer(const std::vector<v1::DataPlane>& planes);

// BeginResume at another address of the daemon.
absl::StatusOr<v1::BeginResumeResponse> BeginResumeAt(
    const std::string& address, const v1::BeginResumeHeader& header);

// A description that fits nothing, of the toy model's persistent slots.
v1::RowPiece RandomPiece(std::mt19937_64* random);

// Moves the data of a message into the ring.
absl::Status LayInto(RingProducer* ring, v1::PutRowsRequest* message,
                     const std::function<bool()>& give_up = nullptr);

// The messages' rows through the segment of `choice`.
absl::StatusOr<uint64_t> PutShared(v1::SessionService::Stub* stub,
                                   const std::string& ticket,
                                   const v1::DataPlaneChoice& choice,
                                   SegmentLink* link,
                                   std::vector<v1::PutRowsRequest> messages);

// Rows of a message, in the ring's segment, into `woken`.
template <typename Chunk>
absl::Status TakeShared(const Chunk& chunk, bool window, RingConsumer* ring,
                        Woken* woken) {
  if (!chunk.data().empty()) return absl::InternalError("rows in a message");
  for (const v1::RowPiece& piece : chunk.pieces()) {
    const auto bytes = ring->View(piece.position(),
                                  uint64_t{piece.n_rows()} * piece.row_bytes());
    if (!bytes.ok()) return bytes.status();
    google::protobuf::RepeatedPtrField<v1::RowPiece> one;
    *one.Add() = piece;
    const absl::Status taken =
        woken->AddRows(one, std::string(bytes->begin(), bytes->end()), window);
    if (!taken.ok()) return taken;
  }
  ring->Release();
  return absl::OkStatus();
}

absl::StatusOr<Woken> ReadShared(v1::SessionService::Stub* stub,
                                 v1::ReadRowsRequest request,
                                 const v1::DataPlaneChoice& choice,
                                 SegmentLink* link);

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_PLANE_CLIENT_H_
