// SPDX-License-Identifier: Apache-2.0
//
// Export and Import as a client meets them: what travels, what is refused and
// why, and what a stream that breaks leaves behind.

#include <algorithm>
#include <optional>
#include <thread>

#include "service/container_client.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;

class TransferTest : public ServiceTest {
 protected:
  using Stream =
      grpc::ClientReaderWriter<v1::ImportRequest, v1::ImportResponse>;

  void SetUp() override {
    ServiceTest::SetUp();
    stored_.client_state = "sampler";
    ASSERT_OK(Suspend(stored_));
    ASSERT_OK_AND_ASSIGN(bytes_, Export(ExportOf("s")));
  }

  static v1::ExportRequest ExportOf(const std::string& session) {
    v1::ExportRequest request;
    request.set_session(session);
    return request;
  }
  static v1::ImportHeader HeaderOf(const std::string& operation,
                                   const std::string& session = "") {
    v1::ImportHeader header;
    header.set_operation_id(operation);
    header.set_session(session);
    return header;
  }

  absl::StatusOr<std::string> Export(const v1::ExportRequest& request) {
    const auto context = NewContext();
    const auto reader = sessions().Export(context.get(), request);
    std::string bytes;
    v1::TransferChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_LE(chunk.data().size(), 1 << 20);
      bytes += chunk.data();
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    return bytes;
  }

  // A call of Import whose first answer has come.
  struct Begun {
    std::unique_ptr<grpc::ClientContext> context = NewContext();
    std::unique_ptr<Stream> stream;
    v1::ImportResponse first;
    bool answered = false;
  };
  static Begun Begin(v1::SessionService::Stub& stub,
                     const v1::ImportHeader& header) {
    Begun begun;
    begun.stream = stub.Import(begun.context.get());
    v1::ImportRequest message;
    *message.mutable_header() = header;
    begun.stream->Write(message);
    begun.answered = begun.stream->Read(&begun.first);
    return begun;
  }
  static void Send(Stream* stream, std::string_view bytes, size_t step = 700) {
    v1::ImportRequest message;
    for (; !bytes.empty(); bytes.remove_prefix(message.chunk().data().size())) {
      const std::string_view part = bytes.substr(0, step);
      message.mutable_chunk()->set_data(part.data(), part.size());
      if (!stream->Write(message)) return;
    }
  }
  static absl::StatusOr<v1::ImportResponse> End(Begun* begun) {
    begun->stream->WritesDone();
    v1::ImportResponse last;
    const bool answered = begun->stream->Read(&last);
    const grpc::Status status = begun->stream->Finish();
    if (!status.ok()) return FromGrpcStatus(status);
    EXPECT_TRUE(answered);
    return last;
  }
  absl::StatusOr<v1::ImportResponse> Import(const v1::ImportHeader& header,
                                            std::string_view bytes,
                                            size_t step = 700) {
    Begun begun = Begin(sessions(), header);
    EXPECT_EQ(begun.first.from_block(), 0);
    Send(begun.stream.get(), bytes, step);
    return End(&begun);
  }

  // 5 blocks of 16 and a tail.
  ToySuspend stored_{.ids = ToyIds(1, 90)};
  std::string bytes_;
};

TEST_F(TransferTest, ASessionComesInUnderAnotherName) {
  ASSERT_OK_AND_ASSIGN(const v1::ImportResponse answer,
                       Import(HeaderOf("in", "copy"), bytes_));
  EXPECT_FALSE(answer.repeated());
  EXPECT_EQ(answer.state().session(), "copy");
  EXPECT_EQ(answer.state().version(), 1);
  EXPECT_EQ(answer.receipt().n_tokens(), 90);
  // Its blocks are those that are there.
  EXPECT_EQ(answer.receipt().blocks_shared(), 5);
  ToySuspend copy = stored_;
  copy.session = "copy";
  ExpectStored(copy, 1);
  ExpectIdle();
  ASSERT_OK_AND_ASSIGN(const v1::VerifyProgress verified, Verify());
  EXPECT_THAT(verified.problems(), ::testing::IsEmpty());
  // Once more: the receipt.
  ASSERT_OK_AND_ASSIGN(const v1::ImportResponse again,
                       Import(HeaderOf("in", "copy"), bytes_));
  EXPECT_TRUE(again.repeated());
  EXPECT_EQ(again.receipt().stored_bytes(), answer.receipt().stored_bytes());
  // Operations of the other name are none of this one.
  copy.operation_id = "op";
  EXPECT_THAT(Suspend(copy), HasCode(StatusCode::kAborted));
  // Under its own name there is one already.
  EXPECT_THAT(Import(HeaderOf("in"), bytes_),
              HasStatus(StatusCode::kAborted, "expected version 0"));
  ExpectIdle();
}

