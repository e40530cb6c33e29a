// SPDX-License-Identifier: Apache-2.0
//
// Which plane is chosen, and that rows come through shared memory as they come
// in messages.

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <thread>

#include "tests/service/data_plane_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kGrpc = v1::DATA_PLANE_GRPC;
constexpr auto kIpc = v1::DATA_PLANE_CUDA_IPC;

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

// Every call that gives a segment takes a kept one, and every call that ends
// its owner leaves it.
TEST_F(DataPlaneTest, SegmentsThatAreKeptGoFromOwnerToOwner) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  const auto keeping = [](const SegmentLink* kept) {
    v1::DataPlaneOffer offer = Offer({kShm});
    offer.set_keep(true);
    if (kept != nullptr) offer.set_kept(kept->nonce());
    return offer;
  };
  const auto begin_resume = [&](const SegmentLink* kept) {
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = keeping(kept);
    return BeginResume(header);
  };
  const auto open = [&](const std::string& lease, const SegmentLink* kept) {
    v1::OpenPlaneRequest request;
    request.set_lease(lease);
    *request.mutable_planes() = keeping(kept);
    return Ask(sessions(), &v1::SessionService::Stub::OpenPlane, request);
  };
  ASSERT_OK_AND_ASSIGN(const auto first, begin_resume(nullptr));
  ASSERT_OK_AND_ASSIGN(const auto link, Take(first.plane(), Flow::kToClient));
  // Not while somebody has it.
  ASSERT_OK_AND_ASSIGN(const auto early, open(first.lease(), link.get()));
  EXPECT_FALSE(early.kept());
  ASSERT_OK(Release(first.lease()));
  ASSERT_OK_AND_ASSIGN(const auto second, begin_resume(link.get()));
  EXPECT_TRUE(second.plane().kept());
  EXPECT_THAT(second.plane().nonce(), IsEmpty());
  EXPECT_NE(second.plane().segment(), first.plane().segment());
  {
    v1::ReadRowsRequest request;
    request.set_lease(second.lease());
    ASSERT_OK_AND_ASSIGN(
        const Woken woken,
        ReadShared(&sessions(), request, second.plane(), link.get()));
    EXPECT_TRUE(woken.compact.at(kPlain).bytes == ToyRows(1, kPlain, 0, 50));
  }
  ASSERT_OK(Release(second.lease()));
  ASSERT_OK_AND_ASSIGN(const auto third, BeginResume(EngineResume("s")));
  ASSERT_OK_AND_ASSIGN(const auto opened, open(third.lease(), link.get()));
  EXPECT_TRUE(opened.kept());
  ASSERT_OK(Release(third.lease()));

  // The other way: abandoned, then committed.
  std::unique_ptr<SegmentLink> up;
  for (int i = 0; i < 3; ++i) {
    ToySuspend s{.session = "new" + std::to_string(i),
                 .operation_id = "op" + std::to_string(i),
                 .ids = ToyIds(1, 50)};
    v1::BeginSuspendHeader header = s.Header();
    *header.mutable_planes() = keeping(up.get());
    ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(header, s.ids));
    EXPECT_EQ(begun.plane().kept(), i > 0);
    if (up == nullptr) {
      ASSERT_OK_AND_ASSIGN(up, Take(begun.plane(), Flow::kToServer));
    }
    if (i == 0) {
      ASSERT_OK(Abandon(begun.ticket()));
      continue;
    }
    ASSERT_OK(PutShared(&sessions(), begun.ticket(), begun.plane(), up.get(),
                        RowMessages(s))
                  .status());
    v1::CommitRequest commit = s.Commit();
    commit.set_ticket(begun.ticket());
    ASSERT_OK(Commit(commit));
  }
  // A ticket goes with its connection, whoever had the segment before.
  ToySuspend s{.session = "last", .operation_id = "last", .ids = ToyIds(1, 50)};
  v1::BeginSuspendHeader header = s.Header();
  *header.mutable_planes() = keeping(up.get());
  ASSERT_OK_AND_ASSIGN(const auto begun, BeginSuspend(header, s.ids));
  EXPECT_TRUE(begun.plane().kept());
  up.reset();
  ExpectIdle();
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

}  // namespace
}  // namespace torpor::service
