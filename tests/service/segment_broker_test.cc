// SPDX-License-Identifier: Apache-2.0

#include "service/segment_broker.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sodium.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "service/fd_socket.h"
#include "service/segment_link.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
using ::torpor::testing::HasCode;
using ::torpor::testing::HasStatus;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr std::chrono::seconds kPatience{60};

class SegmentBrokerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_GE(sodium_init(), 0);
    Start({.segment_bytes = kMiB, .max_bytes = 3 * kMiB});
  }
  void Start(const SegmentOptions& options) {
    broker_.reset();
    broker_ = std::make_unique<SegmentBroker>(options);
    ASSERT_OK(broker_->Listen(Path()));
  }
  std::string Path() const { return dir_.File("s"); }
  SegmentBroker::Made Make(std::atomic<int>* lost = nullptr,
                           uint64_t bytes = kMiB,
                           const SegmentBroker::Keeping& keeping = {}) {
    auto made = broker_->Make(
        bytes, Flow::kToClient,
        [lost](ServerSegment&) {
          if (lost != nullptr) lost->fetch_add(1);
        },
        keeping);
    EXPECT_OK(made.status());
    return *std::move(made);
  }
  // One that stays when its owner ends, and the client's hold on it.
  struct Kept {
    SegmentBroker::Made made;
    std::unique_ptr<SegmentLink> link;
  };
  Kept MakeKept(uint64_t bytes = kMiB) {
    Kept kept{Make(nullptr, bytes, {.keep = true}), nullptr};
    auto link = Take(ChoiceOf(kept.made));
    EXPECT_OK(link.status());
    kept.link = *std::move(link);
    return kept;
  }
  static v1::DataPlaneChoice ChoiceOf(const SegmentBroker::Made& made) {
    v1::DataPlaneChoice choice;
    choice.set_nonce(made.nonce);
    choice.set_segment_bytes(made.segment->memory().bytes());
    return choice;
  }
  absl::StatusOr<std::unique_ptr<SegmentLink>> Take(
      const v1::DataPlaneChoice& choice) {
    return SegmentLink::Take(Path(), choice, Flow::kToClient);
  }
  template <typename Condition>
  static bool Eventually(const Condition& holds) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (!holds()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return true;
  }
  static size_t OpenDescriptors() {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++n;
    }
    return n;
  }

  const testing::TempDir dir_;
  std::unique_ptr<SegmentBroker> broker_;
};

TEST_F(SegmentBrokerTest, HandsASegmentOverOnce) {
  const auto made = Make();
  ASSERT_OK_AND_ASSIGN(const auto link, Take(ChoiceOf(made)));
  made.segment->memory().writable()[7] = 42;
  ASSERT_OK_AND_ASSIGN(const auto byte, link->memory().Read(7, 1));
  EXPECT_EQ(byte[0], 42);
  EXPECT_FALSE(link->lost());
  // A nonce is good once, whatever became of the segment.
  EXPECT_THAT(Take(ChoiceOf(made)), HasCode(StatusCode::kNotFound));
  EXPECT_FALSE(made.segment->lost());
}

TEST_F(SegmentBrokerTest, RefusesAWrongNonce) {
  const auto made = Make();
  v1::DataPlaneChoice choice = ChoiceOf(made);
  (*choice.mutable_nonce())[3] ^= 1;
  EXPECT_THAT(Take(choice), HasCode(StatusCode::kNotFound));
  EXPECT_OK(Take(ChoiceOf(made)));
}

TEST_F(SegmentBrokerTest, ANonceThatComesInPartsIsOne) {
  const auto made = Make();
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, ConnectUnix(FdSocketPath(Path())));
  for (const char c : made.nonce) {
    ASSERT_EQ(send(fd.get(), &c, 1, 0), 1);
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_OK_AND_ASSIGN(const DescriptorAnswer answer,
                       ReceiveDescriptors(fd.get(), 2, kPatience));
  EXPECT_EQ(answer.code, 0);
}

TEST_F(SegmentBrokerTest, RefusesAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "wants root";
  const auto made = Make();
  // What keeps others out before anything else.
  struct stat st = {};
  ASSERT_EQ(stat(FdSocketPath(Path()).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600);
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(FdSocketPath(Path()).c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65534) != 0 || setuid(65534) != 0) _exit(100);
    _exit(static_cast<int>(Take(ChoiceOf(made)).status().code()));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status),
            static_cast<int>(StatusCode::kPermissionDenied));
  // The nonce was not spent on it.
  EXPECT_OK(Take(ChoiceOf(made)));
}

