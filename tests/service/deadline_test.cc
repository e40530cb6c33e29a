// SPDX-License-Identifier: Apache-2.0
//
// Deadlines, idle clients and the limits on how many may come: work ends, what
// it held is free, and the refusal says why.

#include <thread>

#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Stub = v1::SessionService::Stub;
using std::chrono::milliseconds;

class DeadlineTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.max_calls = 4;
    options->backend.max_tickets = 2;
    options->backend.max_leases = 3;
    options->backend.idle_limit = std::chrono::seconds(idle_seconds_);
    // Half of what a block-long run ahead needs.
    options->store.ahead_bytes = 8 * 1024;
  }
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK(Suspend(stored_));
  }
  void TearDown() override {
    ExpectIdle();
    ExpectStored(stored_, 1);
  }
  std::vector<uint32_t> Fresh() const {
    return {next_.ids.begin() + 50, next_.ids.end()};
  }
  absl::StatusOr<v1::BeginSuspendResponse> BeginAs(const std::string& op) {
    v1::BeginSuspendHeader header = next_.Header();
    header.set_operation_id(op);
    return BeginSuspend(header, Fresh());
  }
  void Abandon(const std::string& ticket) {
    v1::AbandonSuspendRequest request;
    request.set_ticket(ticket);
    EXPECT_OK(Ask(sessions(), &Stub::AbandonSuspend, request));
  }

  int idle_seconds_ = 600;
  const ToySuspend stored_{.ids = ToyIds(1, 50)};
  const ToySuspend next_{.expected_version = 1,
                         .operation_id = "next",
                         .tokens_kept = 50,
                         .ids = ToyIds(1, 1000),
                         .rows_from = 50};
};

TEST_F(DeadlineTest, StreamsThatStopHalfWayEnd) {
  const std::vector<v1::SuspendRequest> messages = Messages(next_);
  for (const size_t n :
       {size_t{0}, size_t{1}, size_t{30}, messages.size() - 1}) {
    const auto context = NewContext(milliseconds(200));
    v1::SuspendReceipt receipt;
    const auto writer = sessions().Suspend(context.get(), &receipt);
    for (size_t i = 0; i < n; ++i) writer->Write(messages[i]);
    EXPECT_THAT(FromGrpcStatus(writer->Finish()),
                HasCode(StatusCode::kDeadlineExceeded));
    ExpectIdle();
    EXPECT_EQ(Describe("s")->version(), 1);
  }
}

TEST_F(DeadlineTest, AReaderThatDoesNotReadEnds) {
  const auto context = NewContext(milliseconds(200));
  const auto stream = sessions().Resume(context.get());
  v1::BeginResumeRequest request;
  *request.mutable_header() = EngineResume("s");
  stream->Write(request);
  stream->WritesDone();
  // Nothing is read until the daemon has let go.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server().backend().running_calls() != 0 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ExpectIdle();
  v1::ResumeChunk chunk;
  while (stream->Read(&chunk)) {
  }
  stream->Finish();
}

TEST_F(DeadlineTest, RowsThatWaitForAnOlderBlockEnd) {
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginAs("ahead"));
  // Everything but the first block: the daemon holds the stream.
  std::vector<v1::PutRowsRequest> rows = RowMessages(next_);
  rows.erase(rows.begin());
  rows.front().set_ticket(begun.ticket());
  const auto context = NewContext(milliseconds(300));
  v1::PutRowsResponse response;
  const auto writer = sessions().PutRows(context.get(), &response);
  for (const v1::PutRowsRequest& message : rows) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  EXPECT_THAT(FromGrpcStatus(writer->Finish()),
              HasCode(StatusCode::kDeadlineExceeded));
  Abandon(begun.ticket());
}

TEST_F(DeadlineTest, TooManyCallsAreRefusedUntilSomeEnd) {
  struct Open {
    std::unique_ptr<grpc::ClientContext> context = NewContext();
    v1::SuspendReceipt receipt;
    std::unique_ptr<grpc::ClientWriter<v1::SuspendRequest>> writer;
  };
  std::vector<Open> open(4);
  for (Open& o : open) {
    o.writer = sessions().Suspend(o.context.get(), &o.receipt);
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server().backend().running_calls() != 4) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  EXPECT_THAT(Describe("s"), HasStatus(StatusCode::kResourceExhausted, "4"));
  for (Open& o : open) {
    o.context->TryCancel();
    o.writer->Finish();
  }
  ExpectIdle();
  EXPECT_OK(Describe("s"));
}

