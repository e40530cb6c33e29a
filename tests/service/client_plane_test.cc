// SPDX-License-Identifier: Apache-2.0
//
// The C++ client's planes: which it takes by itself, and the segments that it
// keeps.

#include <filesystem>
#include <thread>

#include "service/client.h"
#include "tests/service/data_plane_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;

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

TEST_F(ClientPlaneTest, KeepsItsSegmentsFromCallToCall) {
  ASSERT_OK_AND_ASSIGN(const auto client, Connect(RowPlane::kSharedMemory));
  for (int i = 0; i < 3; ++i) {
    const ToySuspend s = Long("s" + std::to_string(i));
    ASSERT_OK(client->Suspend(CallFor(s)).status());
    ASSERT_OK_AND_ASSIGN(const auto read, ReadAll(client.get(), s.session));
    EXPECT_EQ(read.answer.receipt.shared_memory_bytes(), kLong * 64);
    EXPECT_EQ(read.answer.begin.plane().kept(), i > 0);
    EXPECT_EQ(read.answer.begin.plane().reason(), "");
    ExpectRows(read);
    // One for each way.
    EXPECT_EQ(Segments().segments, 2);
  }
  // A call that fails gives its segment up; the next one has another.
  ResumeCall call;
  call.header = EngineResume("s1");
  call.compact = [](uint32_t, uint64_t, std::span<const uint8_t>) {
    return absl::InternalError("sink");
  };
  EXPECT_THAT(client->Resume(call).status(),
              HasStatus(StatusCode::kInternal, "sink"));
  for (const bool kept : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const auto read, ReadAll(client.get(), "s1"));
    EXPECT_EQ(read.answer.begin.plane().kept(), kept);
    ExpectRows(read);
  }
  // So do calls at once.
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 10; ++round) {
        const auto read = ReadAll(client.get(), "s" + std::to_string(i));
        ASSERT_OK(read.status());
        ExpectRows(*read);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ClientPlaneTest, AKeptSegmentOfADaemonThatIsGoneIsNotMissed) {
  const ToySuspend s = Long();
  ASSERT_OK_AND_ASSIGN(const auto client, Connect(RowPlane::kSharedMemory));
  ASSERT_OK(client->Suspend(CallFor(s)).status());
  ASSERT_OK(ReadAll(client.get(), "s").status());
  ASSERT_NO_FATAL_FAILURE(Restart());
  // The channel may say first that the daemon went.
  absl::StatusOr<Read> read = ReadAll(client.get(), "s");
  for (int i = 0; i < 100 && absl::IsUnavailable(read.status()); ++i) {
    std::this_thread::sleep_for(milliseconds(100));
    read = ReadAll(client.get(), "s");
  }
  ASSERT_OK(read.status());
  EXPECT_FALSE(read->answer.begin.plane().kept());
  EXPECT_EQ(read->answer.receipt.shared_memory_bytes(), kLong * 64);
  ExpectRows(*read);
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
