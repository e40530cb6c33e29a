// SPDX-License-Identifier: Apache-2.0
//
// Which plane is chosen, and that rows come through shared memory as they come
// in messages.

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <thread>

#include "service/client.h"
#include "tests/service/plane_client.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kShm = v1::DATA_PLANE_SHARED_MEMORY;
constexpr auto kGrpc = v1::DATA_PLANE_GRPC;
constexpr auto kIpc = v1::DATA_PLANE_CUDA_IPC;
// Of 64 bytes each: three times a segment, no whole number of blocks.
constexpr size_t kLong = 50'003;

class DataPlaneTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.segments.segment_bytes = 1 << 20;
    options->backend.segments.max_bytes = 3 << 20;
    options->backend.segments.take_limit = milliseconds(10'000);
    options->listen.push_back("127.0.0.1:0");
    if (configure_) configure_(options);
  }
  void RestartWith(std::function<void(ServerOptions*)> configure) {
    configure_ = std::move(configure);
    ASSERT_NO_FATAL_FAILURE(Restart());
  }
  std::string SocketPath() const { return dir().File("s"); }
  static ToySuspend Long(const std::string& session = "s") {
    return {.session = session, .ids = ToyIds(1, kLong)};
  }
  static v1::BeginSuspendHeader HeaderOf(
      const ToySuspend& s, const std::vector<v1::DataPlane>& planes) {
    v1::BeginSuspendHeader header = s.Header();
    *header.mutable_planes() = Offer(planes);
    return header;
  }
  // The plane of a resume offered these.
  v1::DataPlaneChoice Choose(const std::vector<v1::DataPlane>& planes,
                             bool suspend) {
    if (suspend) {
      const ToySuspend s{.session = "new" + std::to_string(n_++),
                         .operation_id = "op" + std::to_string(n_),
                         .ids = ToyIds(1, 50)};
      const auto begun = BeginSuspend(HeaderOf(s, planes), s.ids);
      EXPECT_OK(begun.status());
      EXPECT_OK(Abandon(begun->ticket()));
      return begun->plane();
    }
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = Offer(planes);
    const auto begun = BeginResume(header);
    EXPECT_OK(begun.status());
    EXPECT_OK(Release(begun->lease()));
    return begun->plane();
  }
  absl::Status Abandon(const std::string& ticket) {
    v1::AbandonSuspendRequest request;
    request.set_ticket(ticket);
    return Ask(sessions(), &v1::SessionService::Stub::AbandonSuspend, request)
        .status();
  }
  absl::StatusOr<v1::DataPlaneChoice> OpenPlane(const std::string& ticket,
                                                const std::string& lease) {
    v1::OpenPlaneRequest request;
    if (!ticket.empty()) request.set_ticket(ticket);
    if (!lease.empty()) request.set_lease(lease);
    *request.mutable_planes() = Offer({kShm});
    return Ask(sessions(), &v1::SessionService::Stub::OpenPlane, request);
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice, Flow flow) {
    return SegmentLink::Take(SocketPath(), choice, flow);
  }
  SegmentBroker::Stats Segments() {
    return server().backend().segments().stats();
  }
  void ExpectNoSegments() {
    ExpectIdle();
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (Segments().segments != 0 &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(Segments().segments, 0);
    EXPECT_EQ(Segments().bytes, 0);
  }

  std::function<void(ServerOptions*)> configure_;
  int n_ = 0;
};

