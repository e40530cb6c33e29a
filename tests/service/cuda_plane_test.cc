// SPDX-License-Identifier: Apache-2.0
//
// CUDA IPC on the fake driver of tests/fake_cuda, daemon and client in one
// process: what is negotiated, that rows come through device memory as they
// come in messages, peers that lie, and a GPU that is lost.

#include <grpcpp/grpcpp.h>

#include <random>
#include <thread>

#include "service/client.h"
#include "service/device_segment.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/service/plane_client.h"
#include "tests/service/service_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kShm = v1::DATA_PLANE_SHARED_MEMORY;
constexpr auto kIpc = v1::DATA_PLANE_CUDA_IPC;
constexpr auto kFd = v1::CUDA_HANDLE_KIND_FD;
constexpr auto kLegacy = v1::CUDA_HANDLE_KIND_LEGACY;
// A segment on a GPU.
constexpr uint64_t kRing = uint64_t{2} << 20;
// Of 64 bytes each: almost twice a segment, no whole number of blocks.
constexpr size_t kLong = 65'003;

v1::DataPlaneOffer OfferOf(const std::vector<v1::CudaHandleKind>& kinds) {
  v1::DataPlaneOffer offer = Offer({kIpc, kShm});
  const auto uuid = fake_cuda::Uuid(0).bytes;
  offer.mutable_cuda()->set_gpu_uuid(std::string(uuid.begin(), uuid.end()));
  for (const v1::CudaHandleKind kind : kinds) {
    offer.mutable_cuda()->add_handle_kinds(kind);
  }
  return offer;
}

class CudaPlaneTest : public ServiceTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.segments.segment_bytes = 1 << 20;
    options->backend.segments.device_bytes = device_bytes_;
    options->listen.push_back("127.0.0.1:0");
  }
  void SetUp() override {
    fake_cuda::Behave("");
    ASSERT_NO_FATAL_FAILURE(ServiceTest::SetUp());
    ASSERT_NO_FATAL_FAILURE(OpenGpu());
  }
  void TearDown() override {
    up_.reset();
    down_.reset();
    ExpectNoSegments();
    // All of it, the client's too.
    EXPECT_EQ(fake_cuda::LiveBytes(), 0);
    Stop();
    gpu_.reset();
    fake_cuda::Behave("");
  }
  // The client's.
  void OpenGpu() {
    ASSERT_OK_AND_ASSIGN(const auto driver, kernels::CudaDriver::Load());
    ASSERT_OK_AND_ASSIGN(gpu_, kernels::CudaContext::OpenFirst(driver));
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice, Flow flow) {
    return SegmentLink::Take(dir().File("s"), choice, flow, gpu_);
  }
  static ToySuspend Long(const std::string& session = "s") {
    return {
        .session = session, .ids = ToyIds(1, kLong), .blocks_per_message = 64};
  }
  // A ticket with its segment.
  void BeginUp(const ToySuspend& s, v1::CudaHandleKind kind = kFd) {
    v1::BeginSuspendHeader header = s.Header();
    *header.mutable_planes() = OfferOf({kind});
    ASSERT_OK_AND_ASSIGN(begun_, BeginSuspend(header, s.ids));
    ASSERT_EQ(begun_.plane().plane(), kIpc) << begun_.plane().reason();
    ASSERT_EQ(begun_.plane().cuda_handle_kind(), kind);
    ASSERT_OK_AND_ASSIGN(up_, Take(begun_.plane(), Flow::kToServer));
  }
  // A lease with its segment.
  void BeginDown(v1::CudaHandleKind kind = kFd) {
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = OfferOf({kind});
    ASSERT_OK_AND_ASSIGN(lease_, BeginResume(header));
    ASSERT_EQ(lease_.plane().plane(), kIpc) << lease_.plane().reason();
    ASSERT_OK_AND_ASSIGN(down_, Take(lease_.plane(), Flow::kToClient));
  }
  absl::StatusOr<v1::SuspendReceipt> CommitUp(const ToySuspend& s) {
    v1::CommitRequest commit = s.Commit();
    commit.set_ticket(begun_.ticket());
    return Commit(commit);
  }
  absl::StatusOr<Woken> ReadDown() {
    v1::ReadRowsRequest request;
    request.set_lease(lease_.lease());
    return ReadShared(&sessions(), request, lease_.plane(), down_.get());
  }
  absl::StatusOr<uint64_t> PutUp(const ToySuspend& s) {
    return PutShared(&sessions(), begun_.ticket(), begun_.plane(), up_.get(),
                     RowMessages(s));
  }
  // Messages as they are, on a stream of the ticket's segment.
  absl::Status PutRaw(const std::vector<v1::PutRowsRequest>& messages) {
    std::vector<v1::PutRowsRequest> all(1);
    all[0].set_ticket(begun_.ticket());
    all[0].set_segment(begun_.plane().segment());
    all.insert(all.end(), messages.begin(), messages.end());
    return PutRows(all).status();
  }
  v1::DataPlaneChoice Choose(const v1::DataPlaneOffer& offer) {
    v1::BeginResumeHeader header = EngineResume("s");
    *header.mutable_planes() = offer;
    const auto begun = BeginResume(header);
    EXPECT_OK(begun.status());
    EXPECT_OK(Release(begun->lease()));
    return begun->plane();
  }
  SegmentBroker::Stats Segments() {
    return server().backend().segments().stats();
  }
  template <typename Condition>
  static bool Eventually(const Condition& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void ExpectNoSegments() {
    ExpectIdle();
    EXPECT_TRUE(Eventually([&] {
      const SegmentBroker::Stats stats = Segments();
      return stats.segments + stats.bytes + stats.device_segments +
                 stats.device_bytes ==
             0;
    }));
  }

  uint64_t device_bytes_ = 3 * kRing;
  std::shared_ptr<const kernels::CudaContext> gpu_;
  v1::BeginSuspendResponse begun_;
  v1::BeginResumeResponse lease_;
  std::unique_ptr<SegmentLink> up_;
  std::unique_ptr<SegmentLink> down_;
};

