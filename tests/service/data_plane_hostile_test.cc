// SPDX-License-Identifier: Apache-2.0
//
// Peers that lie in shared memory, stall, or are gone: they hurt their own
// transfer alone.

#include <grpcpp/grpcpp.h>

#include <random>
#include <thread>

#include "tests/service/plane_client.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using SteadyClock = std::chrono::steady_clock;

constexpr auto kShm = v1::DATA_PLANE_SHARED_MEMORY;
// Of 64 bytes each: almost four times a segment.
constexpr size_t kLong = 60'000;

class HostileTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.segments.segment_bytes = 1 << 20;
    options->backend.segments.stall_limit = milliseconds(stall_ms_);
  }
  void RestartWithStall(int ms) {
    stall_ms_ = ms;
    ASSERT_NO_FATAL_FAILURE(Restart());
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice, Flow flow) {
    return SegmentLink::Take(dir().File("s"), choice, flow);
  }
  // A ticket with its segment.
  void BeginUp(const ToySuspend& s) {
    v1::BeginSuspendHeader header = s.Header();
    *header.mutable_planes() = Offer({kShm});
    ASSERT_OK_AND_ASSIGN(begun_, BeginSuspend(header, s.ids));
    ASSERT_OK_AND_ASSIGN(up_, Take(begun_.plane(), Flow::kToServer));
  }
  // A lease with its segment.
  void BeginDown() {
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = Offer({kShm});
    ASSERT_OK_AND_ASSIGN(lease_, BeginResume(header));
    ASSERT_OK_AND_ASSIGN(down_, Take(lease_.plane(), Flow::kToClient));
  }
  v1::ReadRowsRequest ReadRequest() const {
    v1::ReadRowsRequest request;
    request.set_lease(lease_.lease());
    request.set_segment(lease_.plane().segment());
    return request;
  }
  // A stream that carries these messages as they are.
  absl::Status PutRaw(const std::vector<v1::PutRowsRequest>& messages) {
    return PutRows([&] {
             std::vector<v1::PutRowsRequest> all(1);
             all[0].set_ticket(begun_.ticket());
             all[0].set_segment(begun_.plane().segment());
             all.insert(all.end(), messages.begin(), messages.end());
             return all;
           }())
        .status();
  }
  // A stream whose client takes the messages and acks as `ack` does.
  absl::Status ReadWith(const std::function<void(ShmControl&, int)>& ack,
                        milliseconds timeout = kPatience) {
    const auto context = NewContext(timeout);
    const auto reader = sessions().ReadRows(context.get(), ReadRequest());
    v1::RowChunk chunk;
    int n = 0;
    while (reader->Read(&chunk)) ack(down_->memory().control(), n++);
    return FromGrpcStatus(reader->Finish());
  }
  void ExpectNoWorker(SteadyClock::time_point since, milliseconds limit) {
    while (server().backend().running_calls() > 0 &&
           SteadyClock::now() - since < kPatience) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(server().backend().running_calls(), 0);
    EXPECT_LT(SteadyClock::now() - since, limit);
  }
  // The daemon serves as before: the session, through the same plane.
  void ExpectServes() {
    ASSERT_NO_FATAL_FAILURE(BeginDown());
    ASSERT_OK_AND_ASSIGN(
        const Woken woken,
        ReadShared(&sessions(), ReadRequest(), lease_.plane(), down_.get()));
    EXPECT_TRUE(woken.compact.at(kPlain).bytes == ToyRows(1, kPlain, 0, kLong));
    ASSERT_OK(Release(lease_.lease()));
    ExpectIdle();
  }
  static ToySuspend Long() {
    return {.ids = ToyIds(1, kLong), .blocks_per_message = 64};
  }

  int stall_ms_ = 30'000;
  v1::BeginSuspendResponse begun_;
  v1::BeginResumeResponse lease_;
  std::unique_ptr<SegmentLink> up_;
  std::unique_ptr<SegmentLink> down_;
};

// ---- suspends ---------------------------------------------------------------

