// SPDX-License-Identifier: Apache-2.0
//
// A C++ client of torpord: one process that suspends and resumes whole
// sessions, and the unary verbs. Blocking; thread-safe.

#ifndef TORPOR_SERVICE_CLIENT_H_
#define TORPOR_SERVICE_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/client_planes.h"
#include "torpor/v1/admin_service.grpc.pb.h"
#include "torpor/v1/model_service.grpc.pb.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::service {

struct ClientOptions {
  // "unix:///path", "unix:/path" or "host:port".
  std::string address;
  // Bearer token; empty = none.
  std::string token;
  // PEM file of the CA to trust; empty = no TLS.
  std::string tls_ca;
  // A connection that no other client of this process shares.
  bool own_connection = false;
  // Of unary calls and of a whole stream.
  std::chrono::milliseconds timeout{600'000};
  RowPlane plane = RowPlane::kAuto;
};

// Rows [begin, end) of a layout slot into `out`, which holds them exactly.
using RowSource = std::function<absl::Status(
    uint32_t slot, uint64_t begin, uint64_t end, std::span<uint8_t> out)>;
// Rows from `begin` on of a layout slot, verified.
using RowSink = std::function<absl::Status(uint32_t slot, uint64_t begin,
                                           std::span<const uint8_t> bytes)>;

// Rows of one slot that a suspend sends.
struct OutgoingSlot {
  uint32_t slot = 0;
  uint32_t row_bytes = 0;
  // Tokens that a row stands for; of compact slots alone.
  uint32_t tokens_per_row = 1;
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
};

struct SuspendCall {
  v1::BeginSuspendHeader header;
  // Tokens after header.tokens_kept().
  std::span<const uint32_t> ids;
  // Compact slots; their rows go block by block.
  std::vector<OutgoingSlot> slots;
  // What a snapshot holds, in layout order; its rows go behind, slot by slot.
  std::vector<OutgoingSlot> snapshot;
  uint32_t block_size = 0;
  RowSource rows;
  v1::Witness witness;
  std::string client_state;
};

struct ResumeCall {
  v1::BeginResumeHeader header;
  // The prompt; empty to take what the session has.
  std::span<const uint32_t> ids;
  // After the plan arrived, before any row.
  std::function<absl::Status(const v1::BeginResumeResponse&)> on_begin;
  RowSink compact;
  RowSink window;
};

struct ResumeAnswer {
  v1::BeginResumeResponse begin;
  std::vector<uint32_t> ids;
  v1::WindowHeader window;
  v1::ResumeReceipt receipt;
};

class Client {
 public:
  // kUnavailable when nobody answers within 5 s, or the timeout if shorter, and
  // for kCudaIpc without a driver or a GPU.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);

  // Whether the daemon, or one service of it by full name, takes calls:
  // kUnavailable when not, kNotFound for a service that it does not have.
  absl::Status CheckHealth(const std::string& service);

  absl::StatusOr<v1::SuspendReceipt> Suspend(const SuspendCall& call);
  absl::StatusOr<ResumeAnswer> Resume(const ResumeCall& call);
  // How many of these tokens are stored; 0 is an answer.
  absl::StatusOr<uint64_t> LookupPrefix(const std::string& model,
                                        const v1::Fingerprint& fingerprint,
                                        std::span<const uint32_t> ids);

  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::ModelService::Stub& models() { return *models_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  // For calls through the stubs: deadline and credential set.
  std::unique_ptr<grpc::ClientContext> Context() const;

  // A unary call as a StatusOr.
  template <typename Request, typename Response, typename Stub>
  absl::StatusOr<Response> Unary(
      Stub& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) {
    Response response;
    const auto context = Context();
    const grpc::Status status =
        (stub.*method)(context.get(), request, &response);
    if (!status.ok()) return Status(status);
    return response;
  }

 private:
  explicit Client(ClientOptions options);
  static absl::Status Status(const grpc::Status& status);

  absl::StatusOr<v1::SuspendReceipt> SuspendInOne(const SuspendCall& call);
  // Begin, rows through a segment, commit.
  absl::StatusOr<v1::SuspendReceipt> SuspendInParts(const SuspendCall& call);
  absl::StatusOr<v1::BeginSuspendResponse> BeginSuspend(
      const SuspendCall& call, const v1::DataPlaneOffer& planes);
  absl::Status PutRows(const SuspendCall& call,
                       const v1::BeginSuspendResponse& begun,
                       SegmentLink* link);
  absl::StatusOr<ResumeAnswer> ResumeOnce(const ResumeCall& call,
                                          bool offer_segment);

  const ClientOptions options_;
  std::unique_ptr<ClientPlanes> planes_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// A fresh operation id.
std::string NewOperationId();

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CLIENT_H_