// ---- negotiation -----------------------------------------------------------

TEST_F(CudaPlaneTest, TakesTheFirstKindThatTheGpuServes) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::DataPlaneChoice choice = Choose(OfferOf({kFd, kLegacy}));
  EXPECT_EQ(choice.plane(), kIpc) << choice.reason();
  EXPECT_EQ(choice.cuda_handle_kind(), kFd);
  EXPECT_THAT(choice.reason(), IsEmpty());
  EXPECT_EQ(choice.nonce().size(), 16);
  EXPECT_EQ(choice.segment_bytes(), kRing);
  EXPECT_EQ(Choose(OfferOf({kLegacy, kFd})).cuda_handle_kind(), kLegacy);
  // A kind of later days.
  EXPECT_EQ(Choose(OfferOf({static_cast<v1::CudaHandleKind>(9), kLegacy}))
                .cuda_handle_kind(),
            kLegacy);
  v1::DataPlaneOffer second = OfferOf({kFd});
  const auto uuid = fake_cuda::Uuid(1).bytes;
  second.mutable_cuda()->set_gpu_uuid(std::string(uuid.begin(), uuid.end()));
  EXPECT_EQ(Choose(second).plane(), kIpc);
  fake_cuda::Behave("no_fd");
  EXPECT_EQ(Choose(OfferOf({kFd, kLegacy})).cuda_handle_kind(), kLegacy);
}