TEST_F(HostileTest, BadPositionsAndLengthsAreRefused) {
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  std::vector<v1::PutRowsRequest> sound = RowMessages(s);
  RingProducer ring(&up_->memory());
  for (auto& message : sound) ASSERT_OK(LayInto(&ring, &message));
  const auto with = [&](const std::function<void(v1::RowPiece*)>& change) {
    std::vector<v1::PutRowsRequest> bad = {sound[0]};
    change(bad[0].mutable_pieces(0));
    return PutRaw(bad);
  };
  constexpr uint64_t kSegment = 1 << 20;
  for (const uint64_t position :
       {kSegment - 1, kSegment, kSegment + 1, UINT64_MAX, UINT64_MAX - kSegment,
        uint64_t{1} << 63}) {
    EXPECT_THAT(with([&](v1::RowPiece* p) { p->set_position(position); }),
                HasCode(StatusCode::kInvalidArgument))
        << position;
  }
  // Behind an earlier piece.
  EXPECT_THAT(PutRaw({sound[1], sound[0]}),
              HasStatus(StatusCode::kInvalidArgument, "segment"));
  for (const uint32_t rows : {400U, 60'000U, UINT32_MAX}) {
    EXPECT_THAT(with([&](v1::RowPiece* p) { p->set_n_rows(rows); }),
                HasCode(StatusCode::kInvalidArgument))
        << rows;
  }
  EXPECT_THAT(with([](v1::RowPiece* p) { p->set_row_bytes(UINT32_MAX); }),
              HasCode(StatusCode::kInvalidArgument));
  // Pieces without data on a stream that named no segment.
  v1::PutRowsRequest first = sound[0];
  first.set_ticket(begun_.ticket());
  EXPECT_THAT(PutRows({first}).status(), HasCode(StatusCode::kInvalidArgument));
  // Segments that are not this ticket's, or of the other direction's owner.
  first.set_segment("0123456789abcdef");
  EXPECT_THAT(PutRows({first}).status(), HasCode(StatusCode::kNotFound));
  // The ticket stands: the sound messages go through.
  ASSERT_OK(PutRaw(sound));
  v1::CommitRequest commit = s.Commit();
  commit.set_ticket(begun_.ticket());
  ASSERT_OK(Commit(commit));
  ExpectStored(s, 1);
  ExpectIdle();
}

TEST_F(HostileTest, RandomDescriptorsNeverLeaveTheSegment) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  for (int i = 0; i < 200; ++i) {
    std::vector<v1::PutRowsRequest> messages(1);
    for (int p = 0; p < 8; ++p) {
      *messages[0].add_pieces() = RandomPiece(&random);
    }
    // The content of a fresh segment matches no checksum.
    EXPECT_FALSE(PutRaw(messages).ok());
  }
  up_.reset();
  ExpectIdle();
}

TEST_F(HostileTest, RowsChangedAfterTheDoorbellAreDataLoss) {
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  std::vector<v1::PutRowsRequest> messages = RowMessages(s);
  RingProducer ring(&up_->memory());
  for (auto& message : messages) ASSERT_OK(LayInto(&ring, &message));
  up_->memory().writable()[5] ^= 1;
  EXPECT_THAT(PutRaw(messages), HasStatus(StatusCode::kDataLoss, "checksum"));
  v1::CommitRequest commit = s.Commit();
  commit.set_ticket(begun_.ticket());
  EXPECT_THAT(Commit(commit), HasCode(StatusCode::kFailedPrecondition));
  up_.reset();
  ExpectIdle();
}

// While the daemon works on them, all the time: what it takes is what it
// verified, or nothing.
TEST_F(HostileTest, RowsChangedAllTheTimeAreStoredSoundOrNotAtAll) {
  ASSERT_NO_FATAL_FAILURE(BeginUp(Long()));
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937 random(1);
    const std::span<uint8_t> bytes = up_->memory().writable();
    while (!stop.load()) {
      reinterpret_cast<std::atomic<uint8_t>&>(bytes[random() % bytes.size()])
          .fetch_xor(1);
    }
  });
  const auto sent = PutShared(&sessions(), begun_.ticket(), begun_.plane(),
                              up_.get(), RowMessages(Long()));
  stop.store(true);
  scribbler.join();
  if (!sent.ok()) {
    EXPECT_THAT(sent.status(), HasCode(StatusCode::kDataLoss));
    up_.reset();
    ExpectIdle();
    return;
  }
  v1::CommitRequest commit = Long().Commit();
  commit.set_ticket(begun_.ticket());
  ASSERT_OK(Commit(commit));
  ExpectStored(Long(), 1);
}

TEST_F(HostileTest, OneStreamHasASegmentAtATime) {
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  const auto context = NewContext();
  v1::PutRowsResponse response;
  const auto writer = sessions().PutRows(context.get(), &response);
  v1::PutRowsRequest first;
  first.set_ticket(begun_.ticket());
  first.set_segment(begun_.plane().segment());
  ASSERT_TRUE(writer->Write(first));
  // Rows that were taken say that the stream has the segment.
  std::vector<v1::PutRowsRequest> messages = RowMessages(s);
  RingProducer ring(&up_->memory());
  ASSERT_OK(LayInto(&ring, &messages[0]));
  ASSERT_TRUE(writer->Write(messages[0]));
  ASSERT_OK(ring.Drain(kPatience, nullptr));
  EXPECT_THAT(PutRaw({}),
              HasStatus(StatusCode::kFailedPrecondition, "another stream"));
  writer->WritesDone();
  ASSERT_OK(FromGrpcStatus(writer->Finish()));
  EXPECT_OK(PutRaw({}));
  up_.reset();
  ExpectIdle();
}

// ---- resumes ----------------------------------------------------------------

class HostileReaderTest : public HostileTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(HostileTest::SetUp());
    ASSERT_OK(Suspend(Long()));
  }
};

TEST_F(HostileReaderTest, AReaderThatNeverAcksHasItsDeadline) {
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  const auto begin = SteadyClock::now();
  EXPECT_THAT(ReadWith([](ShmControl&, int) {}, milliseconds(200)),
              HasCode(StatusCode::kDeadlineExceeded));
  ExpectNoWorker(begin + milliseconds(200), milliseconds(2000));
  ASSERT_OK(Release(lease_.lease()));
  ExpectServes();
}