TEST_F(DataPlaneTest, TakesTheFirstOfferItServesAndSaysWhyNotOthers) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  for (const bool suspend : {false, true}) {
    SCOPED_TRACE(suspend ? "suspend" : "resume");
    v1::DataPlaneChoice choice = Choose({}, suspend);
    EXPECT_EQ(choice.plane(), kGrpc);
    EXPECT_THAT(choice.reason(), IsEmpty());
    EXPECT_THAT(choice.nonce(), IsEmpty());

    choice = Choose({kShm, kGrpc}, suspend);
    EXPECT_EQ(choice.plane(), kShm);
    EXPECT_THAT(choice.reason(), IsEmpty());
    EXPECT_EQ(choice.nonce().size(), 16);
    EXPECT_EQ(choice.segment_bytes(), 1 << 20);
    EXPECT_NE(choice.nonce(), Choose({kShm}, suspend).nonce());

    choice = Choose({kGrpc, kShm}, suspend);
    EXPECT_EQ(choice.plane(), kGrpc);
    EXPECT_THAT(choice.reason(), IsEmpty());

    choice = Choose({kIpc, kShm}, suspend);
    EXPECT_EQ(choice.plane(), kShm);
    EXPECT_THAT(choice.reason(), HasSubstr("CUDA IPC"));

    choice = Choose({static_cast<v1::DataPlane>(77)}, suspend);
    EXPECT_EQ(choice.plane(), kGrpc);
    EXPECT_THAT(choice.reason(), HasSubstr("77"));
    ExpectNoSegments();
  }
}

TEST_F(DataPlaneTest, TooManySegmentsMeansGrpcWithTheReason) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader header = EngineResume("s");
  *header.mutable_planes() = Offer({kShm});
  std::vector<std::string> leases;
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
    leases.push_back(begun.lease());
    EXPECT_EQ(begun.plane().plane(), i < 3 ? kShm : kGrpc);
    if (i == 3) {
      EXPECT_THAT(begun.plane().reason(), HasSubstr("too many segments"));
      EXPECT_OK(ReadRows([&] {
        v1::ReadRowsRequest request;
        request.set_lease(begun.lease());
        return request;
      }()));
    }
  }
  for (const std::string& lease : leases) ASSERT_OK(Release(lease));
  ExpectNoSegments();
}

TEST_F(DataPlaneTest, TcpAndADisabledPlaneAreReasons) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader tcp = EngineResume("s");
  *tcp.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto begun,
                       BeginResumeAt(server().addresses().back(), tcp));
  EXPECT_EQ(begun.plane().plane(), kGrpc);
  EXPECT_THAT(begun.plane().reason(), HasSubstr("no unix socket"));

  RestartWith([](ServerOptions* o) { o->backend.segments.enabled = false; });
  EXPECT_THAT(Choose({kShm}, false).reason(), HasSubstr("plane.shared_memory"));
  EXPECT_FALSE(std::filesystem::exists(SocketPath() + ".fd"));
}

TEST_F(DataPlaneTest, SuspendAndResumeThroughSegmentsCarryTheSameBytes) {
  const ToySuspend s = Long();
  ASSERT_OK_AND_ASSIGN(const auto begun,
                       BeginSuspend(HeaderOf(s, {kShm}), s.ids));
  ASSERT_OK_AND_ASSIGN(const auto up, Take(begun.plane(), Flow::kToServer));
  ASSERT_OK_AND_ASSIGN(const uint64_t sent,
                       PutShared(&sessions(), begun.ticket(), begun.plane(),
                                 up.get(), RowMessages(s)));
  EXPECT_EQ(sent, kLong * 64);
  v1::CommitRequest commit = s.Commit();
  commit.set_ticket(begun.ticket());
  ASSERT_OK_AND_ASSIGN(const auto receipt, Commit(commit));
  EXPECT_EQ(receipt.shared_memory_bytes(), kLong * 64);
  EXPECT_EQ(receipt.row_bytes_received(), kLong * 64);
  // In messages: what the store has is what was sent.
  ExpectStored(s, 1);

  v1::BeginResumeHeader header = EngineResume("s");
  *header.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(header));
  ASSERT_OK_AND_ASSIGN(const auto down, Take(lease.plane(), Flow::kToClient));
  v1::ReadRowsRequest request;
  request.set_lease(lease.lease());
  // Twice through one segment: each stream begins anew.
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const Woken shared,
        ReadShared(&sessions(), request, lease.plane(), down.get()));
    ASSERT_OK_AND_ASSIGN(const Woken plain, ReadRows(request));
    for (const uint32_t slot : {kHeads, kPlain}) {
      EXPECT_TRUE(shared.compact.at(slot).bytes ==
                  plain.compact.at(slot).bytes);
      EXPECT_TRUE(shared.compact.at(slot).bytes == ToyRows(1, slot, 0, kLong));
    }
    // Small blocks do not pay a message each.
    EXPECT_LT(shared.n_messages, 40);
  }
  ASSERT_OK_AND_ASSIGN(const auto ended, Release(lease.lease()));
  EXPECT_EQ(ended.bytes_sent(), 4 * kLong * 64);
  EXPECT_EQ(ended.shared_memory_bytes(), 2 * kLong * 64);
  ExpectAddsUp(ended);
  ExpectNoSegments();
  const std::string metrics = server().backend().metrics().Text();
  EXPECT_THAT(metrics, HasSubstr("torpor_row_bytes_total{direction=\"out\","
                                 "plane=\"shared_memory\"} 6400384"));
  EXPECT_THAT(metrics, HasSubstr("torpor_row_bytes_total{direction=\"in\","
                                 "plane=\"shared_memory\"} 3200192"));
}

