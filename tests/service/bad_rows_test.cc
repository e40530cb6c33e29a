// SPDX-License-Identifier: Apache-2.0
//
// Streams of rows that lie, come out of order or are no messages at all: the
// right code, a message that says what was wrong, the session as it was and
// nothing held.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <future>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/service/service_fixture.h"
#include "tests/testing/random.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using Messages_ = std::vector<v1::SuspendRequest>;

class BadRowsTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    // Buffers for a few blocks: what one call kept, the next would miss.
    options->store.buffer_bytes = uint64_t{1} << 20;
    options->store.put_timeout = std::chrono::milliseconds(2000);
  }
  void SetUp() override {
    ServiceTest::SetUp();
    ASSERT_OK(Suspend(stored_));
  }
  void TearDown() override {
    ExpectIdle();
    ExpectStored(stored_, 1);
    ASSERT_OK(Suspend(next_));
    ExpectStored(next_, 2);
  }

  // A message of rows of one slot.
  static v1::SuspendRequest Rows(uint32_t slot, uint64_t begin, uint32_t n) {
    v1::SuspendRequest message;
    message.set_data(ToyRows(1, slot, begin, begin + n));
    *message.add_pieces() = PieceOf(slot, begin, n, message.data());
    return message;
  }

  const ToySuspend stored_{.ids = ToyIds(1, 50), .client_state = "state"};
  const ToySuspend next_{.expected_version = 1,
                         .operation_id = "next",
                         .tokens_kept = 50,
                         .ids = ToyIds(1, 120),
                         .rows_from = 50};
};

