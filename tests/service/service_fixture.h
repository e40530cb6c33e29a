// SPDX-License-Identifier: Apache-2.0
//
// A daemon inside the test program, on a unix socket in a directory of its own,
// and calls to it as any client would make them: generated stubs, whole
// messages.

#ifndef TORPOR_TESTS_SERVICE_SERVICE_FIXTURE_H_
#define TORPOR_TESTS_SERVICE_SERVICE_FIXTURE_H_

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/server.h"
#include "service/status.h"
#include "tests/service/toy_session.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "torpor/v1/admin_service.grpc.pb.h"
#include "torpor/v1/model_service.grpc.pb.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::service {

using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;
using ::torpor::testing::IsOk;

// Longer than any call here takes, even under a sanitizer.
inline constexpr std::chrono::seconds kPatience{120};

std::unique_ptr<grpc::ClientContext> NewContext(
    std::chrono::milliseconds timeout = kPatience);

class ServiceTest : public ::testing::Test {
 protected:
  // A daemon with the model "toy".
  void SetUp() override;

  // Options of the daemon; a test's fixture may change them.
  virtual void Configure(ServerOptions*) {}

  // Stops the daemon if it runs; starts one over the same directory.
  void Restart();
  void Stop();

  Server& server() { return *server_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  // A connection of its own, as another process would have.
  std::shared_ptr<grpc::Channel> NewChannel() const;
  const testing::TempDir& dir() const { return dir_; }

  v1::SessionService::Stub& sessions() { return *sessions_; }
  v1::ModelService::Stub& models() { return *models_; }
  v1::AdminService::Stub& admin() { return *admin_; }

  // A unary call.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Ask(
      Stub& stub,
      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                   Response*),
      const Request& request) {
    Response response;
    const auto context = NewContext();
    const grpc::Status status =
        (stub.*method)(context.get(), request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  // One-call verbs.
  absl::StatusOr<v1::SuspendReceipt> Suspend(
      const std::vector<v1::SuspendRequest>& messages);
  absl::StatusOr<v1::SuspendReceipt> Suspend(const ToySuspend& suspend) {
    return Suspend(Messages(suspend));
  }
  absl::StatusOr<Woken> Resume(const v1::BeginResumeHeader& header,
                               const std::vector<uint32_t>& prompt = {});

  // Verbs in parts. `ids`: the tokens after those kept.
  absl::StatusOr<v1::BeginSuspendResponse> BeginSuspend(
      const v1::BeginSuspendHeader& header, const std::vector<uint32_t>& ids);
  absl::StatusOr<uint64_t> PutRows(
      const std::vector<v1::PutRowsRequest>& messages);
  absl::StatusOr<v1::SuspendReceipt> Commit(const v1::CommitRequest& request);
  absl::StatusOr<v1::BeginResumeResponse> BeginResume(
      const v1::BeginResumeHeader& header,
      const std::vector<uint32_t>& prompt = {});
  absl::StatusOr<Woken> ReadRows(const v1::ReadRowsRequest& request);
  absl::StatusOr<std::vector<uint32_t>> ReadTokens(
      const v1::ReadTokensRequest& request);
  absl::StatusOr<Woken> Window(const v1::WindowRequest& request);
  absl::StatusOr<v1::ResumeReceipt> Release(const std::string& lease);

  absl::StatusOr<v1::LookupPrefixResponse> Lookup(const std::string& model,
                                                  const v1::TokenChunk& tokens);
  absl::StatusOr<v1::SessionState> Describe(const std::string& session);
  v1::StatsResponse Stats();
  absl::StatusOr<v1::VerifyProgress> Verify(bool deep = true);

  // Waits until nothing is left of earlier calls: tickets, leases, reserved
  // bytes, staged records, running calls, waiting replays.
  void ExpectIdle();
  // The session is whole: its tokens and rows are those of the suspend.
  void ExpectStored(const ToySuspend& suspend, uint64_t version);
  // Every token is in one of the three sums, and each that was not reused has
  // a reason.
  static void ExpectAddsUp(const v1::ResumeReceipt& receipt);

 private:
  const testing::TempDir dir_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// Asks for a session as an engine that replays itself: plan and compact rows.
v1::BeginResumeHeader EngineResume(const std::string& session);

}  // namespace torpor::service

#endif  // TORPOR_TESTS_SERVICE_SERVICE_FIXTURE_H_