TEST_F(CudaPlaneTest, FallsToTheNextPlaneAndSaysWhy) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  const auto expect = [&](const char* words, const v1::DataPlaneOffer& offer,
                          const std::vector<const char*>& reasons) {
    fake_cuda::Behave(words);
    const v1::DataPlaneChoice choice = Choose(offer);
    EXPECT_EQ(choice.plane(), kShm);
    for (const char* reason : reasons) {
      EXPECT_THAT(choice.reason(), HasSubstr(reason));
    }
  };
  expect("no_device", OfferOf({kFd}), {"CUDA IPC: ", "CUDA_ERROR_NO_DEVICE"});
  expect("", Offer({kIpc, kShm}), {"gpu_uuid: got 0 bytes, wanted 16"});
  v1::DataPlaneOffer other = OfferOf({kFd});
  other.mutable_cuda()->set_gpu_uuid(std::string(16, '\1'));
  expect("", other,
         {"got GPU-01010101-0101-0101-0101-010101010101",
          "GPU-f0f0f0f0-f0f0-f0f0-f0f0-f0f0f0f0f0f0"});
  expect("", OfferOf({}), {"cuda.handle_kinds"});
  expect("no_fd", OfferOf({kFd}), {"by file descriptor"});
  expect("shared_block", OfferOf({kLegacy}), {"one of its own"});
  expect("out_of_memory", OfferOf({kFd, kLegacy}), {"OUT_OF_MEMORY"});
  fake_cuda::Behave("");
  device_bytes_ = 0;
  ASSERT_NO_FATAL_FAILURE(Restart());
  expect("", OfferOf({kFd}), {"disabled by plane.device_bytes"});
}

// However often it is named, a plane or a kind is tried once.
TEST_F(CudaPlaneTest, ALongOfferIsNoMoreWork) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  fake_cuda::Behave("out_of_memory");
  const std::string once = Choose(OfferOf({kFd, kLegacy})).reason();
  v1::DataPlaneOffer offer = OfferOf({kFd, kLegacy});
  offer.clear_planes();
  for (int i = 0; i < 10'000; ++i) {
    offer.add_planes(kIpc);
    offer.mutable_cuda()->add_handle_kinds(kFd);
  }
  offer.add_planes(kShm);
  const v1::DataPlaneChoice choice = Choose(offer);
  EXPECT_EQ(choice.plane(), kShm);
  EXPECT_EQ(choice.reason(), once);
}

TEST_F(CudaPlaneTest, WantsAUnixSocketAndRows) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader tcp = EngineResume("s");
  *tcp.mutable_planes() = OfferOf({kFd});
  ASSERT_OK_AND_ASSIGN(const auto begun,
                       BeginResumeAt(server().addresses().back(), tcp));
  EXPECT_EQ(begun.plane().plane(), v1::DATA_PLANE_GRPC);
  EXPECT_THAT(begun.plane().reason(), HasSubstr("CUDA IPC: this connection"));
  ASSERT_OK(Release(begun.lease()));

  v1::BeginResumeHeader cold = EngineResume("s");
  cold.set_mode(v1::REPLAY_MODE_COLD);
  cold.mutable_limits()->set_allow_cold(true);
  *cold.mutable_planes() = OfferOf({kFd});
  ASSERT_OK_AND_ASSIGN(const auto none, BeginResume(cold));
  EXPECT_THAT(none.plane().reason(), HasSubstr("CUDA IPC: there are no rows"));
  ASSERT_OK(Release(none.lease()));
}

TEST_F(CudaPlaneTest, OverItsBudgetSharedMemoryServes) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  v1::BeginResumeHeader header = EngineResume("s");
  *header.mutable_planes() = OfferOf({kFd});
  std::vector<std::string> leases;
  for (int i = 0; i < 4; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto begun, BeginResume(header));
    leases.push_back(begun.lease());
    EXPECT_EQ(begun.plane().plane(), i < 3 ? kIpc : kShm);
    if (i == 3) {
      EXPECT_THAT(begun.plane().reason(),
                  HasSubstr("3 hold 6291456 bytes of 6291456 "
                            "(plane.device_bytes)"));
    }
  }
  for (const std::string& lease : leases) ASSERT_OK(Release(lease));
}

// ---- rows ------------------------------------------------------------------