TEST_F(TransferTest, ASessionGoesAndComesBack) {
  v1::DeleteRequest erase;
  erase.set_session("s");
  erase.set_expected_version(1);
  erase.set_operation_id("rm");
  ASSERT_OK(Ask(sessions(), &v1::SessionService::Stub::Delete, erase));
  ASSERT_OK(Import(HeaderOf("back"), bytes_));
  ExpectStored(stored_, 1);
  // Its last suspend is known: a client that lost the answer repeats it.
  ASSERT_OK_AND_ASSIGN(const v1::SuspendReceipt receipt, Suspend(stored_));
  EXPECT_EQ(receipt.version(), 1);
}

TEST_F(TransferTest, RequestsThatCannotBe) {
  EXPECT_THAT(Export(ExportOf("nobody")),
              HasStatus(StatusCode::kNotFound, "nobody"));
  v1::ExportRequest request = ExportOf("s");
  request.set_version(2);
  EXPECT_THAT(Export(request), HasStatus(StatusCode::kAborted, "version"));
  request = ExportOf("s");
  request.set_from_block(7);
  EXPECT_THAT(Export(request), HasStatus(StatusCode::kInvalidArgument,
                                         "from block 7, it has 6"));
  request.set_from_block(1);
  request.set_chain("short");
  EXPECT_THAT(Export(request),
              HasStatus(StatusCode::kInvalidArgument, "chain: got 5 bytes"));

  EXPECT_THAT(Import(HeaderOf(""), bytes_),
              HasStatus(StatusCode::kInvalidArgument, "operation id"));
  EXPECT_THAT(Import(HeaderOf("in", std::string(300, 'x')), bytes_),
              HasStatus(StatusCode::kInvalidArgument, "session id"));
  EXPECT_THAT(Import(HeaderOf("in", "x"),
                     "no container, but long enough to be "
                     "the header of a piece of one"),
              HasStatus(StatusCode::kDataLoss, "container byte 0 (header)"));
  std::string flipped = bytes_;
  flipped[flipped.size() / 2] ^= 1;
  EXPECT_THAT(Import(HeaderOf("in", "x"), flipped),
              HasStatus(StatusCode::kDataLoss, "container byte"));
  EXPECT_THAT(Import(HeaderOf("in", "x"), bytes_ + "y", SIZE_MAX),
              HasStatus(StatusCode::kDataLoss, "1 bytes behind its end"));
  EXPECT_THAT(Describe("x"), HasCode(StatusCode::kNotFound));
  const auto context = NewContext();
  const auto stream = sessions().Import(context.get());
  v1::ImportRequest message;
  message.mutable_chunk()->set_data(bytes_);
  stream->Write(message);
  stream->WritesDone();
  EXPECT_THAT(FromGrpcStatus(stream->Finish()),
              HasStatus(StatusCode::kInvalidArgument, "header"));
  // A second header.
  Begun begun = Begin(sessions(), HeaderOf("in2", "y"));
  *message.mutable_header() = HeaderOf("in2", "y");
  begun.stream->Write(message);
  EXPECT_THAT(End(&begun), HasCode(StatusCode::kInvalidArgument));
  ExpectIdle();
}

TEST_F(TransferTest, ABrokenImportGoesOnAndASecondCallTakesOver) {
  {
    Begun begun = Begin(sessions(), HeaderOf("in", "copy"));
    Send(begun.stream.get(),
         std::string_view(bytes_).substr(0, bytes_.size() - 2500));
    EXPECT_THAT(End(&begun), HasStatus(StatusCode::kDataLoss, "are kept"));
  }
  // The bytes that are missing, from that block on.
  Begun second = Begin(sessions(), HeaderOf("in", "copy"));
  ASSERT_TRUE(second.answered);
  ASSERT_GT(second.first.from_block(), 0);
  ASSERT_EQ(second.first.chain().size(), 32);
  v1::ExportRequest rest = ExportOf("s");
  rest.set_version(1);
  rest.set_from_block(second.first.from_block());
  rest.set_chain(second.first.chain());
  ASSERT_OK_AND_ASSIGN(const std::string bytes, Export(rest));
  EXPECT_LT(bytes.size(), bytes_.size());
  EXPECT_TRUE(bytes_.ends_with(bytes));
  // A third call takes the transfer over; the second is told.
  Begun third = Begin(sessions(), HeaderOf("in", "copy"));
  ASSERT_TRUE(third.answered);
  EXPECT_EQ(third.first.from_block(), second.first.from_block());
  Send(second.stream.get(), bytes);
  EXPECT_THAT(End(&second), HasStatus(StatusCode::kAborted, "took"));
  Send(third.stream.get(), bytes);
  ASSERT_OK(End(&third));
  ToySuspend copy = stored_;
  copy.session = "copy";
  ExpectStored(copy, 1);
  ExpectIdle();
}

