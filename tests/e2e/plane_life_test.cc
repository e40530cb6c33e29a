// SPDX-License-Identifier: Apache-2.0
//
// Shared memory and CUDA IPC when a side is killed, many times, in the middle:
// the other goes on and nothing is left, neither files nor memory nor
// descriptors, tickets or leases. The GPU is that of tests/fake_cuda.

#include <signal.h>
#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "service/client.h"
#include "tests/e2e/daemon_client.h"
#include "tests/e2e/daemon_fixture.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/testing/child_process.h"

namespace torpor::e2e {
namespace {

using service::RowPlane;
using service::ToyIds;
using service::ToyRows;
using torpor::testing::ChildProcess;

constexpr uint64_t kTokens = 40'000;  // 2.5 MB, more than a segment
constexpr int kAtOnce = 4;

struct Plane {
  const char* name;
  RowPlane plane;
  int kills;
  // Of the fake driver.
  const char* words;
};
constexpr Plane kPlanes[] = {
    {"SharedMemory", RowPlane::kSharedMemory, 100, ""},
    {"CudaFd", RowPlane::kCudaIpc, 20, ""},
    {"CudaLegacy", RowPlane::kCudaIpc, 20, "no_fd"},
};

ToySuspend Session(const std::string& id) {
  return {.session = id, .ids = ToyIds(1, kTokens)};
}

using Hook = std::function<void(uint64_t pieces)>;

service::SuspendCall SuspendOf(const ToySuspend& s, const Hook& hook) {
  service::SuspendCall call;
  call.header = s.Header();
  call.ids = s.ids;
  call.block_size = service::kToyBlock;
  for (const uint32_t slot : {service::kHeads, service::kPlain}) {
    call.slots.push_back({slot, service::kToyRowBytes[slot], 1, 0, kTokens});
  }
  call.rows = [hook, n = uint64_t{0}](uint32_t slot, uint64_t begin,
                                      uint64_t end,
                                      std::span<uint8_t> out) mutable {
    const std::string bytes = ToyRows(1, slot, begin, end);
    std::copy(bytes.begin(), bytes.end(), out.begin());
    hook(++n);
    return absl::OkStatus();
  };
  return call;
}

service::ResumeCall ResumeOf(const std::string& id, const Hook& hook) {
  service::ResumeCall call;
  call.header.set_session(id);
  call.header.set_mode(v1::REPLAY_MODE_EXACT);
  call.header.set_engine_replays(true);
  call.compact = [hook, n = uint64_t{0}](uint32_t, uint64_t,
                                         std::span<const uint8_t>) mutable {
    hook(++n);
    return absl::OkStatus();
  };
  call.window = call.compact;
  return call;
}

absl::StatusOr<std::unique_ptr<service::Client>> Connect(
    const std::string& address, const Plane& plane) {
  return service::Client::Connect({.address = address,
                                   .timeout = std::chrono::seconds(60),
                                   .plane = plane.plane});
}

// --child ADDRESS suspend|resume SESSION PLANE: says so in the middle and stays
// there.
int RunChild(char** argv) {
  const auto client = Connect(argv[2], kPlanes[std::stoi(argv[5])]);
  if (!client.ok()) {
    torpor::testing::Report(client.status().ToString());
    return 1;
  }
  const Hook stop = [](uint64_t pieces) {
    if (pieces != 3000) return;
    torpor::testing::Report("middle");
    while (true) pause();
  };
  const std::string id = argv[4];
  const absl::Status status =
      std::string(argv[3]) == "suspend"
          ? (*client)->Suspend(SuspendOf(Session(id), stop)).status()
          : (*client)->Resume(ResumeOf(id, stop)).status();
  torpor::testing::Report(status.ToString());
  return 1;
}

size_t Descriptors(pid_t pid) {
  size_t n = 0;
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(
           absl::StrCat("/proc/", pid, "/fd"), error);
       it != std::filesystem::directory_iterator(); it.increment(error)) {
    ++n;
  }
  return n;
}

uint64_t SharedKilobytes(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  while (status >> word) {
    uint64_t kilobytes = 0;
    if (word == "RssShmem:" && status >> kilobytes) return kilobytes;
  }
  return UINT64_MAX;
}

template <typename Condition>
bool Eventually(const Condition& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

class PlaneLifeTest : public DaemonTest,
                      public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    ASSERT_GE(sodium_init(), 0);
    // For the daemon and for children.
    setenv("LD_LIBRARY_PATH", TORPOR_FAKE_CUDA_DIR, 1);
    setenv(fake_cuda::kEnvironment, plane().words, 1);
    if (plane().plane == RowPlane::kCudaIpc) fake_cuda::Behave(plane().words);
  }
  static const Plane& plane() { return kPlanes[GetParam()]; }
  absl::StatusOr<std::unique_ptr<service::Client>> ConnectHere() const {
    return Connect(Address(), plane());
  }
  std::vector<std::string> Child(const std::string& verb,
                                 const std::string& id) const {
    return {"--child", Address(), verb, id, std::to_string(GetParam())};
  }
  std::set<std::string> Files(const std::string& name) const {
    std::set<std::string> out;
    for (const auto& e :
         std::filesystem::directory_iterator(dir().File(name))) {
      out.insert(e.path().filename());
    }
    return out;
  }
  void StartSmall() { Start("[plane]\nsegment_bytes = 1048576\n"); }
  absl::Status SuspendOne(const std::string& id) {
    const auto client = ConnectHere();
    if (!client.ok()) return client.status();
    return (*client)->Suspend(SuspendOf(Session(id), [](uint64_t) {})).status();
  }
};