TEST_F(CudaPlaneTest, SuspendAndResumeCarryTheSameBytes) {
  for (const v1::CudaHandleKind kind : {kFd, kLegacy}) {
    SCOPED_TRACE(v1::CudaHandleKind_Name(kind));
    const ToySuspend s = Long(kind == kFd ? "s" : "t");
    ASSERT_NO_FATAL_FAILURE(BeginUp(s, kind));
    ASSERT_OK_AND_ASSIGN(const uint64_t sent, PutUp(s));
    EXPECT_EQ(sent, kLong * 64);
    ASSERT_OK_AND_ASSIGN(const auto receipt, CommitUp(s));
    EXPECT_EQ(receipt.shared_memory_bytes(), kLong * 64);
    // In messages: what the store has is what was sent.
    ExpectStored(s, 1);

    ASSERT_NO_FATAL_FAILURE(BeginDown(kind));
    // Twice through one segment: each stream begins anew.
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK_AND_ASSIGN(const Woken woken, ReadDown());
      for (const uint32_t slot : {kHeads, kPlain}) {
        EXPECT_TRUE(woken.compact.at(slot).bytes == ToyRows(1, slot, 0, kLong));
      }
    }
    ASSERT_OK_AND_ASSIGN(const auto ended, Release(lease_.lease()));
    EXPECT_EQ(ended.shared_memory_bytes(), 2 * kLong * 64);
  }
  const std::string metrics = server().backend().metrics().Text();
  EXPECT_THAT(metrics, HasSubstr("torpor_row_bytes_total{direction=\"out\","
                                 "plane=\"cuda_ipc\"} 16640768"));
  EXPECT_THAT(metrics, HasSubstr("torpor_row_bytes_total{direction=\"in\","
                                 "plane=\"cuda_ipc\"} 8320384"));
}

TEST_F(CudaPlaneTest, TheClientOfThisProjectCarriesWholeSessions) {
  SuspendCall call;
  const ToySuspend s = Long();
  call.header = s.Header();
  call.ids = s.ids;
  call.block_size = kToyBlock;
  for (const uint32_t slot : {kHeads, kPlain}) {
    call.slots.push_back({slot, kToyRowBytes[slot], 1, 0, kLong});
  }
  call.rows = [](uint32_t slot, uint64_t begin, uint64_t end,
                 std::span<uint8_t> out) {
    const std::string bytes = ToyRows(1, slot, begin, end);
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return absl::OkStatus();
  };
  const auto connect = [&](RowPlane plane) {
    return Client::Connect(
        {.address = server().addresses().front(), .plane = plane});
  };
  {
    ASSERT_OK_AND_ASSIGN(const auto client, connect(RowPlane::kCudaIpc));
    ASSERT_OK_AND_ASSIGN(const auto receipt, client->Suspend(call));
    EXPECT_EQ(receipt.shared_memory_bytes(), kLong * 64);
  }
  std::map<RowPlane, std::map<uint32_t, std::string>> rows;
  for (const RowPlane plane : {RowPlane::kCudaIpc, RowPlane::kSharedMemory}) {
    ASSERT_OK_AND_ASSIGN(const auto client, connect(plane));
    const uint64_t copies = fake_cuda::Copies();
    ResumeCall resume;
    resume.header = EngineResume("s");
    resume.compact = [&](uint32_t slot, uint64_t,
                         std::span<const uint8_t> bytes) {
      rows[plane][slot].append(bytes.begin(), bytes.end());
      return absl::OkStatus();
    };
    resume.window = resume.compact;
    ASSERT_OK_AND_ASSIGN(const auto answer, client->Resume(resume));
    EXPECT_EQ(answer.receipt.shared_memory_bytes(), kLong * 64);
    EXPECT_EQ(fake_cuda::Copies() > copies, plane == RowPlane::kCudaIpc);
  }
  EXPECT_EQ(rows[RowPlane::kCudaIpc], rows[RowPlane::kSharedMemory]);
  EXPECT_TRUE(rows[RowPlane::kCudaIpc][kPlain] == ToyRows(1, kPlain, 0, kLong));

  // Who wants nothing else is told, and leaves nothing.
  {
    ASSERT_OK_AND_ASSIGN(const auto client, connect(RowPlane::kCudaIpc));
    fake_cuda::Behave("open_fails");
    call.header.set_session("t");
    call.header.set_operation_id("op-t");
    EXPECT_THAT(client->Suspend(call).status(),
                HasStatus(StatusCode::kUnavailable, "cuMemImport"));
    fake_cuda::Behave("out_of_memory");
    EXPECT_THAT(client->Suspend(call).status(),
                HasStatus(StatusCode::kFailedPrecondition, "OUT_OF_MEMORY"));
  }
  fake_cuda::Behave("no_device");
  EXPECT_THAT(connect(RowPlane::kCudaIpc).status(),
              HasStatus(StatusCode::kUnavailable, "CUDA_ERROR_NO_DEVICE"));
  EXPECT_THAT(Describe("t"), HasCode(StatusCode::kNotFound));
}