TEST_F(SegmentBrokerTest, TakesUsersOfItsGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "wants root";
  constexpr gid_t kGroup = 4321;
  ASSERT_EQ(chmod(dir_.path().c_str(), 0755), 0);
  Start({.segment_bytes = kMiB, .max_bytes = 3 * kMiB, .group = kGroup});
  struct stat st = {};
  ASSERT_EQ(stat(FdSocketPath(Path()).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0660);
  EXPECT_EQ(st.st_gid, kGroup);
  // What Take says to a process of these groups.
  const auto taken_by = [&](gid_t own, const std::vector<gid_t>& further) {
    const auto made = Make();
    const pid_t child = fork();
    if (child == 0) {
      if (setgroups(further.size(), further.data()) != 0 || setgid(own) != 0 ||
          setuid(65534) != 0) {
        _exit(100);
      }
      _exit(static_cast<int>(Take(ChoiceOf(made)).status().code()));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return static_cast<StatusCode>(WEXITSTATUS(status));
  };
  EXPECT_EQ(taken_by(kGroup, {}), StatusCode::kOk);
  EXPECT_EQ(taken_by(65534, {7, kGroup, 9}), StatusCode::kOk);
  // The file's mode keeps others out; without it, the broker does.
  EXPECT_EQ(taken_by(65534, {7, 9}), StatusCode::kUnavailable);
  ASSERT_EQ(chmod(FdSocketPath(Path()).c_str(), 0666), 0);
  EXPECT_EQ(taken_by(65534, {7, 9}), StatusCode::kPermissionDenied);
  EXPECT_EQ(taken_by(65534, {}), StatusCode::kPermissionDenied);
}

TEST_F(SegmentBrokerTest, AConnectionThatClosesLosesTheSegment) {
  std::atomic<int> lost{0};
  const auto made = Make(&lost);
  Take(ChoiceOf(made)).value().reset();
  EXPECT_TRUE(Eventually([&] { return lost.load() == 1; }));
  EXPECT_TRUE(made.segment->lost());
}

TEST_F(SegmentBrokerTest, ASegmentThatNobodyTakesIsLost) {
  Start({.segment_bytes = kMiB, .take_limit = milliseconds(20)});
  std::atomic<int> lost{0};
  const auto made = Make(&lost);
  EXPECT_TRUE(Eventually([&] { return lost.load() == 1; }));
  EXPECT_THAT(Take(ChoiceOf(made)), HasCode(StatusCode::kNotFound));
}

TEST_F(SegmentBrokerTest, AFreedSegmentClosesItsConnection) {
  std::atomic<int> lost{0};
  auto made = Make(&lost);
  ASSERT_OK_AND_ASSIGN(const auto link, Take(ChoiceOf(made)));
  made.segment.reset();
  EXPECT_TRUE(Eventually([&] { return link->lost(); }));
  EXPECT_EQ(lost.load(), 0);
  EXPECT_EQ(broker_->stats().segments, 0);
  EXPECT_EQ(broker_->stats().bytes, 0);
}

TEST_F(SegmentBrokerTest, KeepsWithinItsBudget) {
  std::vector<SegmentBroker::Made> made;
  for (int i = 0; i < 3; ++i) made.push_back(Make());
  EXPECT_THAT(broker_->Make(1, Flow::kToServer, nullptr, {}),
              HasStatus(StatusCode::kResourceExhausted, "too many segments"));
  made.pop_back();
  // The smallest counts 1 MiB all the same.
  made.push_back(Make(nullptr, 1));
  EXPECT_EQ(broker_->stats().segments, 3);
  EXPECT_EQ(broker_->stats().bytes, 3 * kMiB);
}

TEST_F(SegmentBrokerTest, AKeptSegmentServesOneOwnerAfterAnother) {
  Kept kept = MakeKept();
  const std::string first_id = kept.made.segment->id();
  std::atomic<int> lost{0};
  for (uint8_t call = 1; call <= 3; ++call) {
    kept.made.segment.reset();
    // A smaller one would do.
    kept.made = Make(&lost, 1, {.keep = call < 3, .kept = kept.link->nonce()});
    EXPECT_THAT(kept.made.nonce, ::testing::IsEmpty());
    EXPECT_NE(kept.made.segment->id(), first_id);
    kept.made.segment->memory().writable()[7] = call;
    ASSERT_OK_AND_ASSIGN(const auto byte, kept.link->memory().Read(7, 1));
    EXPECT_EQ(byte[0], call);
    EXPECT_EQ(broker_->stats().segments, 1);
    EXPECT_FALSE(kept.link->lost());
  }
  // The last owner was not asked to keep it.
  kept.made.segment.reset();
  EXPECT_TRUE(Eventually([&] { return kept.link->lost(); }));
  EXPECT_EQ(broker_->stats().segments, 0);
  EXPECT_EQ(lost.load(), 0);
}

TEST_F(SegmentBrokerTest, TheClientOfAKeptSegmentIsWatchedAllTheTime) {
  // Between two owners.
  Kept idle = MakeKept();
  idle.made.segment.reset();
  EXPECT_EQ(broker_->stats().segments, 1);
  idle.link.reset();
  EXPECT_TRUE(Eventually([&] { return broker_->stats().segments == 0; }));
  // Under its second owner, which alone is told.
  Kept used = MakeKept();
  used.made.segment.reset();
  std::atomic<int> lost{0};
  used.made = Make(&lost, kMiB, {.keep = true, .kept = used.link->nonce()});
  EXPECT_THAT(used.made.nonce, ::testing::IsEmpty());
  used.link.reset();
  EXPECT_TRUE(Eventually([&] { return lost.load() == 1; }));
  EXPECT_TRUE(used.made.segment->lost());
  used.made.segment.reset();
  EXPECT_TRUE(Eventually([&] { return broker_->stats().segments == 0; }));
}

TEST_F(SegmentBrokerTest, WhatCannotServeAsAKeptSegmentIsNone) {
  Start({.segment_bytes = 4 * kMiB, .max_bytes = 64 * kMiB});
  const Kept used = MakeKept();
  Kept idle = MakeKept();
  idle.made.segment.reset();
  Kept gone{Make(), nullptr};
  ASSERT_OK_AND_ASSIGN(gone.link, Take(ChoiceOf(gone.made)));
  gone.made.segment.reset();
  const auto fresh = [&](const std::string& kept, uint64_t bytes, Flow flow) {
    const auto made = broker_->Make(bytes, flow, nullptr, {.kept = kept});
    EXPECT_OK(made.status());
    return !made->nonce.empty() && made->segment->memory().bytes() >= bytes;
  };
  // That another stream uses, of another size, of the other way, that was not
  // to be kept, that nobody knows.
  EXPECT_TRUE(fresh(used.link->nonce(), kMiB, Flow::kToClient));
  EXPECT_TRUE(fresh(idle.link->nonce(), 2 * kMiB, Flow::kToClient));
  EXPECT_TRUE(fresh(idle.link->nonce(), kMiB, Flow::kToServer));
  EXPECT_TRUE(fresh(gone.link->nonce(), kMiB, Flow::kToClient));
  EXPECT_TRUE(fresh(std::string(16, 'x'), kMiB, Flow::kToClient));
  EXPECT_TRUE(fresh("x", kMiB, Flow::kToClient));
  // It stands all the same.
  EXPECT_FALSE(fresh(idle.link->nonce(), kMiB, Flow::kToClient));
}

TEST_F(SegmentBrokerTest, KeptSegmentsGoInTimeAndForRoom) {
  std::vector<Kept> kept;
  for (int i = 0; i < 3; ++i) {
    kept.push_back(MakeKept());
    kept.back().made.segment.reset();
    // Due one after the other.
    std::this_thread::sleep_for(milliseconds(2));
  }
  EXPECT_EQ(broker_->stats().bytes, 3 * kMiB);
  {
    // The first kept is the first to go.
    const auto made = Make();
    EXPECT_TRUE(Eventually([&] { return kept[0].link->lost(); }));
    EXPECT_FALSE(kept[1].link->lost());
    EXPECT_FALSE(kept[2].link->lost());
    EXPECT_EQ(broker_->stats().bytes, 3 * kMiB);
  }
  // Segments that are used never do.
  const auto second = Make(nullptr, kMiB, {.kept = kept[1].link->nonce()});
  const auto third = Make(nullptr, kMiB, {.kept = kept[2].link->nonce()});
  const auto fourth = Make();
  EXPECT_THAT(broker_->Make(1, Flow::kToServer, nullptr, {}),
              HasStatus(StatusCode::kResourceExhausted, "too many segments"));

  Start({.segment_bytes = kMiB, .keep_limit = milliseconds(20)});
  Kept late = MakeKept();
  late.made.segment.reset();
  EXPECT_TRUE(Eventually([&] { return late.link->lost(); }));
  EXPECT_EQ(broker_->stats().segments, 0);
}

TEST_F(SegmentBrokerTest, RefusesWhenItIsOffOrWithoutASocket) {
  SegmentBroker off({.enabled = false});
  ASSERT_OK(off.Listen(dir_.File("off")));
  EXPECT_FALSE(std::filesystem::exists(FdSocketPath(dir_.File("off"))));
  EXPECT_THAT(off.Make(1, Flow::kToClient, nullptr, {}),
              HasStatus(StatusCode::kUnavailable, "plane.shared_memory"));
  SegmentBroker none({});
  EXPECT_THAT(none.Make(1, Flow::kToClient, nullptr, {}),
              HasStatus(StatusCode::kUnavailable, "descriptor socket"));
}

TEST_F(SegmentBrokerTest, PathsAreTakenAndLeftLikeThoseOfTheMainSocket) {
  SegmentBroker second({});
  EXPECT_THAT(second.Listen(Path()),
              HasStatus(StatusCode::kFailedPrecondition, "another daemon"));
  broker_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  // A stale one, as a killed daemon leaves it.
  { ASSERT_OK(ListenUnix(FdSocketPath(Path())).status()); }
  ASSERT_TRUE(std::filesystem::exists(FdSocketPath(Path())));
  Start({});
  EXPECT_OK(Take(ChoiceOf(Make())));
  // What is no socket is nobody's to remove.
  std::ofstream(FdSocketPath(dir_.File("file"))) << "text";
  EXPECT_THAT(second.Listen(dir_.File("file")),
              HasStatus(StatusCode::kFailedPrecondition, "something else"));
  EXPECT_THAT(second.Listen(dir_.File(std::string(200, 'x'))),
              HasCode(StatusCode::kInvalidArgument));
}

TEST_F(SegmentBrokerTest, ConnectionsThatSayNothingOrNonsenseCostNothing) {
  const size_t before = OpenDescriptors();
  {
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 30; ++i) {
      ASSERT_OK_AND_ASSIGN(UniqueFd fd, ConnectUnix(FdSocketPath(Path())));
      if (i % 2 == 0) send(fd.get(), "nonsense", i % 8, 0);
      idle.push_back(std::move(fd));
    }
    EXPECT_OK(Take(ChoiceOf(Make())));
  }
  for (int i = 0; i < 30; ++i) {
    ASSERT_OK_AND_ASSIGN(const UniqueFd fd, ConnectUnix(FdSocketPath(Path())));
    const std::string nonsense(100, 'x');
    send(fd.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; }));
}