TEST_F(TransferTest, WhatIsKeptIsGivenUp) {
  for (const bool early : {false, true}) {
    Begun begun = Begin(sessions(), HeaderOf("in", "copy"));
    EXPECT_EQ(begun.first.from_block(), 0);
    // The last byte is missing, or the first row.
    const size_t n = early ? 400 : bytes_.size() - 1;
    Send(begun.stream.get(), std::string_view(bytes_).substr(0, n));
    EXPECT_THAT(End(&begun),
                HasStatus(StatusCode::kDataLoss,
                          early ? "truncated" : "6 whole blocks are kept"));
    EXPECT_THAT(Describe("copy"), HasCode(StatusCode::kNotFound));
    if (!early) {
      EXPECT_EQ(Stats().open_tickets(), 1);
      EXPECT_GT(Stats().reserved_bytes(), 0);
      v1::ImportHeader abandon = HeaderOf("in");
      abandon.set_abandon(true);
      Begun gone = Begin(sessions(), abandon);
      EXPECT_FALSE(gone.answered);
      EXPECT_TRUE(gone.stream->Finish().ok());
    }
    ExpectIdle();
  }
}

class ShortIdleTest : public TransferTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.idle_limit = std::chrono::seconds(1);
  }
};

TEST_F(ShortIdleTest, WhatNobodyAsksForIsGivenUp) {
  Begun begun = Begin(sessions(), HeaderOf("in", "copy"));
  Send(begun.stream.get(),
       std::string_view(bytes_).substr(0, bytes_.size() - 1));
  EXPECT_THAT(End(&begun), HasCode(StatusCode::kDataLoss));
  ExpectIdle();
}

TEST_F(TransferTest, AnExportThatNobodyReadsEnds) {
  const auto context = NewContext();
  const auto reader = sessions().Export(context.get(), ExportOf("s"));
  context->TryCancel();
  EXPECT_FALSE(reader->Finish().ok());
  ExpectIdle();
}

// Another daemon: other secrets, other models.
TEST_F(TransferTest, TheModelMustBeTheSame) {
  const testing::TempDir other_dir;
  ServerOptions options;
  options.store.data_dir = other_dir.File("data");
  options.store.map_bytes = uint64_t{1} << 30;
  options.store.max_bytes = uint64_t{1} << 29;
  options.listen = {"unix://" + other_dir.File("s")};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Server> other,
                       Server::Start(std::move(options)));
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Client> from,
      Client::Connect({.address = server().addresses().front()}));
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Client> to,
      Client::Connect({.address = other->addresses().front()}));
  const auto pull = [&] {
    return PullContainer(from.get(), to.get(), "s", "", nullptr);
  };
  EXPECT_THAT(pull(), HasStatus(StatusCode::kFailedPrecondition,
                                "no model is registered here"));
  const auto add = [&](const std::string& name, const std::string& weights) {
    return to->Unary(to->models(), &v1::ModelService::Stub::Register,
                     ToyModel(name, weights));
  };
  ASSERT_OK(add("aaa", "weights of another"));
  ASSERT_OK(add("toy", "retrained"));
  EXPECT_THAT(pull(),
              HasStatus(StatusCode::kFailedPrecondition,
                        "against 'toy': fingerprint field 'weights': got "));
  EXPECT_THAT(pull(),
              HasStatus(StatusCode::kFailedPrecondition, "wanted 'retrained'"));
  // Its name does not matter.
  v1::RegisterRequest same = ToyModel("zzz", "toy weights");
  same.set_block_size(2 * kToyBlock);
  ASSERT_OK(to->Unary(to->models(), &v1::ModelService::Stub::Register, same));
  ASSERT_OK_AND_ASSIGN(const Pulled pulled, pull());
  EXPECT_EQ(pulled.answer.state().model(), "zzz");
  EXPECT_EQ(pulled.answer.state().n_blocks(), 3);
  ASSERT_OK_AND_ASSIGN(const Pulled again, pull());
  EXPECT_TRUE(again.answer.repeated());
  EXPECT_THAT(PullContainer(from.get(), to.get(), "nobody", "", nullptr),
              HasStatus(StatusCode::kNotFound, "nobody"));
}

}  // namespace
}  // namespace torpor::service