TEST_F(DataPlaneTest, ShardsGoThroughSegmentsOfTheirOwn) {
  const ToySuspend s{.ids = ToyIds(1, 301)};
  v1::BeginSuspendHeader header = HeaderOf(s, {});
  header.set_n_ranks(2);
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(header, s.ids));
  for (const uint32_t rank : {1U, 0U}) {
    std::vector<v1::PutRowsRequest> rows;
    for (uint64_t at = 0; at < 301; at += kToyBlock) {
      const uint64_t end = std::min<uint64_t>(301, at + kToyBlock);
      v1::PutRowsRequest& message = rows.emplace_back();
      const std::string bytes = ToyShard(1, kHeads, at, end, rank, 2);
      v1::RowPiece piece =
          PieceOf(kHeads, at, static_cast<uint32_t>(end - at), bytes);
      piece.set_shard(rank);
      piece.set_row_bytes(kToyRowBytes[kHeads] / 2);
      *message.add_pieces() = piece;
      message.set_data(bytes);
      if (rank == 1) continue;
      const std::string plain = ToyRows(1, kPlain, at, end);
      *message.add_pieces() =
          PieceOf(kPlain, at, static_cast<uint32_t>(end - at), plain);
      message.mutable_data()->append(plain);
    }
    ASSERT_OK_AND_ASSIGN(const auto choice, OpenPlane(begun.ticket(), ""));
    ASSERT_EQ(choice.plane(), kShm) << choice.reason();
    ASSERT_OK_AND_ASSIGN(const auto link, Take(choice, Flow::kToServer));
    ASSERT_OK(PutShared(&sessions(), begun.ticket(), choice, link.get(),
                        std::move(rows)));
  }
  v1::CommitRequest commit = s.Commit();
  commit.set_ticket(begun.ticket());
  // Segments of OpenPlane take no ticket with them.
  ASSERT_OK(Commit(commit));
  ExpectStored(s, 1);

  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(EngineResume("s")));
  std::vector<v1::DataPlaneChoice> choices;
  std::vector<std::unique_ptr<SegmentLink>> links;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    ASSERT_OK_AND_ASSIGN(choices.emplace_back(), OpenPlane("", lease.lease()));
    ASSERT_OK_AND_ASSIGN(links.emplace_back(),
                         Take(choices.back(), Flow::kToClient));
  }
  std::vector<std::thread> ranks;
  for (uint32_t shard = 0; shard < 2; ++shard) {
    ranks.emplace_back([&, shard] {
      v1::ReadRowsRequest request;
      request.set_lease(lease.lease());
      request.set_shard(shard);
      request.set_n_shards(2);
      const auto woken =
          ReadShared(&sessions(), request, choices[shard], links[shard].get());
      ASSERT_OK(woken.status());
      EXPECT_TRUE(woken->compact.at(kHeads).bytes ==
                  ToyShard(1, kHeads, 0, 301, shard, 2));
      EXPECT_TRUE(woken->compact.at(kPlain).bytes ==
                  ToyRows(1, kPlain, 0, 301));
    });
  }
  for (std::thread& rank : ranks) rank.join();
  ASSERT_OK(Release(lease.lease()));
  ExpectNoSegments();
}