TEST_F(HostileReaderTest, AReaderThatNeverAcksAndWaitsForeverIsStopped) {
  RestartWithStall(100);
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  const auto begin = SteadyClock::now();
  EXPECT_THAT(ReadWith([](ShmControl&, int) {}),
              HasStatus(StatusCode::kDeadlineExceeded, "took nothing"));
  ExpectNoWorker(begin, milliseconds(5000));
  ASSERT_OK(Release(lease_.lease()));
  stall_ms_ = 30'000;
  ASSERT_NO_FATAL_FAILURE(Restart());
  ExpectServes();
}

TEST_F(HostileReaderTest, ACancelledReaderFreesItsWorkerAtOnce) {
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  const auto context = NewContext();
  const auto reader = sessions().ReadRows(context.get(), ReadRequest());
  v1::RowChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  context->TryCancel();
  const auto begin = SteadyClock::now();
  while (reader->Read(&chunk)) {
  }
  reader->Finish();
  ExpectNoWorker(begin, milliseconds(2000));
  ASSERT_OK(Release(lease_.lease()));
  ExpectServes();
}

TEST_F(HostileReaderTest, AReaderWhoseConnectionClosesFreesItsWorkerAtOnce) {
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  const auto context = NewContext();
  const auto reader = sessions().ReadRows(context.get(), ReadRequest());
  v1::RowChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  down_.reset();
  const auto begin = SteadyClock::now();
  while (reader->Read(&chunk)) {
  }
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              HasStatus(StatusCode::kCancelled, "segment"));
  ExpectNoWorker(begin, milliseconds(2000));
  ExpectIdle();
  EXPECT_EQ(server().backend().segments().stats().segments, 0);
  ExpectServes();
}

TEST_F(HostileReaderTest, CountersThatLieEndTheirStream) {
  for (const uint64_t lie : {UINT64_MAX, uint64_t{1} << 40, kLong * 64 + 1}) {
    ASSERT_NO_FATAL_FAILURE(BeginDown());
    EXPECT_THAT(ReadWith([&](ShmControl& c, int) { c.consumed.store(lie); }),
                HasStatus(StatusCode::kInvalidArgument, "the consumer is done"))
        << lie;
    ASSERT_OK(Release(lease_.lease()));
  }
  ExpectServes();
}

TEST_F(HostileReaderTest, RandomCountersEndInSomeStatus) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  RestartWithStall(50);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 20; ++i) {
    ASSERT_NO_FATAL_FAILURE(BeginDown());
    std::atomic<bool> stop{false};
    std::thread hostile([&] {
      ShmControl& control = down_->memory().control();
      while (!stop.load()) {
        control.consumed.store(random() >> (random() % 64));
        control.wake.store(static_cast<uint32_t>(random()));
        control.waiting.store(static_cast<uint32_t>(random()));
      }
    });
    (void)ReadWith([](ShmControl&, int) {});
    stop.store(true);
    hostile.join();
    ASSERT_OK(Release(lease_.lease()));
  }
  stall_ms_ = 30'000;
  ASSERT_NO_FATAL_FAILURE(Restart());
  ExpectServes();
  // Nothing of it reached the store.
  EXPECT_EQ(Stats().quarantined_records(), 0);
}

TEST_F(HostileReaderTest, ASegmentOfAnotherLeaseIsUnknown) {
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  ASSERT_OK_AND_ASSIGN(const auto other, BeginResume(EngineResume("s")));
  v1::ReadRowsRequest request = ReadRequest();
  request.set_lease(other.lease());
  EXPECT_THAT(ReadRows(request), HasCode(StatusCode::kNotFound));
  v1::WindowRequest window;
  window.set_lease(other.lease());
  window.set_segment(lease_.plane().segment());
  EXPECT_THAT(Window(window), HasCode(StatusCode::kNotFound));
  ASSERT_OK(Release(other.lease()));
  ASSERT_OK(Release(lease_.lease()));
  ExpectServes();
}

TEST_F(HostileReaderTest, ASegmentThatNobodyTookStopsItsStream) {
  // One call: the daemon begins before anybody has mapped the segment.
  const auto context = NewContext();
  const auto stream = sessions().Resume(context.get());
  v1::BeginResumeRequest message;
  *message.mutable_header() = EngineResume("s");
  *message.mutable_header()->mutable_planes() = Offer({kShm});
  ASSERT_TRUE(stream->Write(message));
  stream->WritesDone();
  v1::ResumeChunk chunk;
  ASSERT_TRUE(stream->Read(&chunk));
  ASSERT_EQ(chunk.begin().plane().plane(), kShm);
  // Taken and let go.
  ASSERT_OK(Take(chunk.begin().plane(), Flow::kToClient).status());
  while (stream->Read(&chunk)) {
  }
  EXPECT_THAT(FromGrpcStatus(stream->Finish()),
              HasCode(StatusCode::kCancelled));
  ExpectIdle();
  ExpectServes();
}

}  // namespace
}  // namespace torpor::service
