// SPDX-License-Identifier: Apache-2.0

#include "tests/service/service_fixture.h"

#include <grpcpp/create_channel.h>
#include <sodium.h>

#include <algorithm>
#include <thread>

#include "service/log.h"

namespace torpor::service {

std::unique_ptr<grpc::ClientContext> NewContext(
    std::chrono::milliseconds timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + timeout);
  return context;
}

void ServiceTest::SetUp() {
  ASSERT_GE(sodium_init(), 0);
  ASSERT_OK(StartLog("off"));
  ASSERT_NO_FATAL_FAILURE(Restart());
  ASSERT_OK(Ask(models(), &v1::ModelService::Stub::Register,
                ToyModel("toy", "toy weights")));
}

void ServiceTest::Stop() {
  sessions_.reset();
  models_.reset();
  admin_.reset();
  channel_.reset();
  server_.reset();
}

void ServiceTest::Restart() {
  Stop();
  ServerOptions options;
  options.store.data_dir = dir_.File("data");
  options.store.map_bytes = uint64_t{1} << 30;
  options.store.max_bytes = uint64_t{1} << 29;
  options.listen = {"unix://" + dir_.File("s")};
  options.maintain_every = std::chrono::milliseconds(20);
  options.drain_limit = std::chrono::milliseconds(1000);
  options.backend.max_calls = 32;
  Configure(&options);
  ASSERT_OK_AND_ASSIGN(server_, Server::Start(std::move(options)));
  channel_ = NewChannel();
  sessions_ = v1::SessionService::NewStub(channel_);
  models_ = v1::ModelService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> ServiceTest::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server_->addresses().front(),
                                   grpc::InsecureChannelCredentials(),
                                   arguments);
}