TEST_F(SegmentBrokerTest, OneHundredClientsLeaveNothing) {
  std::atomic<int> lost{0};
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    const auto made = Make(i % 2 == 0 ? &lost : nullptr);
    ASSERT_OK_AND_ASSIGN(const auto link, Take(ChoiceOf(made)));
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; }));
  EXPECT_EQ(broker_->stats().segments, 0);
}

TEST_F(SegmentBrokerTest, AnswersNobodyAfterStop) {
  const auto made = Make();
  const auto taken = Make();
  ASSERT_OK_AND_ASSIGN(const auto link, Take(ChoiceOf(taken)));
  Kept kept = MakeKept();
  kept.made.segment.reset();
  broker_->Stop();
  EXPECT_TRUE(link->lost());
  EXPECT_TRUE(kept.link->lost());
  EXPECT_FALSE(Take(ChoiceOf(made)).ok());
  EXPECT_THAT(broker_->Make(1, Flow::kToClient, nullptr, {}),
              HasCode(StatusCode::kUnavailable));
}

TEST(SegmentOptionsTest, NamesWhatIsWrong) {
  EXPECT_OK(SegmentOptions().Validate());
  EXPECT_THAT(SegmentOptions({.segment_bytes = 100}).Validate(),
              HasStatus(StatusCode::kInvalidArgument, "plane.segment_bytes"));
  EXPECT_THAT(
      SegmentOptions({.segment_bytes = 8 * kMiB, .max_bytes = kMiB}).Validate(),
      HasStatus(StatusCode::kInvalidArgument, "plane.max_bytes"));
  EXPECT_THAT(SegmentOptions({.keep_limit = milliseconds(0)}).Validate(),
              HasStatus(StatusCode::kInvalidArgument, "plane.keep_limit_ms"));
  EXPECT_OK(SegmentOptions({.device_bytes = 0}).Validate());
  EXPECT_OK(SegmentOptions({.device_bytes = 2 * kMiB}).Validate());
  EXPECT_THAT(SegmentOptions({.device_bytes = kMiB}).Validate(),
              HasStatus(StatusCode::kInvalidArgument, "plane.device_bytes"));
}

}  // namespace
}  // namespace torpor::service
