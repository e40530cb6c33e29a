// SPDX-License-Identifier: Apache-2.0

#include "service/shm_ring.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "service/device_segment.h"
#include "service/shm_segment.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;
using ::torpor::testing::IsOk;

constexpr uint64_t kBytes = 64 << 10;
constexpr milliseconds kPatience{60'000};

// Both sides of a segment, as two processes would have them.
struct Pair {
  explicit Pair(Flow flow, uint64_t bytes = kBytes) {
    server = *ShmSegment::Create(bytes, flow);
    client = *ShmSegment::Map(UniqueFd(dup(server->segment_fd())),
                              UniqueFd(dup(server->control_fd())), bytes, flow);
    producer_side = flow == Flow::kToClient ? server.get() : client.get();
    consumer_side = flow == Flow::kToClient ? client.get() : server.get();
  }
  std::unique_ptr<ShmSegment> server;
  std::unique_ptr<ShmSegment> client;
  ShmSegment* producer_side;
  ShmSegment* consumer_side;
};

TEST(ShmSegmentTest, IsSealed) {
  for (const Flow flow : {Flow::kToClient, Flow::kToServer}) {
    const Pair pair(flow);
    for (const int fd :
         {pair.client->segment_fd(), pair.client->control_fd()}) {
      EXPECT_NE(ftruncate(fd, 0), 0);
      EXPECT_NE(ftruncate(fd, 1 << 20), 0);
      EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    }
  }
}

TEST(ShmSegmentTest, TheClientCannotWriteRowsSentToIt) {
  const Pair pair(Flow::kToClient);
  const int fd = pair.client->segment_fd();
  EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
            MAP_FAILED);
  void* at = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(at, MAP_FAILED);
  EXPECT_NE(mprotect(at, kBytes, PROT_READ | PROT_WRITE), 0);
  munmap(at, kBytes);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096),
            0);
}

TEST(ShmSegmentTest, TheServerNeverMapsWhatTheClientWrites) {
  const Pair pair(Flow::kToServer);
  EXPECT_TRUE(pair.server->mapped().empty());
  EXPECT_EQ(pair.client->writable().size(), kBytes);
}

TEST(ShmSegmentTest, TheClientRefusesOtherDescriptors) {
  const Pair pair(Flow::kToClient);
  const auto map = [&](int segment, int control, uint64_t bytes) {
    return ShmSegment::Map(UniqueFd(dup(segment)), UniqueFd(dup(control)),
                           bytes, Flow::kToClient)
        .status();
  };
  const int segment = pair.server->segment_fd();
  const int control = pair.server->control_fd();
  EXPECT_OK(map(segment, control, kBytes));
  EXPECT_THAT(map(segment, control, 2 * kBytes),
              HasCode(StatusCode::kDataLoss));
  EXPECT_THAT(map(control, segment, kBytes), HasCode(StatusCode::kDataLoss));
  const UniqueFd loose(memfd_create("loose", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(loose.get(), kBytes), 0);
  EXPECT_THAT(map(loose.get(), control, kBytes),
              HasCode(StatusCode::kDataLoss));
  const UniqueFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_THAT(map(file.get(), control, kBytes), HasCode(StatusCode::kDataLoss));
}

// Both sides of a segment on the GPU of tests/fake_cuda.
struct DevicePair {
  explicit DevicePair(kernels::CudaHandleKind kind) {
    const auto driver = *kernels::CudaDriver::Load();
    const auto gpu = *kernels::CudaContext::OpenFirst(driver);
    constexpr uint64_t kSize = kernels::CudaSharedMemory::kUnit;
    server = *DeviceSegment::Create(gpu, kind, kSize);
    std::vector<UniqueFd> taken;
    for (const int fd : server->descriptors()) taken.emplace_back(dup(fd));
    client = *DeviceSegment::Open(gpu, kind, std::move(taken), kSize);
  }
  std::unique_ptr<DeviceSegment> server;
  std::unique_ptr<DeviceSegment> client;
};

// Pieces of random sizes through a small ring, two threads.
void ExpectCarries(Segment* producer_side, Segment* consumer_side,
                   int n_pieces) {
  const uint64_t bytes = producer_side->bytes();
  const auto seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  // First such as end where the segment does.
  std::vector<size_t> sizes;
  for (int i = 0; i < n_pieces; ++i) {
    sizes.push_back(bytes >> (2 + random() % 4));
  }
  sizes.insert(sizes.end(), {1, bytes, bytes - 1, 1, bytes / 2 + 1});
  for (int i = 0; i < n_pieces; ++i) {
    sizes.push_back(1 + random() % (bytes / 3));
  }
  const auto byte_of = [](size_t piece, size_t i) {
    return static_cast<uint8_t>(piece * 31 + i * 7);
  };
  std::vector<uint64_t> positions(sizes.size());
  std::atomic<size_t> told{0};
  std::thread producer([&] {
    RingProducer ring(producer_side);
    for (size_t p = 0; p < sizes.size(); ++p) {
      // Several are told of together, as outlets do.
      if (!ring.HasRoom(sizes[p]) || p % 7 == 0) {
        ASSERT_OK(ring.Publish());
        told.store(p);
      }
      const auto room = ring.Reserve(sizes[p], kPatience, nullptr);
      ASSERT_OK(room.status());
      ASSERT_EQ(room->bytes.size(), sizes[p]);
      for (size_t i = 0; i < sizes[p]; ++i) room->bytes[i] = byte_of(p, i);
      positions[p] = room->position;
    }
    ASSERT_OK(ring.Publish());
    told.store(sizes.size());
  });
  RingConsumer ring(consumer_side);
  for (size_t p = 0; p < sizes.size(); ++p) {
    while (told.load() <= p) std::this_thread::yield();
    ASSERT_OK_AND_ASSIGN(const auto view, ring.View(positions[p], sizes[p]));
    ASSERT_EQ(view.size(), sizes[p]);
    for (size_t i = 0; i < view.size(); ++i) {
      ASSERT_EQ(view[i], byte_of(p, i)) << "piece " << p << " byte " << i;
    }
    ring.Release();
  }
  producer.join();
}

TEST(ShmRingTest, CarriesPiecesThroughSharedMemory) {
  for (const Flow flow : {Flow::kToClient, Flow::kToServer}) {
    const Pair pair(flow);
    ExpectCarries(pair.producer_side, pair.consumer_side, 1000);
  }
}
TEST(ShmRingTest, CarriesPiecesThroughDeviceMemory) {
  for (const auto kind :
       {kernels::CudaHandleKind::kFd, kernels::CudaHandleKind::kLegacy}) {
    const DevicePair pair(kind);
    ExpectCarries(pair.server.get(), pair.client.get(), 50);
    ExpectCarries(pair.client.get(), pair.server.get(), 50);
  }
}

class FullRing : public ::testing::Test {
 protected:
  FullRing() : pair_(Flow::kToClient), ring_(pair_.producer_side) {
    EXPECT_OK(ring_.Reserve(kBytes, kPatience, nullptr).status());
    EXPECT_FALSE(ring_.HasRoom(1));
  }
  absl::Status Reserve(milliseconds limit,
                       const std::function<bool()>& give_up = nullptr) {
    return ring_.Reserve(1, limit, give_up).status();
  }
  Pair pair_;
  RingProducer ring_;
};

TEST_F(FullRing, AConsumerThatNeverAcksCostsTheLimit) {
  EXPECT_THAT(Reserve(milliseconds(30)),
              HasStatus(StatusCode::kDeadlineExceeded, "took nothing"));
}

TEST_F(FullRing, GivesUpWhenTold) {
  std::atomic<bool> stop{false};
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(30));
    stop.store(true);
  });
  EXPECT_THAT(Reserve(kPatience, [&] { return stop.load(); }),
              HasCode(StatusCode::kCancelled));
  later.join();
}

