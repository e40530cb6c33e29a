// SPDX-License-Identifier: Apache-2.0
//
// What a prefetch may take: the memory of held windows, their time, the memory
// of replays; and that it is its tenant's alone.

#include "tests/service/prefetch_fixture.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using Stub = v1::SessionService::Stub;

class SmallPrefetchTest : public PrefetchTest {
 protected:
  // Windows of three layers, seven rows each: room for one.
  void Configure(ServerOptions* options) override {
    options->backend.prefetch.held_bytes = 3 * 7 * 2 * 2 * 32 * 2 + 100;
    options->backend.prefetch.hold_limit = std::chrono::seconds(20);
  }
};

TEST_F(SmallPrefetchTest, OverItsMemoryItReadsAlone) {
  Asleep("w8", "s", false);
  Asleep("w8", "t", false);
  Hold("s");
  ASSERT_OK_AND_ASSIGN(const auto refused, Prefetch(ReplayOf(ExactOf("t"))));
  EXPECT_FALSE(refused.replaying());
  EXPECT_THAT(refused.reason(), HasSubstr("prefetch.held_bytes"));
  EXPECT_EQ(refused.held_bytes(), 0);
  AwaitCount("read", 2);
  EXPECT_EQ(Count("refused"), 1);
  ASSERT_OK(Resume(ExactOf("s")));
  Hold("t");
  // The limit is the time that 0 stands for when it is less.
  v1::PrefetchRequest request = ReplayOf(ExactOf("t"));
  request.set_hold_seconds(21);
  EXPECT_THAT(Prefetch(request), HasCode(StatusCode::kInvalidArgument));
}

class TightReplayTest : public PrefetchTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->backend.replay.memory_bytes = 1000;
  }
};

TEST_F(TightReplayTest, AReplayAboveTheMemoryIsNotBegun) {
  Asleep("w8", "s", true);
  ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(ReplayOf(ExactOf("s"))));
  EXPECT_FALSE(answer.replaying());
  EXPECT_THAT(answer.reason(), HasSubstr("1000"));
  AwaitCount("read", 1);
  EXPECT_EQ(Count("failed"), 0);
  // A snapshot is no replay.
  v1::BeginResumeHeader snapshot = ExactOf("s");
  snapshot.set_mode(v1::REPLAY_MODE_SNAPSHOT);
  ASSERT_OK(Prefetch(ReplayOf(snapshot)));
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(snapshot));
  EXPECT_TRUE(woken.receipt->prefetched());
}

class TwoTenantsTest : public PrefetchTest {
 protected:
  void Configure(ServerOptions* options) override {
    options->tenants = {
        // Registers the models.
        {.name = "default", .is_operator = true},
        {.name = "a", .number = 1, .token_hashes = {TokenHash("a")}},
        {.name = "b", .number = 2, .token_hashes = {TokenHash("b")}}};
  }
};

TEST_F(TwoTenantsTest, NobodySeesAnothersWindow) {
  std::map<std::string, std::unique_ptr<Client>> clients;
  for (const char* tenant : {"a", "b"}) {
    ASSERT_OK_AND_ASSIGN(clients[tenant], Client::Connect({.address = Address(),
                                                           .token = tenant}));
  }
  const auto prefetch = [&](const char* tenant) {
    Client& client = *clients[tenant];
    return client.Unary(client.sessions(), &Stub::Prefetch,
                        ReplayOf(ExactOf("s")));
  };
  const auto sleep = [&](const char* tenant, uint64_t stream) {
    Engine engine = NewEngine("w8");
    engine.Start({});
    engine.Append(Ids("w8", kLong + 1, stream));
    EXPECT_OK(engine.Sleep(clients[tenant].get(), "s", kToyBlock, false));
    return engine;
  };
  const auto wake = [&](const char* tenant) {
    Engine engine = NewEngine("w8");
    return engine.Wake(clients[tenant].get(), "s",
                       {.mode = v1::REPLAY_MODE_EXACT});
  };
  sleep("a", 1);
  EXPECT_THAT(prefetch("b"), HasCode(StatusCode::kNotFound));
  sleep("b", 2);
  ASSERT_OK(prefetch("a"));
  AwaitCount("held", 1);
  // The same name, version, cut and plan.
  ASSERT_OK_AND_ASSIGN(const WakeReport b, wake("b"));
  EXPECT_FALSE(b.receipt.prefetched());
  EXPECT_EQ(b.receipt.verdict(), v1::WITNESS_VERDICT_EXACT);
  v1::DeleteRequest erase;
  erase.set_session("s");
  erase.set_expected_version(1);
  erase.set_operation_id("rm");
  Client& client = *clients["b"];
  ASSERT_OK(client.Unary(client.sessions(), &Stub::Delete, erase));
  ASSERT_OK_AND_ASSIGN(const WakeReport a, wake("a"));
  EXPECT_TRUE(a.receipt.prefetched());
  EXPECT_EQ(a.receipt.verdict(), v1::WITNESS_VERDICT_EXACT);
}

}  // namespace
}  // namespace torpor::service
