// SPDX-License-Identifier: Apache-2.0
//
// How torpord ends and comes back: drained by SIGTERM, killed and started
// again.

#include <signal.h>

#include "tests/e2e/daemon_client.h"
#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using absl::StatusCode;
using service::ToyIds;
using ::testing::HasSubstr;
using torpor::testing::HasCode;

class DaemonLifeTest : public DaemonTest {
 protected:
  // A suspend that has sent all but its commit.
  struct HalfSuspend {
    HalfSuspend(const Client& client, const ToySuspend& suspend)
        : context(client.Context()),
          writer(client.sessions->Suspend(context.get(), &receipt)) {
      std::vector<v1::SuspendRequest> messages = service::Messages(suspend);
      commit = messages.back();
      messages.pop_back();
      for (const auto& message : messages) {
        EXPECT_TRUE(writer->Write(message));
      }
      while (client.Stats().open_tickets() == 0) {
      }
    }
    std::unique_ptr<grpc::ClientContext> context;
    v1::SuspendReceipt receipt;
    std::unique_ptr<grpc::ClientWriter<v1::SuspendRequest>> writer;
    v1::SuspendRequest commit;
  };
};

TEST_F(DaemonLifeTest, SigtermLetsASuspendFinish) {
  Start();
  const ToySuspend s{.ids = ToyIds(1, 200)};
  {
    const Client client(Address());
    ASSERT_OK(client.Register());
    HalfSuspend half(client, s);
    daemon().Signal(SIGTERM);
    ASSERT_TRUE(daemon().AwaitError("event=drain"));
    EXPECT_THAT(client.Describe("s"), HasCode(StatusCode::kUnavailable));
    for (const char* service : kHealthNames) {
      ASSERT_OK_AND_ASSIGN(const std::string health, client.Health(service));
      EXPECT_EQ(health, kNotServing) << service;
    }
    const Finished probe = Torpor({"health"});
    EXPECT_EQ(probe.code, 1) << probe.out;
    EXPECT_THAT(probe.err, HasSubstr("not serving"));
    ASSERT_TRUE(half.writer->Write(half.commit));
    half.writer->WritesDone();
    ASSERT_OK(FromGrpcStatus(half.writer->Finish()));
    EXPECT_EQ(half.receipt.version(), 1);
    EXPECT_EQ(daemon().Wait(), 0) << daemon().error();
    EXPECT_THAT(daemon().error(), HasSubstr("event=stop"));
  }
  Start();
  Client(Address()).ExpectStored(s);
}

TEST_F(DaemonLifeTest, SigtermEndsWhatDoesNotFinish) {
  Start("drain_limit_ms = 300\n");
  const ToySuspend s{.ids = ToyIds(1, 100)};
  {
    const Client client(Address());
    ASSERT_OK(client.Register());
    ASSERT_OK(client.Suspend(s));
    HalfSuspend half(client, {.expected_version = 1,
                              .operation_id = "next",
                              .tokens_kept = 100,
                              .ids = ToyIds(1, 200),
                              .rows_from = 100});
    Stop();
    EXPECT_THAT(FromGrpcStatus(half.writer->Finish()),
                ::testing::AnyOf(HasCode(StatusCode::kUnavailable),
                                 HasCode(StatusCode::kCancelled)));
  }
  Start();
  const Client client(Address());
  client.ExpectStored(s);
  EXPECT_EQ(client.Describe("s")->version(), 1);
  EXPECT_EQ(client.Stats().staged_records(), 0);
}

TEST_F(DaemonLifeTest, SigintEndsItToo) {
  Start();
  Stop(SIGINT);
}

TEST_F(DaemonLifeTest, KilledAndStartedAgain) {
  Start();
  std::vector<ToySuspend> stored;
  {
    const Client client(Address());
    ASSERT_OK(client.Register());
    for (uint32_t i = 0; i < 8; ++i) {
      stored.push_back({.session = "s" + std::to_string(i),
                        .ids = ToyIds(i, 60 + 17 * i),
                        .salt = i});
      ASSERT_OK(client.Suspend(stored.back()));
    }
    HalfSuspend half(client, {.session = "s0",
                              .expected_version = 1,
                              .operation_id = "next",
                              .tokens_kept = 60,
                              .ids = ToyIds(0, 500),
                              .rows_from = 60,
                              .salt = 0});
    Stop(SIGKILL, 128 + SIGKILL);
    half.writer->Finish();
  }
  Start();
  const Client client(Address());
  for (const ToySuspend& s : stored) {
    client.ExpectStored(s);
    EXPECT_EQ(client.Describe(s.session)->version(), 1);
  }
  EXPECT_EQ(client.Stats().sessions(), stored.size());
  EXPECT_EQ(client.Stats().staged_records(), 0);
  EXPECT_EQ(client.Stats().reserved_bytes(), 0);
  EXPECT_EQ(Torpor({"verify", "--deep"}).code, 0);
}

}  // namespace
}  // namespace torpor::e2e