TEST_F(FullRing, DrainWaitsForTheLastPiece) {
  EXPECT_THAT(ring_.Drain(milliseconds(30), nullptr),
              HasStatus(StatusCode::kDeadlineExceeded, "took nothing"));
  std::thread consumer([&] {
    std::this_thread::sleep_for(milliseconds(30));
    RingConsumer ring(pair_.consumer_side);
    EXPECT_OK(ring.View(0, kBytes).status());
    ring.Release();
  });
  EXPECT_OK(ring_.Drain(kPatience, nullptr));
  EXPECT_EQ(pair_.client->control().consumed.load(), kBytes);
  consumer.join();
}

TEST_F(FullRing, ACounterBeyondWhatWasSentEndsIt) {
  for (const uint64_t said : {kBytes + 1, UINT64_MAX}) {
    pair_.client->control().consumed.store(said);
    EXPECT_THAT(Reserve(kPatience), HasStatus(StatusCode::kInvalidArgument,
                                              "the consumer is done"));
  }
}

TEST_F(FullRing, ACounterThatGoesBackTakesNothingBack) {
  pair_.client->control().consumed.store(kBytes / 2);
  EXPECT_TRUE(ring_.HasRoom(kBytes / 2));
  pair_.client->control().consumed.store(3);
  EXPECT_TRUE(ring_.HasRoom(kBytes / 2));
  EXPECT_FALSE(ring_.HasRoom(kBytes / 2 + 1));
}

// A peer that only changes the word that the producer sleeps on.
TEST_F(FullRing, APeerThatOnlyWakesBurnsNoCore) {
  std::atomic<bool> stop{false};
  std::thread hostile([&] {
    ShmControl& control = pair_.client->control();
    while (!stop.load()) control.wake.fetch_add(1);
  });
  timespec before;
  timespec after;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
  EXPECT_THAT(Reserve(milliseconds(300)),
              HasCode(StatusCode::kDeadlineExceeded));
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
  stop.store(true);
  hostile.join();
  const double burnt =
      static_cast<double>(after.tv_sec - before.tv_sec) +
      1e-9 * static_cast<double>(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(burnt, 0.15);
}

TEST(ShmRingTest, RefusesAPieceLargerThanTheSegment) {
  const Pair pair(Flow::kToClient);
  RingProducer ring(pair.producer_side);
  EXPECT_THAT(ring.Reserve(kBytes + 1, kPatience, nullptr).status(),
              HasCode(StatusCode::kInvalidArgument));
}

TEST(ShmRingTest, TheConsumerChecksEveryPosition) {
  const Pair pair(Flow::kToServer);
  const auto view = [&](uint64_t position, size_t n = 100) {
    RingConsumer ring(pair.consumer_side);
    EXPECT_OK(ring.View(0, 100).status());
    return ring.View(position, n).status();
  };
  EXPECT_OK(view(100));
  EXPECT_OK(view(kBytes - 100));
  EXPECT_OK(view(kBytes));
  for (const uint64_t bad :
       {uint64_t{0}, uint64_t{99}, kBytes - 99, kBytes - 1, kBytes + 100,
        2 * kBytes, UINT64_MAX, UINT64_MAX - 99, UINT64_MAX - kBytes}) {
    EXPECT_THAT(view(bad), HasCode(StatusCode::kInvalidArgument)) << bad;
  }
  EXPECT_THAT(view(100, kBytes + 1), HasCode(StatusCode::kInvalidArgument));
  EXPECT_THAT(view(kBytes, kBytes), IsOk());
}

}  // namespace
}  // namespace torpor::service
