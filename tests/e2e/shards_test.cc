// SPDX-License-Identifier: Apache-2.0
//
// Two client processes write the shards of one session, each its own; a third
// wakes it. A rank that dies is another process's to replace.

#include <grpcpp/create_channel.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "service/status.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/service/toy_session.h"
#include "tests/testing/child_process.h"
#include "tests/testing/status_matchers.h"
#include "torpor/v1/admin_service.grpc.pb.h"
#include "torpor/v1/model_service.grpc.pb.h"
#include "torpor/v1/session_service.grpc.pb.h"

namespace torpor::e2e {
namespace {

using service::FromGrpcStatus;
using service::ToyIds;
using torpor::testing::ChildProcess;
using torpor::testing::HasCode;
using torpor::testing::HasStatus;

constexpr uint64_t kTokens = 300;
constexpr uint32_t kRanks = 2;

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + kPatience);
  return context;
}

// What one rank has of blocks [begin, end): its half of the heads; rank 0 also
// the replicated rows.
std::vector<v1::PutRowsRequest> RowsOf(uint32_t rank, uint64_t begin) {
  std::vector<v1::PutRowsRequest> out;
  for (uint64_t at = begin; at < kTokens; at += service::kToyBlock) {
    const uint64_t end = std::min<uint64_t>(at + service::kToyBlock, kTokens);
    v1::PutRowsRequest message;
    const auto add = [&](uint32_t slot, uint32_t shard, uint32_t n_shards) {
      const std::string bytes =
          service::ToyShard(1, slot, at, end, shard, n_shards);
      v1::RowPiece piece =
          service::PieceOf(slot, at, static_cast<uint32_t>(end - at), bytes);
      piece.set_shard(shard);
      piece.set_row_bytes(service::kToyRowBytes[slot] / n_shards);
      *message.add_pieces() = piece;
      message.mutable_data()->append(bytes);
    };
    add(service::kHeads, rank, kRanks);
    if (rank == 0) add(service::kPlain, 0, 1);
    out.push_back(std::move(message));
  }
  return out;
}

absl::Status PutRows(const std::string& address, const std::string& ticket,
                     std::vector<v1::PutRowsRequest> rows) {
  const auto stub = v1::SessionService::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto context = Context();
  v1::PutRowsResponse response;
  const auto writer = stub->PutRows(context.get(), &response);
  rows.front().set_ticket(ticket);
  for (const v1::PutRowsRequest& message : rows) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  return FromGrpcStatus(writer->Finish());
}

// --child ADDRESS TICKET RANK: the whole rank's rows.
// --child ADDRESS TICKET RANK die: half of them, then waits to be killed.
int RunChild(int argc, char** argv) {
  if (argc < 5) return 2;
  const auto rank = static_cast<uint32_t>(std::atoi(argv[4]));
  std::vector<v1::PutRowsRequest> rows = RowsOf(rank, 0);
  if (argc > 5) {
    const auto stub = v1::SessionService::NewStub(
        grpc::CreateChannel(argv[2], grpc::InsecureChannelCredentials()));
    const auto context = Context();
    v1::PutRowsResponse response;
    const auto writer = stub->PutRows(context.get(), &response);
    rows.resize(rows.size() / 2);
    rows.front().set_ticket(argv[3]);
    for (const auto& message : rows) writer->Write(message);
    torpor::testing::Report("half");
    writer->Finish();
    return 0;
  }
  const absl::Status status = PutRows(argv[2], argv[3], std::move(rows));
  torpor::testing::Report(status.ok() ? "ok" : std::string(status.message()));
  return 0;
}

