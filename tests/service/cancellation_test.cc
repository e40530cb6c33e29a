// SPDX-License-Identifier: Apache-2.0
//
// Clients that go away at every message of every stream, by cancelling or by
// losing the connection. What a call held is free afterwards and the session is
// its previous version.

#include <grpcpp/create_channel.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"
#include "tests/service/socket_proxy.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Stub = v1::SessionService::Stub;

enum class Leave { kCancel, kLoseConnection };

class CancellationTest : public ServiceTest,
                         public ::testing::WithParamInterface<Leave> {
 protected:
  void Configure(ServerOptions* options) override {
    // Room for a call or two: what one kept, the next ones would miss.
    options->store.buffer_bytes = uint64_t{2} << 20;
    options->backend.max_calls = 4;
    options->backend.idle_limit = std::chrono::seconds(idle_seconds_);
  }
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK(Suspend(stored_));
    proxy_ =
        std::make_unique<SocketProxy>(dir().File("proxy"), dir().File("s"));
  }
  void TearDown() override {
    ExpectIdle();
    ExpectStored(stored_, 1);
    ASSERT_OK(Suspend(next_));
    ExpectStored(next_, 2);
    ASSERT_OK_AND_ASSIGN(const v1::VerifyProgress report, Verify());
    EXPECT_EQ(report.problems_size(), 0);
    proxy_.reset();
  }

  // A client that may lose its connection.
  struct Client {
    std::unique_ptr<Stub> stub;
    std::unique_ptr<grpc::ClientContext> context = NewContext();
  };
  Client Connect() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    Client client;
    client.stub = v1::SessionService::NewStub(grpc::CreateCustomChannel(
        "unix:" + dir().File("proxy"), grpc::InsecureChannelCredentials(),
        arguments));
    return client;
  }
  void LeaveNow(Client* client) {
    if (GetParam() == Leave::kCancel) {
      client->context->TryCancel();
    } else {
      proxy_->Cut();
    }
  }
  static auto Left() {
    return ::testing::AnyOf(HasCode(StatusCode::kCancelled),
                            HasCode(StatusCode::kUnavailable));
  }

  // Until the daemon has come so far.
  void Await(const std::function<bool(const store::StoreStats&)>& done) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!done(server().backend().store().Stats())) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  }
  void AwaitCall() {
    Await([&](const auto&) { return server().backend().running_calls() == 1; });
  }

  // Nothing is left for the reaper.
  int idle_seconds_ = 600;
  const ToySuspend stored_{.ids = ToyIds(1, 20'000),
                           .snapshot = true,
                           .client_state = "state",
                           .blocks_per_message = 64};
  const ToySuspend next_{.expected_version = 1,
                         .operation_id = "next",
                         .tokens_kept = 20'000,
                         .ids = ToyIds(1, 20'150),
                         .rows_from = 20'000,
                         .snapshot = true};

 private:
  std::unique_ptr<SocketProxy> proxy_;
};

TEST_P(CancellationTest, SuspendAtEveryMessage) {
  const std::vector<v1::SuspendRequest> messages = Messages(next_);
  ASSERT_GT(messages.size(), 18);
  // All but the commit.
  for (size_t n = 0; n < messages.size(); ++n) {
    SCOPED_TRACE(n);
    Client client = Connect();
    v1::SuspendReceipt receipt;
    const auto writer = client.stub->Suspend(client.context.get(), &receipt);
    bool rows = false;
    for (size_t i = 0; i < n; ++i) {
      ASSERT_TRUE(writer->Write(messages[i]));
      rows = rows || messages[i].pieces_size() > 0;
    }
    AwaitCall();
    if (rows) Await([](const auto& s) { return s.open_tickets == 1; });
    LeaveNow(&client);
    EXPECT_THAT(FromGrpcStatus(writer->Finish()), Left());
    ExpectIdle();
    EXPECT_EQ(Describe("s")->version(), 1);
  }
}

TEST_P(CancellationTest, PutRowsAtEveryMessageLeavesTheTicket) {
  const std::vector<uint32_t> fresh = {next_.ids.begin() + 20'000,
                                       next_.ids.end()};
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(next_.Header(), fresh));
  std::vector<v1::PutRowsRequest> messages = RowMessages(next_);
  messages[0].set_ticket(begun.ticket());
  for (size_t n = 0; n <= messages.size(); ++n) {
    SCOPED_TRACE(n);
    Client client = Connect();
    v1::PutRowsResponse response;
    const auto writer = client.stub->PutRows(client.context.get(), &response);
    for (size_t i = 0; i < n; ++i) ASSERT_TRUE(writer->Write(messages[i]));
    AwaitCall();
    LeaveNow(&client);
    EXPECT_THAT(FromGrpcStatus(writer->Finish()), Left());
    Await([&](const auto&) { return server().backend().running_calls() == 0; });
    EXPECT_EQ(Stats().open_tickets(), 1);
  }
  // Another stream brings what is missing; what came counts.
  ASSERT_OK(PutRows(messages));
  v1::AbandonSuspendRequest abandon;
  abandon.set_ticket(begun.ticket());
  ASSERT_OK(Ask(sessions(), &Stub::AbandonSuspend, abandon));
}