TEST_P(PlaneLifeTest, ClientsKilledInTheMiddleLeaveNothing) {
  ASSERT_NO_FATAL_FAILURE(StartSmall());
  const Client client(Address());
  ASSERT_OK(client.Register());
  ASSERT_OK(SuspendOne("s"));
  const auto idle = [&] {
    const v1::StatsResponse stats = client.Stats();
    return stats.open_tickets() == 0 && stats.open_leases() == 0 &&
           stats.reserved_bytes() == 0 && stats.staged_records() == 0;
  };
  size_t descriptors = 0;
  uint64_t shared = 0;
  for (int killed = 0; killed < 2 * plane().kills;) {
    std::vector<std::unique_ptr<ChildProcess>> children;
    for (int i = 0; i < kAtOnce; ++i) {
      children.push_back(std::make_unique<ChildProcess>(
          i % 2 == 0 ? Child("suspend", absl::StrCat("new", i))
                     : Child("resume", "s")));
    }
    for (const auto& child : children) {
      ASSERT_EQ(child->ReadLine(kPatience), "middle");
    }
    for (const auto& child : children) {
      child->Kill();
      child->Wait();
      ++killed;
    }
    ASSERT_TRUE(Eventually(idle)) << client.Stats().ShortDebugString();
    if (killed <= 2 * kAtOnce) {
      // What the daemon keeps once it has worked; from here on nothing grows.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      descriptors = Descriptors(daemon().pid());
      shared = SharedKilobytes(daemon().pid());
    }
  }
  EXPECT_TRUE(Eventually([&] {
    return Descriptors(daemon().pid()) <= descriptors;
  })) << Descriptors(daemon().pid())
      << " of " << descriptors;
  EXPECT_TRUE(Eventually([&] {
    return SharedKilobytes(daemon().pid()) <= shared;
  })) << SharedKilobytes(daemon().pid())
      << " of " << shared;
  EXPECT_EQ(Files("run"),
            (std::set<std::string>{"s", "s.lock", "s.fd", "s.fd.lock"}));
  EXPECT_EQ(client.Stats().sessions(), 1);
  client.ExpectStored(Session("s"));
  ASSERT_OK(SuspendOne("after"));
  client.ExpectStored(Session("after"));
  Stop();
  EXPECT_EQ(Files("run"), std::set<std::string>());
}

TEST_P(PlaneLifeTest, DaemonsKilledInTheMiddleLeaveNothing) {
  ASSERT_NO_FATAL_FAILURE(StartSmall());
  {
    const Client client(Address());
    ASSERT_OK(client.Register());
    ASSERT_OK(SuspendOne("s"));
  }
  size_t descriptors = 0;
  uint64_t shared = 0;
  for (int i = 0; i < plane().kills; ++i) {
    {
      ASSERT_OK_AND_ASSIGN(const auto client, ConnectHere());
      const Hook kill = [&](uint64_t pieces) {
        if (pieces == 1500) daemon().Signal(SIGKILL);
      };
      const absl::Status status =
          i % 2 == 0 ? client->Suspend(SuspendOf(Session("new"), kill)).status()
                     : client->Resume(ResumeOf("s", kill)).status();
      // Told, not left waiting; a resume may have had all of its rows.
      if (i % 2 == 0) EXPECT_FALSE(status.ok()) << status;
    }
    Stop(SIGKILL, 128 + SIGKILL);
    ASSERT_NO_FATAL_FAILURE(StartSmall());
    if (i == 3) {
      descriptors = Descriptors(getpid());
      shared = SharedKilobytes(getpid());
    }
  }
  EXPECT_TRUE(Eventually([&] { return Descriptors(getpid()) <= descriptors; }))
      << Descriptors(getpid()) << " of " << descriptors;
  EXPECT_LE(SharedKilobytes(getpid()), shared);
  {
    const Client client(Address());
    const v1::StatsResponse stats = client.Stats();
    EXPECT_EQ(stats.sessions(), 1);
    EXPECT_EQ(stats.open_tickets() + stats.open_leases(), 0);
    EXPECT_EQ(stats.staged_records(), 0);
    client.ExpectStored(Session("s"));
    ASSERT_OK(SuspendOne("after"));
    client.ExpectStored(Session("after"));
  }
  Stop();
  EXPECT_EQ(Files("run"), std::set<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Planes, PlaneLifeTest, ::testing::Range(0, 3),
                         [](const auto& info) {
                           return std::string(kPlanes[info.param].name);
                         });

}  // namespace

int RunTests(int argc, char** argv) {
  if (argc > 5 && std::string(argv[1]) == "--child") return RunChild(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace torpor::e2e

int main(int argc, char** argv) { return torpor::e2e::RunTests(argc, argv); }