TEST_F(BadRowsTest, RowsThatLie) {
  struct Case {
    const char* what;
    std::function<void(Messages_*)> change;
    StatusCode code;
    const char* text;
  };
  // Message 0 is the header, 1 to 4 are tokens, 5 on are rows.
  constexpr size_t kRows = 5;
  ASSERT_GT(Messages(next_).at(kRows).pieces_size(), 0);
  const auto piece = [](auto change) {
    return [change](Messages_* m) { change((*m)[kRows].mutable_pieces(1)); };
  };
  const std::vector<Case> cases = {
      {"fewer row bytes", piece([](auto* p) { p->set_row_bytes(39); }),
       StatusCode::kInvalidArgument, "39"},
      {"no row bytes", piece([](auto* p) { p->set_row_bytes(0); }),
       StatusCode::kInvalidArgument, "plain"},
      {"more rows than bytes", piece([](auto* p) { p->set_n_rows(15); }),
       StatusCode::kInvalidArgument, "plain"},
      {"rows without end", piece([](auto* p) {
         p->set_n_rows(std::numeric_limits<uint32_t>::max());
       }),
       StatusCode::kInvalidArgument, "plain"},
      {"fewer rows than bytes", piece([](auto* p) { p->set_n_rows(13); }),
       StatusCode::kDataLoss, "checksum"},
      {"no rows", piece([](auto* p) { p->set_n_rows(0); }),
       StatusCode::kInvalidArgument, ""},
      {"rows before those wanted", piece([](auto* p) { p->set_row_begin(49); }),
       StatusCode::kInvalidArgument, "49"},
      {"rows past the end", piece([](auto* p) { p->set_row_begin(119); }),
       StatusCode::kInvalidArgument, "119"},
      {"rows at the end of numbers", piece([](auto* p) {
         p->set_row_begin(std::numeric_limits<uint64_t>::max() - 1);
       }),
       StatusCode::kInvalidArgument, "18446744073709551614"},
      {"a slot that is not there", piece([](auto* p) { p->set_slot(3); }),
       StatusCode::kInvalidArgument, "slot 3"},
      {"a window slot without a snapshot",
       [](Messages_* m) { (*m)[kRows] = Rows(kWindow, 113, 7); },
       StatusCode::kInvalidArgument, "slot 2"},
      {"a shard of rows that have none",
       piece([](auto* p) { p->set_shard(1); }), StatusCode::kInvalidArgument,
       "shard"},
      {"damaged on the way",
       [](Messages_* m) { (*m)[kRows].mutable_data()->at(7) ^= 1; },
       StatusCode::kDataLoss, "checksum"},
      {"bytes without a piece",
       [](Messages_* m) { (*m)[kRows].mutable_data()->push_back('x'); },
       StatusCode::kInvalidArgument, "1 bytes"},
      {"data without any piece",
       [](Messages_* m) { (*m)[kRows].clear_pieces(); },
       StatusCode::kInvalidArgument, "no piece"},
      {"a piece without data", [](Messages_* m) { (*m)[kRows].clear_data(); },
       StatusCode::kInvalidArgument, "heads"},
      {"a block is missing",
       [](Messages_* m) { m->erase(m->begin() + kRows + 1); },
       StatusCode::kFailedPrecondition, "missing"},
      {"one slot of a block is missing",
       [](Messages_* m) { (*m)[kRows + 1] = Rows(kPlain, 64, 16); },
       StatusCode::kFailedPrecondition, "missing"},
      {"the last row is missing",
       [](Messages_* m) {
         m->at(m->size() - 2) = Rows(kHeads, 112, 8);
         m->insert(m->end() - 1, Rows(kPlain, 112, 7));
       },
       StatusCode::kFailedPrecondition, "missing"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Messages_ messages = Messages(next_);
    c.change(&messages);
    EXPECT_THAT(Suspend(messages), HasStatus(c.code, c.text));
    ExpectIdle();
    EXPECT_EQ(Describe("s")->version(), 1);
  }
}

TEST_F(BadRowsTest, PartsOutOfOrder) {
  struct Case {
    const char* what;
    std::function<void(Messages_*)> change;
  };
  const Messages_ good = Messages(next_);
  const std::vector<Case> cases = {
      {"nothing at all", [](Messages_* m) { m->clear(); }},
      {"no header", [](Messages_* m) { m->erase(m->begin()); }},
      {"rows first", [](Messages_* m) { std::swap(m->front(), m->at(5)); }},
      {"commit alone",
       [](Messages_* m) { m->erase(m->begin(), m->end() - 1); }},
      {"an empty message first",
       [](Messages_* m) { m->insert(m->begin(), v1::SuspendRequest()); }},
      {"two headers",
       [&](Messages_* m) { m->insert(m->begin() + 1, good.front()); }},
      {"a header after tokens",
       [&](Messages_* m) { m->insert(m->begin() + 3, good.front()); }},
      {"a header after rows",
       [&](Messages_* m) { m->insert(m->begin() + 7, good.front()); }},
      {"tokens after rows",
       [&](Messages_* m) { m->insert(m->begin() + 6, good[1]); }},
      {"no commit", [](Messages_* m) { m->pop_back(); }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    Messages_ messages = good;
    c.change(&messages);
    EXPECT_THAT(Suspend(messages), HasCode(StatusCode::kInvalidArgument));
    ExpectIdle();
    EXPECT_EQ(Describe("s")->version(), 1);
  }
  // Begin has the same order.
  v1::BeginSuspendRequest header;
  *header.mutable_header() = next_.Header();
  v1::BeginSuspendRequest tokens;
  tokens.mutable_tokens()->add_ids(1);
  for (const auto& messages : std::vector<std::vector<v1::BeginSuspendRequest>>{
           {}, {tokens}, {header, header}, {header, tokens, header}}) {
    v1::BeginSuspendResponse response;
    const auto context = NewContext();
    const auto writer = sessions().BeginSuspend(context.get(), &response);
    for (const auto& message : messages) writer->Write(message);
    writer->WritesDone();
    EXPECT_THAT(FromGrpcStatus(writer->Finish()),
                HasStatus(StatusCode::kInvalidArgument, "header"))
        << messages.size();
  }
}

TEST_F(BadRowsTest, ResumeAndLookupStreamsOutOfOrder) {
  v1::BeginResumeRequest header;
  *header.mutable_header() = EngineResume("s");
  v1::BeginResumeRequest tokens;
  tokens.mutable_tokens()->add_ids(1);
  for (const auto& messages : std::vector<std::vector<v1::BeginResumeRequest>>{
           {}, {tokens}, {header, header}, {header, tokens, header}}) {
    v1::BeginResumeResponse response;
    const auto begin_context = NewContext();
    const auto writer = sessions().BeginResume(begin_context.get(), &response);
    for (const auto& message : messages) writer->Write(message);
    writer->WritesDone();
    EXPECT_THAT(FromGrpcStatus(writer->Finish()),
                HasStatus(StatusCode::kInvalidArgument, "header"))
        << messages.size();
    const auto context = NewContext();
    const auto stream = sessions().Resume(context.get());
    for (const auto& message : messages) stream->Write(message);
    stream->WritesDone();
    v1::ResumeChunk chunk;
    while (stream->Read(&chunk)) {
    }
    EXPECT_THAT(FromGrpcStatus(stream->Finish()),
                HasStatus(StatusCode::kInvalidArgument, "header"));
  }
  v1::LookupPrefixRequest lookup;
  lookup.mutable_header()->set_model("toy");
  v1::LookupPrefixRequest ids;
  ids.mutable_tokens()->add_ids(1);
  for (const auto& messages : std::vector<std::vector<v1::LookupPrefixRequest>>{
           {}, {ids}, {lookup, lookup}}) {
    v1::LookupPrefixResponse response;
    const auto context = NewContext();
    const auto writer = sessions().LookupPrefix(context.get(), &response);
    for (const auto& message : messages) writer->Write(message);
    writer->WritesDone();
    EXPECT_THAT(FromGrpcStatus(writer->Finish()),
                HasStatus(StatusCode::kInvalidArgument, "header"))
        << messages.size();
  }
}

TEST_F(BadRowsTest, PutRowsWithoutOrWithAnotherTicket) {
  const std::vector<uint32_t> ids = {next_.ids.begin() + 50, next_.ids.end()};
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(next_.Header(), ids));
  EXPECT_THAT(PutRows({}), HasStatus(StatusCode::kInvalidArgument, "ticket"));
  std::vector<v1::PutRowsRequest> rows = RowMessages(next_);
  EXPECT_THAT(PutRows(rows), HasStatus(StatusCode::kInvalidArgument, "ticket"));
  rows[0].set_ticket(begun.ticket());
  rows[1].set_ticket("another");
  EXPECT_THAT(PutRows(rows), HasStatus(StatusCode::kInvalidArgument, "ticket"));
  // Too early: the ticket lives on, and the rows may still come.
  v1::CommitRequest commit = next_.Commit();
  commit.set_ticket(begun.ticket());
  EXPECT_EQ(Stats().open_tickets(), 1);
  v1::AbandonSuspendRequest abandon;
  abandon.set_ticket(begun.ticket());
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(
        Ask(sessions(), &v1::SessionService::Stub::AbandonSuspend, abandon));
  }
  EXPECT_THAT(Commit(commit), HasCode(StatusCode::kNotFound));
}