TEST_P(CancellationTest, HeadersAndTokensOfEveryVerb) {
  v1::BeginSuspendRequest suspend;
  *suspend.mutable_header() = next_.Header();
  v1::BeginSuspendRequest suspend_ids;
  suspend_ids.mutable_tokens()->add_ids(1);
  v1::BeginResumeRequest resume;
  *resume.mutable_header() = EngineResume("s");
  v1::BeginResumeRequest resume_ids;
  resume_ids.mutable_tokens()->add_ids(stored_.ids[0]);
  v1::LookupPrefixRequest lookup;
  lookup.mutable_header()->set_model("toy");
  v1::LookupPrefixRequest lookup_ids;
  lookup_ids.mutable_tokens()->add_ids(stored_.ids[0]);
  const auto leave_at = [&](size_t n, auto open, const auto& first,
                            const auto& second) {
    SCOPED_TRACE(n);
    Client client = Connect();
    const auto writer = open(client);
    if (n > 0) {
      ASSERT_TRUE(writer->Write(first));
    }
    for (size_t i = 1; i < n; ++i) ASSERT_TRUE(writer->Write(second));
    AwaitCall();
    LeaveNow(&client);
    EXPECT_THAT(FromGrpcStatus(writer->Finish()), Left());
    ExpectIdle();
  };
  v1::BeginSuspendResponse suspended;
  v1::BeginResumeResponse resumed;
  v1::LookupPrefixResponse found;
  for (size_t n = 0; n < 4; ++n) {
    leave_at(
        n,
        [&](Client& c) {
          return c.stub->BeginSuspend(c.context.get(), &suspended);
        },
        suspend, suspend_ids);
    leave_at(
        n,
        [&](Client& c) {
          return c.stub->BeginResume(c.context.get(), &resumed);
        },
        resume, resume_ids);
    leave_at(
        n,
        [&](Client& c) {
          return c.stub->LookupPrefix(c.context.get(), &found);
        },
        lookup, lookup_ids);
    leave_at(
        n, [&](Client& c) { return c.stub->Resume(c.context.get()); }, resume,
        resume_ids);
  }
}

TEST_P(CancellationTest, ResumeAtEveryMessage) {
  v1::BeginResumeRequest request;
  v1::BeginResumeHeader* header = request.mutable_header();
  header->set_session("s");
  header->set_mode(v1::REPLAY_MODE_SNAPSHOT);
  header->set_send_tokens(true);
  ASSERT_OK_AND_ASSIGN(const Woken whole, Resume(*header));
  // Plan, tokens, two of compact rows, window header, window rows, receipt.
  ASSERT_GE(whole.n_messages, 7);
  for (int n = 0; n < whole.n_messages; ++n) {
    SCOPED_TRACE(n);
    Client client = Connect();
    const auto stream = client.stub->Resume(client.context.get());
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->WritesDone());
    v1::ResumeChunk chunk;
    for (int i = 0; i < n; ++i) ASSERT_TRUE(stream->Read(&chunk));
    LeaveNow(&client);
    // The last messages may be under way already.
    while (stream->Read(&chunk)) {
    }
    const absl::Status status = FromGrpcStatus(stream->Finish());
    if (n <= 2) {
      EXPECT_THAT(status, Left());
    }
    ExpectIdle();
  }
}