TEST_F(DeadlineTest, TooManyTicketsAndLeasesAreRefused) {
  ASSERT_OK_AND_ASSIGN(const auto first, BeginAs("1"));
  ASSERT_OK_AND_ASSIGN(const auto second, BeginAs("2"));
  EXPECT_THAT(BeginAs("3"),
              HasStatus(StatusCode::kResourceExhausted, "2 tickets"));
  Abandon(first.ticket());
  ASSERT_OK_AND_ASSIGN(const auto third, BeginAs("3"));
  Abandon(second.ticket());
  Abandon(third.ticket());

  std::vector<std::string> leases;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(EngineResume("s")));
    leases.push_back(begun.lease());
  }
  EXPECT_EQ(Stats().open_leases(), 3);
  EXPECT_THAT(BeginResume(EngineResume("s")),
              HasStatus(StatusCode::kResourceExhausted, "3 leases"));
  for (const std::string& lease : leases) EXPECT_OK(Release(lease));
}

TEST_F(DeadlineTest, DescribeCountsTicketsAndLeases) {
  ASSERT_OK_AND_ASSIGN(const auto ticket, BeginAs("1"));
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(EngineResume("s")));
  ASSERT_OK_AND_ASSIGN(const v1::SessionState state, Describe("s"));
  EXPECT_EQ(state.open_tickets(), 1);
  EXPECT_EQ(state.open_leases(), 1);
  EXPECT_GT(Stats().reserved_bytes(), 0);
  Abandon(ticket.ticket());
  EXPECT_OK(Release(lease.lease()));
  ASSERT_OK_AND_ASSIGN(const v1::SessionState after, Describe("s"));
  EXPECT_EQ(after.open_tickets(), 0);
  EXPECT_EQ(after.open_leases(), 0);
}

TEST_F(DeadlineTest, ADrainingDaemonSaysSo) {
  server().backend().Drain();
  EXPECT_THAT(Describe("s"), HasStatus(StatusCode::kUnavailable, "drain"));
  EXPECT_THAT(Suspend(next_), HasStatus(StatusCode::kUnavailable, "drain"));
  Restart();
}

class IdleTest : public DeadlineTest {
 protected:
  IdleTest() { idle_seconds_ = 1; }
};

TEST_F(IdleTest, TicketsAndLeasesOfVanishedClientsAreReaped) {
  ASSERT_OK_AND_ASSIGN(const auto ticket, BeginAs("1"));
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(EngineResume("s")));
  ExpectIdle();
  v1::CommitRequest commit;
  commit.set_ticket(ticket.ticket());
  EXPECT_THAT(Commit(commit), HasStatus(StatusCode::kNotFound, "idle"));
  EXPECT_THAT(Release(lease.lease()), HasStatus(StatusCode::kNotFound, "idle"));
}

TEST_F(IdleTest, ATicketWithAnOpenStreamIsNotIdle) {
  ASSERT_OK_AND_ASSIGN(const auto kept, BeginAs("kept"));
  std::vector<v1::PutRowsRequest> rows = RowMessages(next_);
  rows[0].set_ticket(kept.ticket());
  const auto context = NewContext();
  v1::PutRowsResponse response;
  const auto writer = sessions().PutRows(context.get(), &response);
  ASSERT_TRUE(writer->Write(rows[0]));
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server().backend().running_calls() != 1) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  // Another one, begun later and left alone, is reaped before it.
  ASSERT_OK(BeginAs("left"));
  while (server().backend().tickets().size() != 1) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::yield();
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_TRUE(writer->Write(rows[i]));
  }
  writer->WritesDone();
  ASSERT_OK(FromGrpcStatus(writer->Finish()));
  Abandon(kept.ticket());
}

}  // namespace
}  // namespace torpor::service
