// SPDX-License-Identifier: Apache-2.0
//
// What the C++ client says when its segment cannot be taken: a server that
// ends its calls first, beside a real descriptor socket.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <array>

#include "service/client.h"
#include "service/fd_socket.h"
#include "service/segment_broker.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::torpor::testing::HasStatus;
using ::torpor::testing::IsOk;

constexpr uint32_t kRowBytes = 1 << 20;
// Rows enough that a client offers shared memory by itself.
constexpr uint64_t kRows = 17;

// Offers segments whose nonce nobody knows any more.
class EndedCalls : public v1::SessionService::Service {
 public:
  grpc::Status Resume(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ResumeChunk, v1::BeginResumeRequest>* stream)
      override {
    ++resumes_;
    v1::BeginResumeRequest request;
    v1::ResumeChunk begun;
    if (begins_) begun.mutable_begin();
    while (stream->Read(&request)) {
      if (!unasked_ && request.header().planes().planes().empty()) continue;
      *begun.mutable_begin()->mutable_plane() = Gone();
    }
    stream->Write(begun);
    return resume_;
  }
  grpc::Status BeginSuspend(grpc::ServerContext*,
                            grpc::ServerReader<v1::BeginSuspendRequest>* reader,
                            v1::BeginSuspendResponse* response) override {
    v1::BeginSuspendRequest request;
    while (reader->Read(&request)) {
    }
    response->set_ticket("t");
    *response->mutable_plane() = Gone();
    return grpc::Status::OK;
  }
  grpc::Status AbandonSuspend(grpc::ServerContext*,
                              const v1::AbandonSuspendRequest* request,
                              v1::AbandonSuspendResponse*) override {
    abandoned_ += request->ticket();
    return grpc::Status::OK;
  }
  grpc::Status Suspend(grpc::ServerContext*,
                       grpc::ServerReader<v1::SuspendRequest>* reader,
                       v1::SuspendReceipt* receipt) override {
    v1::SuspendRequest request;
    while (reader->Read(&request)) {
    }
    receipt->set_version(7);
    return grpc::Status::OK;
  }

  grpc::Status resume_ = grpc::Status::OK;
  // Whether its first answer is the one that begins it.
  bool begins_ = true;
  // Whether it answers with a segment where none was offered; of which plane.
  bool unasked_ = false;
  v1::DataPlane plane_ = v1::DATA_PLANE_SHARED_MEMORY;
  // Whether it claims that the client holds the segment.
  bool kept_ = false;
  int resumes_ = 0;
  std::string abandoned_;

 private:
  v1::DataPlaneChoice Gone() const {
    v1::DataPlaneChoice choice;
    choice.set_plane(plane_);
    choice.set_nonce(std::string(16, 'x'));
    choice.set_segment_bytes(1 << 20);
    if (kept_) choice.clear_nonce();
    choice.set_kept(kept_);
    return choice;
  }
};

class ClientSegmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(Address(), grpc::InsecureServerCredentials());
    builder.RegisterService(&calls_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    ASSERT_OK(broker_.Listen(dir_.File("s")));
  }
  std::string Address() const { return "unix://" + dir_.File("s"); }
  std::unique_ptr<Client> Connect(RowPlane plane) {
    auto client = Client::Connect({.address = Address(), .plane = plane});
    EXPECT_OK(client.status());
    return *std::move(client);
  }
  static SuspendCall Rows() {
    SuspendCall call;
    call.header.set_session("s");
    call.slots = {{.row_bytes = kRowBytes, .row_end = kRows}};
    call.block_size = kRows;
    call.rows = [](uint32_t, uint64_t, uint64_t, std::span<uint8_t>) {
      return absl::OkStatus();
    };
    return call;
  }

  const testing::TempDir dir_;
  EndedCalls calls_;
  std::unique_ptr<grpc::Server> server_;
  SegmentBroker broker_{SegmentOptions()};
};

TEST_F(ClientSegmentTest, AResumeSaysWhyItEndedBeforeItsSegmentWasTaken) {
  calls_.resume_ = {grpc::StatusCode::DATA_LOSS, "rows of slot 1 are damaged"};
  for (const RowPlane plane : {RowPlane::kSharedMemory, RowPlane::kAuto}) {
    calls_.resumes_ = 0;
    const auto client = Connect(plane);
    for (int i = 1; i <= 2; ++i) {
      EXPECT_THAT(client->Resume({}).status(),
                  HasStatus(StatusCode::kDataLoss, "slot 1"));
      EXPECT_EQ(calls_.resumes_, i);
    }
  }
}

TEST_F(ClientSegmentTest, AResumeThatEndedWellWithoutItsSegmentIsAnError) {
  EXPECT_THAT(Connect(RowPlane::kSharedMemory)->Resume({}).status(),
              HasStatus(StatusCode::kNotFound, "the segment"));
}

TEST_F(ClientSegmentTest, AnAnswerBeforeTheOneThatBeginsIsRefused) {
  calls_.begins_ = false;
  EXPECT_THAT(Connect(RowPlane::kGrpc)->Resume({}).status(),
              HasStatus(StatusCode::kDataLoss, "begins"));
}

TEST_F(ClientSegmentTest, APlaneThatWasNotOfferedIsRefused) {
  calls_.unasked_ = true;
  EXPECT_THAT(Connect(RowPlane::kGrpc)->Resume({}).status(),
              HasStatus(StatusCode::kDataLoss, "SHARED_MEMORY"));
  EXPECT_EQ(calls_.resumes_, 1);
  calls_.plane_ = v1::DATA_PLANE_CUDA_IPC;
  for (const RowPlane plane : {RowPlane::kSharedMemory, RowPlane::kAuto}) {
    EXPECT_THAT(Connect(plane)->Resume({}).status(),
                HasStatus(StatusCode::kDataLoss, "CUDA_IPC"));
  }
  // kAuto tried once more, without an offer.
  EXPECT_EQ(calls_.resumes_, 4);
}

TEST_F(ClientSegmentTest, AKeptSegmentThatWasNotOfferedIsRefused) {
  calls_.kept_ = true;
  EXPECT_THAT(Connect(RowPlane::kSharedMemory)->Resume({}).status(),
              HasStatus(StatusCode::kDataLoss, "a kept segment"));
  EXPECT_THAT(Connect(RowPlane::kSharedMemory)->Suspend(Rows()).status(),
              HasStatus(StatusCode::kDataLoss, "a kept segment"));
  EXPECT_EQ(calls_.abandoned_, "t");
}

TEST_F(ClientSegmentTest, AResumeGoesAgainOverGrpcWhereNobodyAnswers) {
  broker_.Stop();
  EXPECT_OK(Connect(RowPlane::kAuto)->Resume({}).status());
  EXPECT_EQ(calls_.resumes_, 2);
  EXPECT_THAT(Connect(RowPlane::kSharedMemory)->Resume({}).status(),
              HasStatus(StatusCode::kUnavailable, ".fd"));
}

TEST_F(ClientSegmentTest, ASuspendAbandonsItsTicketWithTheSegment) {
  const auto strict = Connect(RowPlane::kSharedMemory);
  EXPECT_THAT(strict->Suspend(Rows()).status(),
              HasStatus(StatusCode::kNotFound, "the segment"));
  EXPECT_EQ(calls_.abandoned_, "t");
  // Twice: what is gone once does not end the offers.
  const auto free = Connect(RowPlane::kAuto);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto receipt, free->Suspend(Rows()));
    EXPECT_EQ(receipt.version(), 7);
  }
  EXPECT_EQ(calls_.abandoned_, "ttt");
}

}  // namespace
}  // namespace torpor::service