TEST_P(CancellationTest, ReadersOfALeaseLeaveItAlone) {
  v1::BeginResumeHeader header;
  header.set_session("s");
  header.set_mode(v1::REPLAY_MODE_SNAPSHOT);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
  v1::ReadRowsRequest rows;
  rows.set_lease(begun.lease());
  v1::ReadTokensRequest tokens;
  tokens.set_lease(begun.lease());
  v1::WindowRequest window;
  window.set_lease(begun.lease());
  const auto leave_at = [&](int n, auto open, auto chunk) {
    SCOPED_TRACE(n);
    Client client = Connect();
    const auto reader = open(client);
    for (int i = 0; i < n && reader->Read(&chunk); ++i) {
    }
    LeaveNow(&client);
    while (reader->Read(&chunk)) {
    }
    reader->Finish();
    Await([&](const auto&) { return server().backend().running_calls() == 0; });
    EXPECT_EQ(Stats().open_leases(), 1);
  };
  for (int n = 0; n < 3; ++n) {
    leave_at(
        n, [&](Client& c) { return c.stub->ReadRows(c.context.get(), rows); },
        v1::RowChunk());
    leave_at(
        n,
        [&](Client& c) { return c.stub->ReadTokens(c.context.get(), tokens); },
        v1::TokenChunk());
    leave_at(
        n, [&](Client& c) { return c.stub->Window(c.context.get(), window); },
        v1::WindowChunk());
  }
  ASSERT_OK_AND_ASSIGN(const Woken still, ReadRows(rows));
  EXPECT_TRUE(still.compact.at(kPlain).bytes ==
              ToyRows(1, kPlain, 0, stored_.rows_to()));
  EXPECT_OK(Release(begun.lease()));
}

class ReapedTest : public CancellationTest {
 protected:
  ReapedTest() { idle_seconds_ = 1; }
};

TEST_P(ReapedTest, BegunAndGone) {
  // An answer may be sent and find nobody: what it names is reaped.
  const std::vector<uint32_t> fresh = {next_.ids.begin() + 20'000,
                                       next_.ids.end()};
  for (int i = 0; i < 10; ++i) {
    Client client = Connect();
    v1::BeginSuspendResponse suspended;
    const auto writer =
        client.stub->BeginSuspend(client.context.get(), &suspended);
    v1::BeginSuspendRequest message;
    *message.mutable_header() = next_.Header();
    message.mutable_header()->set_operation_id(absl::StrCat("op ", i));
    ASSERT_TRUE(writer->Write(message));
    message.mutable_tokens()->mutable_ids()->Add(fresh.begin(), fresh.end());
    ASSERT_TRUE(writer->Write(message));
    writer->WritesDone();
    LeaveNow(&client);
    writer->Finish();

    Client reader = Connect();
    v1::BeginResumeResponse resumed;
    const auto begin = reader.stub->BeginResume(reader.context.get(), &resumed);
    v1::BeginResumeRequest request;
    *request.mutable_header() = EngineResume("s");
    ASSERT_TRUE(begin->Write(request));
    begin->WritesDone();
    LeaveNow(&reader);
    begin->Finish();
  }
  ExpectIdle();
}

constexpr auto kNameOf = [](const auto& info) {
  return info.param == Leave::kCancel ? "Cancel" : "LoseConnection";
};
INSTANTIATE_TEST_SUITE_P(Ways, CancellationTest,
                         ::testing::Values(Leave::kCancel,
                                           Leave::kLoseConnection),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Ways, ReapedTest,
                         ::testing::Values(Leave::kCancel,
                                           Leave::kLoseConnection),
                         kNameOf);

}  // namespace
}  // namespace torpor::service