TEST_F(BadRowsTest, MessagesThatAreTooLarge) {
  // 1 MiB of rows is fine, more is not.
  constexpr uint32_t kMost = (1 << 20) / 40;
  ToySuspend big{.session = "big", .ids = ToyIds(1, 60'000)};
  for (const uint32_t n : {kMost + 1, uint32_t{60'000}}) {
    SCOPED_TRACE(n);
    Messages_ messages = Messages(big);
    messages.resize(3001);
    messages.push_back(Rows(kPlain, 0, n));
    EXPECT_THAT(Suspend(messages), HasStatus(StatusCode::kInvalidArgument,
                                             std::to_string(uint64_t{n} * 40)));
  }
  // More than gRPC takes at all.
  Messages_ messages = Messages(big);
  messages.resize(3001);
  v1::SuspendRequest& huge = messages.emplace_back();
  huge.set_data(std::string(5 << 20, 'x'));
  EXPECT_THAT(Suspend(messages), HasCode(StatusCode::kResourceExhausted));
}

// ---- bytes that are no messages -------------------------------------------

class RawBytesTest : public BadRowsTest {
 protected:
  // Sends raw messages to a method; the status it ends with.
  absl::Status Send(const std::string& method,
                    const std::vector<std::string>& messages) {
    grpc::GenericStub stub(channel());
    const auto context = NewContext();
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(
        context.get(), "/torpor.v1.SessionService/" + method, &queue);
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    stream->StartCall(nullptr);
    bool going = wait();
    for (const std::string& message : messages) {
      if (!going) break;
      const grpc::Slice slice(message);
      stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
      going = wait();
    }
    stream->WritesDone(nullptr);
    wait();
    grpc::ByteBuffer answer;
    do {
      stream->Read(&answer, nullptr);
    } while (wait());
    grpc::Status status;
    stream->Finish(&status, nullptr);
    wait();
    queue.Shutdown();
    while (wait()) {
    }
    return FromGrpcStatus(status);
  }

  static std::string First() {
    return Messages({.session = "raw", .ids = ToyIds(1, 20)})[0]
        .SerializeAsString();
  }
};

TEST_F(RawBytesTest, CutAndMangledMessages) {
  const ToySuspend s{.session = "raw", .ids = ToyIds(1, 20)};
  std::vector<std::string> good;
  for (const v1::SuspendRequest& m : Messages(s)) {
    good.push_back(m.SerializeAsString());
  }
  const std::string& rows = good[2];
  // Every cut of the rows' message, at the head byte by byte.
  for (size_t n = 1; n < rows.size(); n += n < 64 ? 1 : 97) {
    SCOPED_TRACE(n);
    const absl::Status status =
        Send("Suspend", {good[0], good[1], rows.substr(0, n)});
    EXPECT_THAT(status, HasCode(StatusCode::kInvalidArgument));
  }
  // A piece with a nested length that passes its end.
  const std::string kNestedTooLong("\x0a\x02\x52\x7f");
  const std::vector<std::string> bytes = {
      std::string(1, '\0'),
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
      // Fields 1 and 2 that are longer than the message, or than an int.
      std::string("\x0a\x7f"), std::string("\x0a\xff\xff\xff\xff\x0f"),
      std::string("\x0a\xff\xff\xff\xff\x07\x08\x01"),
      std::string("\x12\xff\xff\xff\xff\x0f"),
      std::string("\x12\xff\xff\xff\xff\x07"),
      // A group that is never closed, many deep.
      std::string(5000, '\x1b'), kNestedTooLong};
  for (const std::string& b : bytes) {
    SCOPED_TRACE(b.size());
    EXPECT_THAT(Send("Suspend", {b}), HasCode(StatusCode::kInvalidArgument));
    EXPECT_THAT(Send("Suspend", {good[0], good[1], b}),
                HasCode(StatusCode::kInvalidArgument));
    EXPECT_THAT(Send("PutRows", {b}), HasCode(StatusCode::kInvalidArgument));
    EXPECT_THAT(Send("Resume", {b}), HasCode(StatusCode::kInvalidArgument));
    // Field 1 is their lease, a text.
    if (b == kNestedTooLong) continue;
    EXPECT_THAT(Send("ReadRows", {b}), HasCode(StatusCode::kInvalidArgument));
    EXPECT_THAT(Send("Window", {b}), HasCode(StatusCode::kInvalidArgument));
  }
}

TEST_F(RawBytesTest, RandomBytesNeverCommit) {
  testing::Random random;
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random.Between(1, 200), '\0');
    random.Fill({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()});
    EXPECT_FALSE(Send("Suspend", {First(), bytes}).ok());
    EXPECT_FALSE(Send("PutRows", {bytes}).ok());
    EXPECT_FALSE(Send("Resume", {bytes}).ok());
  }
  EXPECT_THAT(Describe("raw"), HasCode(StatusCode::kNotFound));
}

}  // namespace
}  // namespace torpor::service