// ---- life ------------------------------------------------------------------

TEST_F(CudaPlaneTest, DeviceMemoryStaysUntilTheClientLetsGo) {
  ASSERT_OK(Suspend(ToySuspend{.ids = ToyIds(1, 50)}));
  ASSERT_NO_FATAL_FAILURE(BeginDown(kLegacy));
  ASSERT_OK(Release(lease_.lease()));
  ASSERT_TRUE(Eventually([&] { return down_->lost(); }));
  ExpectIdle();
  EXPECT_EQ(Segments().device_segments, 1);
  EXPECT_EQ(Segments().device_bytes, kRing);
  // Still there, though nobody writes it any more.
  EXPECT_OK(down_->memory().Read(0, kRing).status());
  down_.reset();
  ExpectNoSegments();
}

TEST_F(CudaPlaneTest, AConnectionThatClosesEndsItsStream) {
  ASSERT_OK(Suspend(Long()));
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  v1::ReadRowsRequest request;
  request.set_lease(lease_.lease());
  request.set_segment(lease_.plane().segment());
  const auto context = NewContext();
  const auto reader = sessions().ReadRows(context.get(), request);
  v1::RowChunk chunk;
  ASSERT_TRUE(reader->Read(&chunk));
  down_.reset();
  while (reader->Read(&chunk)) {
  }
  EXPECT_THAT(FromGrpcStatus(reader->Finish()),
              HasStatus(StatusCode::kCancelled, "segment"));
  ExpectNoSegments();
  EXPECT_THAT(Release(lease_.lease()), HasCode(StatusCode::kNotFound));
}

TEST_F(CudaPlaneTest, ALostGpuEndsStreamsAndTheNextOffersFallBack) {
  ASSERT_OK(Suspend(Long()));
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  const ToySuspend t = Long("t");
  ASSERT_NO_FATAL_FAILURE(BeginUp(t));
  std::vector<v1::PutRowsRequest> messages = RowMessages(t);
  messages.resize(2);
  {
    RingProducer ring(&up_->memory());
    for (auto& message : messages) ASSERT_OK(LayInto(&ring, &message));
  }
  fake_cuda::Behave("lost_after=1");
  EXPECT_THAT(PutRaw(messages),
              HasStatus(StatusCode::kUnavailable, "LAUNCH_FAILED"));
  EXPECT_THAT(ReadDown().status(),
              HasStatus(StatusCode::kUnavailable, "LAUNCH_FAILED"));
  fake_cuda::Behave("");
  v1::DataPlaneChoice choice = Choose(OfferOf({kFd, kLegacy}));
  EXPECT_EQ(choice.plane(), kShm);
  EXPECT_THAT(choice.reason(), HasSubstr("LAUNCH_FAILED"));
  // The rows are as they were, on other planes.
  ExpectStored(Long(), 1);
  // Nobody holds the lost context: the GPU is back.
  up_.reset();
  down_.reset();
  ExpectNoSegments();
  gpu_.reset();
  ASSERT_NO_FATAL_FAILURE(OpenGpu());
  ASSERT_NO_FATAL_FAILURE(BeginDown());
  ASSERT_OK_AND_ASSIGN(const Woken woken, ReadDown());
  EXPECT_TRUE(woken.compact.at(kPlain).bytes == ToyRows(1, kPlain, 0, kLong));
  ASSERT_OK(Release(lease_.lease()));
}

// ---- peers that lie --------------------------------------------------------