TEST_F(DataPlaneTest, SnapshotRowsGoThroughTheSegmentToo) {
  const ToySuspend s{.ids = ToyIds(1, 77), .snapshot = true};
  v1::BeginSuspendHeader header = HeaderOf(s, {kShm});
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(header, s.ids));
  ASSERT_OK_AND_ASSIGN(const auto up, Take(begun.plane(), Flow::kToServer));
  ASSERT_OK(PutShared(&sessions(), begun.ticket(), begun.plane(), up.get(),
                      RowMessages(s)));
  v1::CommitRequest commit = s.Commit();
  commit.set_ticket(begun.ticket());
  ASSERT_OK(Commit(commit));

  v1::BeginResumeHeader resume;
  resume.set_session("s");
  resume.set_mode(v1::REPLAY_MODE_SNAPSHOT);
  *resume.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(resume));
  ASSERT_OK_AND_ASSIGN(const auto down, Take(lease.plane(), Flow::kToClient));
  v1::WindowRequest request;
  request.set_lease(lease.lease());
  request.set_segment(lease.plane().segment());
  const auto context = NewContext();
  const auto reader = sessions().Window(context.get(), request);
  RingConsumer ring(&down->memory());
  Woken woken;
  v1::WindowChunk chunk;
  while (reader->Read(&chunk)) {
    ASSERT_OK(TakeShared(chunk, true, &ring, &woken));
  }
  ASSERT_OK(FromGrpcStatus(reader->Finish()));
  EXPECT_TRUE(woken.window.at(kWindow).bytes ==
              ToyRows(1, kWindow, 77 - (kToyWindow - 1), 77));
  ASSERT_OK(Release(lease.lease()));
  ExpectNoSegments();
}

// All rows fit into the ring: nothing but the client's slowness keeps the call.
TEST_F(DataPlaneTest, AResumeWaitsForAClientThatTakesItsSegmentLate) {
  const ToySuspend s{.ids = ToyIds(1, 50)};
  ASSERT_OK(Suspend(s));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
  const auto stream = sessions().Resume(&context);
  v1::BeginResumeRequest request;
  *request.mutable_header() = EngineResume("s");
  *request.mutable_header()->mutable_planes() = Offer({kShm});
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->WritesDone());
  v1::ResumeChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  const v1::DataPlaneChoice choice = chunk.begin().plane();
  ASSERT_EQ(choice.plane(), kShm);
  std::this_thread::sleep_for(milliseconds(200));
  ASSERT_OK_AND_ASSIGN(const auto link, Take(choice, Flow::kToClient));
  RingConsumer ring(&link->memory());
  Woken woken;
  bool receipt = false;
  while (stream->Read(&chunk)) {
    ASSERT_OK(TakeShared(chunk, /*window=*/false, &ring, &woken));
    receipt = receipt || chunk.has_receipt();
  }
  EXPECT_TRUE(receipt);
  EXPECT_TRUE(stream->Finish().ok());
  ExpectNoSegments();
}

TEST_F(DataPlaneTest, NothingToCarryTakesNoSegment) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader header = EngineResume("s");
  header.set_mode(v1::REPLAY_MODE_COLD);
  header.mutable_limits()->set_allow_cold(true);
  *header.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
  ASSERT_EQ(begun.plan().resume_at(), 0);
  EXPECT_EQ(begun.plane().plane(), kGrpc);
  EXPECT_THAT(begun.plane().reason(), HasSubstr("no rows"));
  EXPECT_OK(Release(begun.lease()));
}

TEST_F(DataPlaneTest, SegmentsEndWithTheirOwner) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader header = EngineResume("s");
  *header.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(header));
  ASSERT_OK_AND_ASSIGN(const auto link, Take(lease.plane(), Flow::kToClient));
  ASSERT_OK(Release(lease.lease()));
  while (!link->lost()) std::this_thread::yield();
  ExpectNoSegments();
  // Nobody holds the lease that is idle.
  RestartWith([](ServerOptions* o) {
    o->backend.idle_limit = std::chrono::seconds(1);
  });
  ASSERT_OK_AND_ASSIGN(const auto idle, BeginResume(header));
  ASSERT_OK_AND_ASSIGN(const auto held, Take(idle.plane(), Flow::kToClient));
  ExpectNoSegments();
}