class ShardsTest : public DaemonTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(Start());
    channel_ =
        grpc::CreateChannel(Address(), grpc::InsecureChannelCredentials());
    sessions_ = v1::SessionService::NewStub(channel_);
    v1::ModelState state;
    ASSERT_OK(FromGrpcStatus(v1::ModelService::NewStub(channel_)->Register(
        Context().get(), service::ToyModel("toy", "toy weights"), &state)));
  }
  std::string Begin() {
    service::ToySuspend s{.ids = ToyIds(1, kTokens)};
    v1::BeginSuspendRequest message;
    *message.mutable_header() = s.Header();
    message.mutable_header()->set_n_ranks(kRanks);
    v1::BeginSuspendResponse response;
    const auto context = Context();
    const auto writer = sessions_->BeginSuspend(context.get(), &response);
    writer->Write(message);
    message.mutable_tokens()->mutable_ids()->Add(s.ids.begin(), s.ids.end());
    writer->Write(message);
    writer->WritesDone();
    EXPECT_OK(FromGrpcStatus(writer->Finish()));
    return response.ticket();
  }
  absl::Status Commit(const std::string& ticket) {
    v1::CommitRequest request;
    request.set_ticket(ticket);
    v1::SuspendReceipt receipt;
    return FromGrpcStatus(
        sessions_->Commit(Context().get(), request, &receipt));
  }
  // The whole rows, and each half of them.
  void ExpectWhole() {
    v1::BeginResumeRequest message;
    message.mutable_header()->set_session("s");
    message.mutable_header()->set_mode(v1::REPLAY_MODE_EXACT);
    message.mutable_header()->set_engine_replays(true);
    v1::BeginResumeResponse begun;
    const auto context = Context();
    const auto writer = sessions_->BeginResume(context.get(), &begun);
    writer->Write(message);
    writer->WritesDone();
    ASSERT_OK(FromGrpcStatus(writer->Finish()));
    for (const uint32_t n : {1U, kRanks}) {
      for (uint32_t shard = 0; shard < n; ++shard) {
        v1::ReadRowsRequest request;
        request.set_lease(begun.lease());
        request.set_shard(shard);
        request.set_n_shards(n);
        const auto read_context = Context();
        const auto reader = sessions_->ReadRows(read_context.get(), request);
        service::Woken woken;
        v1::RowChunk chunk;
        while (reader->Read(&chunk)) {
          EXPECT_OK(woken.AddRows(chunk.pieces(), chunk.data(), false));
        }
        ASSERT_OK(FromGrpcStatus(reader->Finish()));
        EXPECT_TRUE(
            woken.compact[service::kHeads].bytes ==
            service::ToyShard(1, service::kHeads, 0, kTokens, shard, n));
        EXPECT_TRUE(woken.compact[service::kPlain].bytes ==
                    service::ToyRows(1, service::kPlain, 0, kTokens));
      }
    }
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::SessionService::Stub> sessions_;
};

TEST_F(ShardsTest, TwoProcessesWriteOneSession) {
  const std::string ticket = Begin();
  {
    ChildProcess rank0({"--child", Address(), ticket, "0"});
    ChildProcess rank1({"--child", Address(), ticket, "1"});
    EXPECT_EQ(rank0.ReadLine(kPatience), "ok");
    EXPECT_EQ(rank1.ReadLine(kPatience), "ok");
  }
  ASSERT_OK(Commit(ticket));
  ExpectWhole();
}

TEST_F(ShardsTest, ARankThatDiesIsReplaced) {
  const std::string ticket = Begin();
  {
    ChildProcess dies({"--child", Address(), ticket, "1", "die"});
    ASSERT_EQ(dies.ReadLine(kPatience), "half");
    dies.Kill();
    dies.Wait();
  }
  ASSERT_OK(PutRows(Address(), ticket, RowsOf(0, 0)));
  EXPECT_THAT(Commit(ticket),
              HasStatus(absl::StatusCode::kFailedPrecondition, "shard 1 of 2"));
  {
    ChildProcess rank1({"--child", Address(), ticket, "1"});
    EXPECT_EQ(rank1.ReadLine(kPatience), "ok");
  }
  ASSERT_OK(Commit(ticket));
  ExpectWhole();
}

}  // namespace

int RunTests(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--child") {
    return RunChild(argc, argv);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace torpor::e2e

int main(int argc, char** argv) { return torpor::e2e::RunTests(argc, argv); }