absl::StatusOr<v1::SuspendReceipt> ServiceTest::Suspend(
    const std::vector<v1::SuspendRequest>& messages) {
  v1::SuspendReceipt receipt;
  const auto context = NewContext();
  const auto writer = sessions().Suspend(context.get(), &receipt);
  for (const v1::SuspendRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return receipt;
}

namespace {

template <typename Stream>
void SendPrompt(Stream* stream, const v1::BeginResumeHeader& header,
                const std::vector<uint32_t>& prompt) {
  v1::BeginResumeRequest first;
  *first.mutable_header() = header;
  bool writing = stream->Write(first);
  constexpr size_t kIdsPerMessage = 100;
  for (size_t at = 0; writing && at < prompt.size(); at += kIdsPerMessage) {
    const size_t end = std::min(prompt.size(), at + kIdsPerMessage);
    v1::BeginResumeRequest tokens;
    tokens.mutable_tokens()->mutable_ids()->Add(
        prompt.begin() + static_cast<ptrdiff_t>(at),
        prompt.begin() + static_cast<ptrdiff_t>(end));
    writing = stream->Write(tokens);
  }
  stream->WritesDone();
}

}  // namespace

absl::StatusOr<Woken> ServiceTest::Resume(const v1::BeginResumeHeader& header,
                                          const std::vector<uint32_t>& prompt) {
  const auto context = NewContext();
  const auto stream = sessions().Resume(context.get());
  SendPrompt(stream.get(), header, prompt);
  Woken woken;
  v1::ResumeChunk chunk;
  absl::Status taken;
  while (stream->Read(&chunk)) taken.Update(woken.Add(chunk));
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  if (!taken.ok()) return taken;
  if (!woken.receipt.has_value()) return absl::InternalError("no receipt");
  return woken;
}

absl::StatusOr<v1::BeginSuspendResponse> ServiceTest::BeginSuspend(
    const v1::BeginSuspendHeader& header, const std::vector<uint32_t>& ids) {
  v1::BeginSuspendResponse response;
  const auto context = NewContext();
  const auto writer = sessions().BeginSuspend(context.get(), &response);
  v1::BeginSuspendRequest message;
  *message.mutable_header() = header;
  writer->Write(message);
  message.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  writer->Write(message);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<uint64_t> ServiceTest::PutRows(
    const std::vector<v1::PutRowsRequest>& messages) {
  v1::PutRowsResponse response;
  const auto context = NewContext();
  const auto writer = sessions().PutRows(context.get(), &response);
  for (const v1::PutRowsRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response.bytes_received();
}

absl::StatusOr<v1::SuspendReceipt> ServiceTest::Commit(
    const v1::CommitRequest& request) {
  return Ask(sessions(), &v1::SessionService::Stub::Commit, request);
}

absl::StatusOr<v1::BeginResumeResponse> ServiceTest::BeginResume(
    const v1::BeginResumeHeader& header, const std::vector<uint32_t>& prompt) {
  v1::BeginResumeResponse response;
  const auto context = NewContext();
  const auto writer = sessions().BeginResume(context.get(), &response);
  SendPrompt(writer.get(), header, prompt);
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<Woken> ServiceTest::ReadRows(
    const v1::ReadRowsRequest& request) {
  const auto context = NewContext();
  const auto reader = sessions().ReadRows(context.get(), request);
  Woken woken;
  v1::RowChunk chunk;
  absl::Status taken;
  while (reader->Read(&chunk)) {
    taken.Update(woken.AddRows(chunk.pieces(), chunk.data(), false));
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  if (!taken.ok()) return taken;
  return woken;
}

absl::StatusOr<std::vector<uint32_t>> ServiceTest::ReadTokens(
    const v1::ReadTokensRequest& request) {
  const auto context = NewContext();
  const auto reader = sessions().ReadTokens(context.get(), request);
  std::vector<uint32_t> ids;
  v1::TokenChunk chunk;
  while (reader->Read(&chunk)) {
    ids.insert(ids.end(), chunk.ids().begin(), chunk.ids().end());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return ids;
}

absl::StatusOr<Woken> ServiceTest::Window(const v1::WindowRequest& request) {
  const auto context = NewContext();
  const auto reader = sessions().Window(context.get(), request);
  Woken woken;
  v1::WindowChunk chunk;
  absl::Status taken;
  while (reader->Read(&chunk)) {
    if (chunk.has_header() == woken.header.has_value()) {
      taken.Update(absl::InternalError("the header comes first, and once"));
    }
    if (chunk.has_header()) woken.header = chunk.header();
    taken.Update(woken.AddRows(chunk.pieces(), chunk.data(), true));
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  if (!taken.ok()) return taken;
  return woken;
}

absl::StatusOr<v1::ResumeReceipt> ServiceTest::Release(
    const std::string& lease) {
  v1::ReleaseRequest request;
  request.set_lease(lease);
  return Ask(sessions(), &v1::SessionService::Stub::Release, request);
}

absl::StatusOr<v1::LookupPrefixResponse> ServiceTest::Lookup(
    const std::string& model, const v1::TokenChunk& tokens) {
  v1::LookupPrefixResponse response;
  const auto context = NewContext();
  const auto writer = sessions().LookupPrefix(context.get(), &response);
  v1::LookupPrefixRequest message;
  message.mutable_header()->set_model(model);
  writer->Write(message);
  *message.mutable_tokens() = tokens;
  writer->Write(message);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

absl::StatusOr<v1::SessionState> ServiceTest::Describe(
    const std::string& session) {
  v1::DescribeRequest request;
  request.set_session(session);
  return Ask(sessions(), &v1::SessionService::Stub::Describe, request);
}

v1::StatsResponse ServiceTest::Stats() {
  const auto stats =
      Ask(admin(), &v1::AdminService::Stub::Stats, v1::StatsRequest());
  EXPECT_OK(stats);
  return stats.ok() ? *stats : v1::StatsResponse();
}

absl::StatusOr<v1::VerifyProgress> ServiceTest::Verify(bool deep) {
  const auto context = NewContext();
  v1::VerifyRequest request;
  request.set_deep(deep);
  const auto reader = admin().Verify(context.get(), request);
  v1::VerifyProgress progress;
  while (reader->Read(&progress)) {
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return progress;
}

void ServiceTest::ExpectIdle() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  std::string left;
  do {
    left.clear();
    const auto want_zero = [&](const char* what, uint64_t n) {
      if (n != 0) left += std::string(what) + "=" + std::to_string(n) + " ";
    };
    Backend& backend = server().backend();
    const store::StoreStats stats = backend.store().Stats();
    want_zero("tickets", backend.tickets().size() + stats.open_tickets);
    want_zero("leases", backend.leases().size() + stats.open_leases);
    want_zero("reserved_bytes", stats.reserved_bytes);
    want_zero("staged_records", stats.staged_records);
    want_zero("running_calls", backend.running_calls());
    want_zero("replays", backend.replay().waiting());
    if (left.empty()) return;
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < deadline);
  FAIL() << "still held: " << left;
}

void ServiceTest::ExpectStored(const ToySuspend& suspend, uint64_t version) {
  v1::BeginResumeHeader header = EngineResume(suspend.session);
  header.set_send_tokens(true);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(header));
  EXPECT_EQ(woken.begin.state().version(), version);
  EXPECT_EQ(woken.begin.state().kv_len(), suspend.rows_to());
  EXPECT_EQ(woken.ids, suspend.ids);
  EXPECT_EQ(woken.begin.client_state(), suspend.client_state);
  for (const uint32_t slot : {kHeads, kPlain}) {
    ASSERT_TRUE(woken.compact.contains(slot));
    EXPECT_TRUE(woken.compact.at(slot).bytes ==
                ToyRows(suspend.salt, slot, 0, suspend.rows_to()))
        << "rows of slot " << slot;
  }
}

void ServiceTest::ExpectAddsUp(const v1::ResumeReceipt& r) {
  EXPECT_EQ(r.loaded_tokens() + r.replayed_tokens() + r.recomputed_tokens(),
            r.prompt_tokens())
      << r.ShortDebugString();
  uint64_t explained = 0;
  for (const v1::TokenReason& reason : r.reasons()) {
    EXPECT_NE(reason.reason(), "");
    explained += reason.tokens();
  }
  EXPECT_EQ(explained, r.recomputed_tokens()) << r.ShortDebugString();
}

v1::BeginResumeHeader EngineResume(const std::string& session) {
  v1::BeginResumeHeader header;
  header.set_session(session);
  header.set_mode(v1::REPLAY_MODE_EXACT);
  header.set_engine_replays(true);
  return header;
}

}  // namespace torpor::service