TEST_F(DataPlaneTest, AConnectionThatClosesTakesTicketOrLeaseWithIt) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader header = EngineResume("s");
  *header.mutable_planes() = Offer({kShm});
  ASSERT_OK_AND_ASSIGN(const auto lease, BeginResume(header));
  ASSERT_OK(Take(lease.plane(), Flow::kToClient).status());
  ExpectNoSegments();
  EXPECT_THAT(Release(lease.lease()), HasCode(StatusCode::kNotFound));

  const ToySuspend s{.session = "t", .ids = ToyIds(1, 50)};
  ASSERT_OK_AND_ASSIGN(const auto begun,
                       BeginSuspend(HeaderOf(s, {kShm}), s.ids));
  ASSERT_OK(Take(begun.plane(), Flow::kToServer).status());
  ExpectNoSegments();
  EXPECT_THAT(Describe("t"), HasCode(StatusCode::kNotFound));

  // One of OpenPlane goes alone.
  ASSERT_OK_AND_ASSIGN(const auto stays, BeginResume(EngineResume("s")));
  ASSERT_OK_AND_ASSIGN(const auto extra, OpenPlane("", stays.lease()));
  ASSERT_OK(Take(extra, Flow::kToClient).status());
  while (Segments().segments != 0) std::this_thread::yield();
  EXPECT_THAT(OpenPlane("", "unknown"), HasCode(StatusCode::kNotFound));
  EXPECT_OK(Release(stays.lease()));
  ExpectNoSegments();
}

// ---- the C++ client --------------------------------------------------------

class ClientPlaneTest : public DataPlaneTest {
 protected:
  absl::StatusOr<std::unique_ptr<Client>> Connect(
      RowPlane plane, const std::string& address = "") {
    return Client::Connect(
        {.address = address.empty() ? server().addresses().front() : address,
         .plane = plane});
  }
  static SuspendCall CallFor(const ToySuspend& s) {
    SuspendCall call;
    call.header = s.Header();
    call.ids = s.ids;
    call.block_size = kToyBlock;
    for (const uint32_t slot : {kHeads, kPlain}) {
      call.slots.push_back({slot, kToyRowBytes[slot], 1, 0, s.rows_to()});
    }
    call.rows = [salt = s.salt](uint32_t slot, uint64_t begin, uint64_t end,
                                std::span<uint8_t> out) {
      const std::string bytes = ToyRows(salt, slot, begin, end);
      std::copy_n(bytes.begin(), std::min(bytes.size(), out.size()),
                  out.begin());
      return absl::OkStatus();
    };
    return call;
  }
  struct Read {
    ResumeAnswer answer;
    std::map<uint32_t, std::string> rows;
  };
  static absl::StatusOr<Read> ReadAll(Client* client,
                                      const std::string& session) {
    Read read;
    ResumeCall call;
    call.header = EngineResume(session);
    call.compact = [&](uint32_t slot, uint64_t,
                       std::span<const uint8_t> bytes) {
      read.rows[slot].append(bytes.begin(), bytes.end());
      return absl::OkStatus();
    };
    call.window = call.compact;
    auto answer = client->Resume(call);
    if (!answer.ok()) return answer.status();
    read.answer = *std::move(answer);
    return read;
  }
  static void ExpectRows(const Read& read) {
    for (const uint32_t slot : {kHeads, kPlain}) {
      EXPECT_TRUE(read.rows.at(slot) == ToyRows(1, slot, 0, kLong));
    }
  }
};