TEST_F(CudaPlaneTest, BadPositionsAreRefused) {
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  std::vector<v1::PutRowsRequest> sound = RowMessages(s);
  RingProducer ring(&up_->memory());
  for (auto& message : sound) ASSERT_OK(LayInto(&ring, &message));
  for (const uint64_t position : {kRing - 1, kRing, kRing + 1, UINT64_MAX,
                                  UINT64_MAX - kRing, uint64_t{1} << 63}) {
    std::vector<v1::PutRowsRequest> bad = {sound[0]};
    bad[0].mutable_pieces(0)->set_position(position);
    EXPECT_THAT(PutRaw(bad), HasCode(StatusCode::kInvalidArgument)) << position;
  }
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    std::vector<v1::PutRowsRequest> messages(1);
    for (int p = 0; p < 4; ++p) {
      *messages[0].add_pieces() = RandomPiece(&random);
    }
    EXPECT_FALSE(PutRaw(messages).ok());
  }
}

TEST_F(CudaPlaneTest, RowsChangedAfterTheDoorbellAreDataLoss) {
  const ToySuspend s{.session = "t", .ids = ToyIds(1, 320)};
  ASSERT_NO_FATAL_FAILURE(BeginUp(s));
  std::vector<v1::PutRowsRequest> messages = RowMessages(s);
  RingProducer ring(&up_->memory());
  for (auto& message : messages) ASSERT_OK(LayInto(&ring, &message));
  up_->memory().writable()[5] ^= 1;
  ASSERT_OK(up_->memory().Publish(5, 1));
  EXPECT_THAT(PutRaw(messages), HasStatus(StatusCode::kDataLoss, "checksum"));
  EXPECT_THAT(CommitUp(s).status(), HasCode(StatusCode::kFailedPrecondition));
}

// While the daemon works on them, all the time: what it takes is what it
// verified, or nothing.
TEST_F(CudaPlaneTest, RowsChangedAllTheTimeAreStoredSoundOrNotAtAll) {
  const ToySuspend s = Long();
  ASSERT_NO_FATAL_FAILURE(BeginUp(s, kLegacy));
  ASSERT_OK_AND_ASSIGN(auto second,
                       kernels::CudaSharedMemory::OpenLegacy(
                           gpu_, up_->memory().control().cuda_handle, kRing));
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937 random(1);
    while (!stop.load()) {
      EXPECT_OK(second->ToDevice(random() % kRing, 1));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const auto sent = PutUp(s);
  stop.store(true);
  scribbler.join();
  second.reset();
  if (!sent.ok()) {
    EXPECT_THAT(sent.status(), HasCode(StatusCode::kDataLoss));
    EXPECT_THAT(CommitUp(s).status(), HasCode(StatusCode::kFailedPrecondition));
    EXPECT_THAT(Describe("s"), HasCode(StatusCode::kNotFound));
    return;
  }
  ASSERT_OK(CommitUp(s));
  ExpectStored(s, 1);
}

// What a client does to rows that come to it is its own loss.
TEST_F(CudaPlaneTest, AReaderThatWritesItsSegmentDamagesNothing) {
  ASSERT_OK(Suspend(Long()));
  ASSERT_NO_FATAL_FAILURE(BeginDown(kLegacy));
  ASSERT_OK_AND_ASSIGN(auto second,
                       kernels::CudaSharedMemory::OpenLegacy(
                           gpu_, down_->memory().control().cuda_handle, kRing));
  std::atomic<bool> stop{false};
  std::thread scribbler([&] {
    std::mt19937 random(1);
    while (!stop.load()) {
      EXPECT_OK(second->ToDevice(random() % kRing, 1));
      std::this_thread::yield();
    }
  });
  const auto woken = ReadDown();
  stop.store(true);
  scribbler.join();
  second.reset();
  // The reader's own verdict.
  if (!woken.ok()) {
    EXPECT_THAT(woken.status(), HasStatus(StatusCode::kInternal, "checksum"));
  }
  ASSERT_OK(Release(lease_.lease()));
  EXPECT_EQ(Stats().quarantined_records(), 0);
  ExpectStored(Long(), 1);
}

}  // namespace
}  // namespace torpor::service
