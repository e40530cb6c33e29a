// SPDX-License-Identifier: Apache-2.0
//
// A client of a torpord process, with sessions of the toy model.

#ifndef TORPOR_TESTS_E2E_DAEMON_CLIENT_H_
#define TORPOR_TESTS_E2E_DAEMON_CLIENT_H_

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "service/status.h"
#include "tests/e2e/process.h"
#include "tests/service/toy_session.h"
#include "tests/testing/status_matchers.h"
#include "torpor/v1/admin_service.grpc.pb.h"
#include "torpor/v1/model_service.grpc.pb.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::e2e {

using service::FromGrpcStatus;
using service::ToySuspend;

// What the health service knows, and HealthCheckResponse{status} of both kinds.
inline constexpr const char* kHealthNames[] = {"", "torpor.v1.SessionService",
                                               "torpor.v1.ModelService",
                                               "torpor.v1.AdminService"};
inline constexpr char kServing[] = "\x08\x01";
inline constexpr char kNotServing[] = "\x08\x02";

struct Client {
  explicit Client(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel = grpc::CreateCustomChannel(
        address, grpc::InsecureChannelCredentials(), arguments);
    sessions = v1::SessionService::NewStub(channel);
    models = v1::ModelService::NewStub(channel);
    admin = v1::AdminService::NewStub(channel);
  }
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::SessionService::Stub> sessions;
  std::unique_ptr<v1::ModelService::Stub> models;
  std::unique_ptr<v1::AdminService::Stub> admin;
  std::string token;

  std::unique_ptr<grpc::ClientContext> Context() const {
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + kPatience);
    if (!token.empty()) {
      context->AddMetadata("authorization", "Bearer " + token);
    }
    return context;
  }
  absl::Status Register() const {
    v1::ModelState state;
    return FromGrpcStatus(models->Register(
        Context().get(), service::ToyModel("toy", "toy weights"), &state));
  }
  absl::Status Suspend(const ToySuspend& suspend) const {
    const auto context = Context();
    v1::SuspendReceipt receipt;
    const auto writer = sessions->Suspend(context.get(), &receipt);
    for (const auto& message : service::Messages(suspend)) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    return FromGrpcStatus(writer->Finish());
  }
  absl::StatusOr<v1::SessionState> Describe(const std::string& id) const {
    v1::DescribeRequest request;
    request.set_session(id);
    v1::SessionState state;
    const auto status = sessions->Describe(Context().get(), request, &state);
    if (!status.ok()) return FromGrpcStatus(status);
    return state;
  }
  v1::StatsResponse Stats() const {
    v1::StatsResponse stats;
    EXPECT_OK(FromGrpcStatus(
        admin->Stats(Context().get(), v1::StatsRequest(), &stats)));
    return stats;
  }
  // Every row of the session is there.
  void ExpectStored(const ToySuspend& suspend) const {
    const auto context = Context();
    const auto stream = sessions->Resume(context.get());
    v1::BeginResumeRequest request;
    request.mutable_header()->set_session(suspend.session);
    request.mutable_header()->set_mode(v1::REPLAY_MODE_EXACT);
    request.mutable_header()->set_engine_replays(true);
    stream->Write(request);
    stream->WritesDone();
    service::Woken woken;
    v1::ResumeChunk chunk;
    while (stream->Read(&chunk)) EXPECT_OK(woken.Add(chunk));
    EXPECT_OK(FromGrpcStatus(stream->Finish()));
    for (const uint32_t slot : {service::kHeads, service::kPlain}) {
      EXPECT_TRUE(woken.compact[slot].bytes ==
                  service::ToyRows(suspend.salt, slot, 0, suspend.rows_to()))
          << suspend.session;
    }
  }
  // The answer of the health service, serialised; empty: the whole daemon.
  absl::StatusOr<std::string> Health(const std::string& service) const {
    // HealthCheckRequest{service}.
    const std::string request =
        service.empty()
            ? ""
            : std::string("\x0a") + static_cast<char>(service.size()) + service;
    return Raw("/grpc.health.v1.Health/Check", request);
  }
  // A unary call by name, raw bytes.
  absl::StatusOr<std::string> Raw(const std::string& method,
                                  const std::string& request) const {
    grpc::GenericStub stub(channel);
    const auto context = Context();
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(context.get(), method, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    stream->StartCall(nullptr);
    wait();
    const grpc::Slice slice(request);
    stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(),
                      nullptr);
    wait();
    grpc::ByteBuffer answer;
    stream->Read(&answer, nullptr);
    wait();
    std::vector<grpc::Slice> slices;
    answer.Dump(&slices);
    std::string bytes;
    for (const grpc::Slice& s : slices) {
      bytes.append(reinterpret_cast<const char*>(s.begin()), s.size());
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    wait();
    if (!status.ok()) return FromGrpcStatus(status);
    return bytes;
  }
};

}  // namespace torpor::e2e

#endif  // TORPOR_TESTS_E2E_DAEMON_CLIENT_H_