TEST_F(ClientPlaneTest, UsesSharedMemoryByItselfOverAUnixSocket) {
  for (const RowPlane plane :
       {RowPlane::kAuto, RowPlane::kSharedMemory, RowPlane::kGrpc}) {
    ASSERT_OK_AND_ASSIGN(const auto client, Connect(plane));
    const ToySuspend s = Long("s" + std::to_string(static_cast<int>(plane)));
    ASSERT_OK_AND_ASSIGN(const auto receipt, client->Suspend(CallFor(s)));
    ASSERT_OK_AND_ASSIGN(const auto read, ReadAll(client.get(), s.session));
    const uint64_t shared = plane == RowPlane::kGrpc ? 0 : kLong * 64;
    // By itself a client does not set a segment up for so short a suspend.
    EXPECT_EQ(receipt.shared_memory_bytes(),
              plane == RowPlane::kSharedMemory ? shared : 0);
    EXPECT_EQ(read.answer.receipt.shared_memory_bytes(), shared);
    EXPECT_EQ(read.answer.receipt.bytes_sent(), kLong * 64);
    ExpectRows(read);
    // A repeated operation has its receipt.
    ASSERT_OK_AND_ASSIGN(const auto again, client->Suspend(CallFor(s)));
    EXPECT_EQ(again.version(), receipt.version());
  }
  ExpectNoSegments();
}

TEST_F(ClientPlaneTest, FallsBackToMessages) {
  const ToySuspend s = Long();
  {
    ASSERT_OK_AND_ASSIGN(const auto client, Connect(RowPlane::kAuto));
    ASSERT_OK(client->Suspend(CallFor(s)));
  }
  // TCP, and a descriptor socket that this client cannot see.
  ASSERT_OK_AND_ASSIGN(const auto tcp,
                       Connect(RowPlane::kAuto, server().addresses().back()));
  std::filesystem::remove(SocketPath() + ".fd");
  ASSERT_OK_AND_ASSIGN(const auto blind, Connect(RowPlane::kAuto));
  int i = 0;
  for (Client* client : {tcp.get(), blind.get()}) {
    ASSERT_OK_AND_ASSIGN(const auto read, ReadAll(client, "s"));
    EXPECT_EQ(read.answer.receipt.shared_memory_bytes(), 0);
    ExpectRows(read);
    ASSERT_OK_AND_ASSIGN(const auto receipt,
                         client->Suspend(CallFor(Long(std::to_string(i++)))));
    EXPECT_EQ(receipt.shared_memory_bytes(), 0);
  }
  // Who wants nothing else is told.
  ASSERT_OK_AND_ASSIGN(const auto strict, Connect(RowPlane::kSharedMemory));
  EXPECT_THAT(ReadAll(strict.get(), "s").status(),
              HasStatus(StatusCode::kUnavailable, ".fd"));
  ASSERT_OK_AND_ASSIGN(const auto far, Connect(RowPlane::kSharedMemory,
                                               server().addresses().back()));
  EXPECT_THAT(ReadAll(far.get(), "s").status(),
              HasStatus(StatusCode::kFailedPrecondition, "no unix socket"));
  EXPECT_THAT(far->Suspend(CallFor(Long("far"))).status(),
              HasStatus(StatusCode::kFailedPrecondition, "no unix socket"));
  ExpectNoSegments();
}

// The ring is full and the daemon has ended the call: the client learns why.
TEST_F(ClientPlaneTest, ACallThatEndsUnderAFullRingIsReported) {
  ASSERT_OK_AND_ASSIGN(const auto client, Connect(RowPlane::kSharedMemory));
  const ToySuspend s = Long();
  SuspendCall call = CallFor(s);
  // Refused at its first message, and none is taken after it.
  call.slots[0].row_bytes = 12;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(client->Suspend(call).status(),
              HasStatus(StatusCode::kInvalidArgument, "bytes a row"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  ExpectNoSegments();
}

TEST_F(ClientPlaneTest, ASourceThatFailsLeavesNothing) {
  ASSERT_OK_AND_ASSIGN(const auto client, Connect(RowPlane::kSharedMemory));
  const ToySuspend s = Long();
  SuspendCall call = CallFor(s);
  int pieces = 0;
  call.rows = [&](uint32_t, uint64_t, uint64_t, std::span<uint8_t>) {
    return ++pieces < 1000 ? absl::OkStatus() : absl::InternalError("source");
  };
  EXPECT_THAT(client->Suspend(call).status(),
              HasStatus(StatusCode::kInternal, "source"));
  ExpectNoSegments();
  EXPECT_THAT(Describe("s"), HasCode(StatusCode::kNotFound));
}

}  // namespace
}  // namespace torpor::service
