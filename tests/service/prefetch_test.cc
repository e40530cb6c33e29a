// SPDX-License-Identifier: Apache-2.0
//
// Prefetch through the daemon: a resume that follows it returns what it would
// have returned without, to the bit, and its receipt says who ran the tokens;
// whatever changes the session, or makes the window stale, leaves nothing held.

#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/service/prefetch_fixture.h"
#include "tests/store/raw_env.h"

namespace torpor::service {
namespace {

using absl::StatusCode;
using ::testing::HasSubstr;
using Stub = v1::SessionService::Stub;

struct Case {
  const char* name;
  v1::ReplayMode mode;
  uint64_t cut = 0;
  bool want_logits = false;
  double max_error = 0;
};

TEST_F(PrefetchTest, TheSameBitsAndTheSameAccount) {
  const std::vector<Case> cases = {
      {"exact", v1::REPLAY_MODE_EXACT},
      {"exact with logits", v1::REPLAY_MODE_EXACT, 0, true},
      {"exact at a cut", v1::REPLAY_MODE_EXACT, 101},
      {"bounded", v1::REPLAY_MODE_BOUNDED},
      {"bounded at a cut", v1::REPLAY_MODE_BOUNDED, 77},
      {"climbs", v1::REPLAY_MODE_BOUNDED, 0, false, 1e-12},
      {"snapshot", v1::REPLAY_MODE_SNAPSHOT},
      {"auto", v1::REPLAY_MODE_AUTO}};
  uint64_t used = 0;
  for (const char* model : {"w8", "w7"}) {
    Asleep(model, model, /*snapshot=*/true);
    for (const Case& c : cases) {
      for (const bool in_parts : {false, true}) {
        SCOPED_TRACE(
            absl::StrCat(model, " ", c.name, in_parts ? " parts" : ""));
        v1::BeginResumeHeader header;
        header.set_session(model);
        header.set_mode(c.mode);
        header.set_cut(c.cut);
        header.set_want_logits(c.want_logits);
        header.mutable_limits()->set_max_error(c.max_error);
        ASSERT_OK_AND_ASSIGN(const Woken want, ResumeBy(header, in_parts));

        ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(ReplayOf(header)));
        EXPECT_TRUE(answer.replaying()) << answer.reason();
        EXPECT_FALSE(answer.renewed());
        EXPECT_EQ(answer.version(), 1);
        EXPECT_EQ(answer.resume_at(), c.cut == 0 ? kLong : c.cut);
        EXPECT_EQ(answer.plan().mode(), want.begin.plan().mode());
        EXPECT_EQ(answer.plan().replay_start(),
                  want.begin.plan().replay_start());
        uint64_t row_bytes = 0;
        for (const auto& [slot, run] : want.window) {
          row_bytes += run.bytes.size();
        }
        EXPECT_EQ(answer.held_bytes(),
                  row_bytes + want.header->logits().size());
        uint64_t compact_bytes = 0;
        for (const auto& [slot, run] : want.compact) {
          compact_bytes += run.bytes.size();
        }
        EXPECT_EQ(answer.read_bytes(), compact_bytes);

        // Every other one comes while the replay may still run.
        if (in_parts) AwaitCount("held", used + 1);
        ASSERT_OK_AND_ASSIGN(const Woken got, ResumeBy(header, in_parts));
        EXPECT_EQ(Count("used"), ++used);
        EXPECT_EQ(HeldBytes(), 0);
        ExpectSameRows(got.window, want.window);
        ExpectSameRows(got.compact, want.compact);
        EXPECT_EQ(got.header->DebugString(), want.header->DebugString());
        ExpectAddsUp(*got.receipt);
        ExpectSameReceipt(*got.receipt, *want.receipt);
        EXPECT_EQ(got.receipt->rung() > 0, c.max_error > 0);

        // It was for one resume.
        ASSERT_OK_AND_ASSIGN(const Woken again, ResumeBy(header, in_parts));
        EXPECT_FALSE(again.receipt->prefetched());
        ExpectSameRows(again.window, want.window);
      }
    }
  }
  ExpectIdle();
}

// A prompt names the session and ends where it ends: the same cut and plan.
TEST_F(PrefetchTest, AResumeWithItsTokensTakesItToo) {
  Asleep("w8", "s", false);
  Hold("s");
  ASSERT_OK_AND_ASSIGN(const Woken shorter,
                       Resume(ExactOf("s"), Ids("w8", 100, 1)));
  EXPECT_FALSE(shorter.receipt->prefetched());
  ASSERT_OK_AND_ASSIGN(const Woken whole,
                       Resume(ExactOf("s"), Ids("w8", kLong + 1, 1)));
  EXPECT_TRUE(whole.receipt->prefetched());
  // Found by tokens alone it is no session's.
  Hold("s");
  v1::BeginResumeHeader by_tokens;
  by_tokens.set_model("w8");
  by_tokens.set_mode(v1::REPLAY_MODE_EXACT);
  ASSERT_OK_AND_ASSIGN(const Woken found,
                       Resume(by_tokens, Ids("w8", kLong, 1)));
  EXPECT_FALSE(found.receipt->prefetched());
  EXPECT_EQ(Count("used"), 1);
}

TEST_F(PrefetchTest, OtherPlansReplayThemselves) {
  Asleep("w8", "s", false);
  Hold("s");
  std::vector<v1::BeginResumeHeader> others(4, ExactOf("s"));
  others[0].set_mode(v1::REPLAY_MODE_BOUNDED);
  others[1].set_cut(kLong - 1);
  others[2].set_want_logits(true);
  others[3].mutable_limits()->set_max_error(0.5);
  for (const v1::BeginResumeHeader& other : others) {
    ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(other));
    EXPECT_FALSE(woken.receipt->prefetched()) << other.ShortDebugString();
    EXPECT_EQ(woken.header->logits().empty(), !other.want_logits());
  }
  // An engine that replays takes no window.
  ASSERT_OK(Resume(EngineResume("s")));
  EXPECT_EQ(Count("used"), 0);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(ExactOf("s")));
  EXPECT_TRUE(woken.receipt->prefetched());
}

TEST_F(PrefetchTest, WhatChangesTheSessionDropsItsWindow) {
  Engine engine = Asleep("w8", "s", false);
  Asleep("w8", "other", false);
  uint64_t cancelled = 0;
  const auto dropped = [&](const char* by) {
    EXPECT_EQ(Count("cancelled"), ++cancelled) << by;
    EXPECT_EQ(HeldBytes(), 0) << by;
  };
  Hold("s");
  engine.Append(Ids("w8", 30, 2));
  ASSERT_OK(engine.Sleep(client_.get(), "s", kToyBlock, false));
  dropped("a suspend");
  ASSERT_OK_AND_ASSIGN(const Woken longer, Resume(ExactOf("s")));
  EXPECT_EQ(longer.receipt->version(), 2);
  EXPECT_FALSE(longer.receipt->prefetched());

  Hold("s");
  v1::RewindRequest rewind;
  rewind.set_session("s");
  rewind.set_expected_version(2);
  rewind.set_operation_id("rewind");
  rewind.set_at(100);
  ASSERT_OK(Ask(sessions(), &Stub::Rewind, rewind));
  dropped("a rewind");

  Hold("s");
  v1::ForkRequest fork;
  fork.set_source("other");
  fork.set_target("s");
  fork.set_expected_version(3);
  fork.set_operation_id("fork");
  ASSERT_OK(Ask(sessions(), &Stub::Fork, fork));
  dropped("a fork over it");

  Hold("s");
  // One that fails changes nothing.
  v1::DeleteRequest erase;
  erase.set_session("s");
  erase.set_expected_version(3);
  erase.set_operation_id("rm");
  EXPECT_THAT(Ask(sessions(), &Stub::Delete, erase),
              HasCode(StatusCode::kAborted));
  EXPECT_GT(HeldBytes(), 0);
  erase.set_expected_version(4);
  ASSERT_OK(Ask(sessions(), &Stub::Delete, erase));
  dropped("a delete");
  EXPECT_THAT(Prefetch(ReplayOf(ExactOf("s"))), HasCode(StatusCode::kNotFound));
  // What leaves the session as it is leaves the window.
  Hold("other");
  v1::TouchRequest touch;
  touch.set_session("other");
  (*touch.mutable_labels())["a"] = "b";
  ASSERT_OK(Ask(sessions(), &Stub::Touch, touch));
  ASSERT_OK_AND_ASSIGN(const Woken touched, Resume(ExactOf("other")));
  EXPECT_TRUE(touched.receipt->prefetched());
  ExpectIdle();
}

TEST_F(PrefetchTest, ItsTimeEnds) {
  Asleep("w8", "s", false);
  v1::PrefetchRequest request = ReplayOf(ExactOf("s"));
  request.set_hold_seconds(1);
  ASSERT_OK(Prefetch(request));
  AwaitCount("expired", 1);
  EXPECT_EQ(HeldBytes(), 0);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(ExactOf("s")));
  EXPECT_FALSE(woken.receipt->prefetched());
  ExpectIdle();
}

TEST_F(PrefetchTest, ASecondOneRenews) {
  Asleep("w8", "s", false);
  Hold("s");
  ASSERT_OK_AND_ASSIGN(const auto renewed, Prefetch(ReplayOf(ExactOf("s"))));
  EXPECT_TRUE(renewed.renewed());
  EXPECT_TRUE(renewed.replaying());
  EXPECT_GT(renewed.held_bytes(), 0);
  EXPECT_GT(renewed.held_until(), 0);
  v1::PrefetchRequest bounded = ReplayOf(ExactOf("s"));
  bounded.set_mode(v1::REPLAY_MODE_BOUNDED);
  ASSERT_OK_AND_ASSIGN(const auto replaced, Prefetch(bounded));
  EXPECT_FALSE(replaced.renewed());
  EXPECT_EQ(Count("cancelled"), 1);
}

TEST_F(PrefetchTest, ReadingAloneHoldsNothing) {
  Asleep("w8", "s", false);
  v1::PrefetchRequest request;
  request.set_session("s");
  ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(request));
  EXPECT_GT(answer.read_bytes(), 0);
  EXPECT_FALSE(answer.replaying());
  EXPECT_EQ(answer.reason(), "");
  EXPECT_EQ(answer.held_bytes(), 0);
  EXPECT_EQ(answer.held_until(), 0);
  EXPECT_FALSE(answer.has_plan());
  AwaitCount("read", 1);
  ExpectIdle();
}

TEST_F(PrefetchTest, AModelThatItsEngineReplaysIsReadAlone) {
  ToySuspend toy{.session = "toy", .ids = ToyIds(1, 50)};
  ASSERT_OK(Suspend(toy));
  ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(ReplayOf(ExactOf("toy"))));
  EXPECT_FALSE(answer.replaying());
  EXPECT_THAT(answer.reason(), HasSubstr("engine_replays"));
  EXPECT_EQ(answer.read_bytes(), 50 * (kToyRowBytes[0] + kToyRowBytes[1]));
  AwaitCount("read", 1);
  EXPECT_EQ(Count("refused"), 1);
  ExpectStored(toy, 1);
}

TEST_F(PrefetchTest, WhatAResumeWouldRefuseIsRefused) {
  Asleep("w8", "s", false);
  const auto refused =
      [&](const std::function<void(v1::PrefetchRequest*)>& by) {
        v1::PrefetchRequest request = ReplayOf(ExactOf("s"));
        by(&request);
        return Prefetch(request).status();
      };
  EXPECT_THAT(refused([](auto* r) { r->clear_session(); }),
              HasStatus(StatusCode::kInvalidArgument, "session"));
  EXPECT_THAT(refused([](auto* r) { r->set_session("nobody"); }),
              HasStatus(StatusCode::kNotFound, "nobody"));
  EXPECT_THAT(refused([](auto* r) { r->set_version(7); }),
              HasCode(StatusCode::kAborted));
  EXPECT_THAT(refused([](auto* r) { r->set_cut(kLong + 2); }),
              HasStatus(StatusCode::kInvalidArgument, "152"));
  EXPECT_THAT(refused([](auto* r) { r->set_mode(v1::REPLAY_MODE_SNAPSHOT); }),
              HasStatus(StatusCode::kFailedPrecondition, "snapshot"));
  EXPECT_THAT(refused([](auto* r) { r->set_mode(v1::REPLAY_MODE_COLD); }),
              HasStatus(StatusCode::kFailedPrecondition, "allow_cold"));
  EXPECT_THAT(
      refused([](auto* r) { r->set_hold_seconds(601); }),
      HasStatus(StatusCode::kInvalidArgument, "prefetch.hold_limit_seconds"));
  EXPECT_EQ(Count("asked"), 0);
  // Cold, where it is allowed, has nothing to do ahead.
  v1::PrefetchRequest cold = ReplayOf(ExactOf("s"));
  cold.set_mode(v1::REPLAY_MODE_COLD);
  cold.mutable_limits()->set_allow_cold(true);
  ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(cold));
  EXPECT_FALSE(answer.replaying());
  EXPECT_THAT(answer.reason(), HasSubstr("no window"));
  EXPECT_EQ(answer.read_bytes(), 0);
}

// Rows that turned bad on disk: the prefetch meets them first and keeps
// nothing; the resume says what it would have said.
TEST_F(PrefetchTest, DamageIsMetAndReportedByTheResume) {
  Asleep("w8", "s", false);
  Asleep("w7", "t", false);
  Stop();
  {
    store::RawEnv raw(dir().File("data"));
    const store::RecordNumber record = raw.Chain(raw.Manifest({0, "s"}).tip)[1];
    const store::RecordHeader header = raw.Header(record);
    const store::SectionEntry* rows = header.Find(store::SectionKind::kRows, 0);
    ASSERT_NE(rows, nullptr);
    raw.FlipRecordBit(record, rows->offset, 3);
  }
  Reconnect();
  ASSERT_OK_AND_ASSIGN(const auto answer, Prefetch(ReplayOf(ExactOf("s"))));
  EXPECT_TRUE(answer.replaying());
  const absl::Status joined = Resume(ExactOf("s")).status();
  EXPECT_THAT(joined, HasCode(StatusCode::kDataLoss));
  AwaitCount("failed", 1);
  EXPECT_EQ(Count("held"), 0);
  EXPECT_EQ(Count("used"), 0);
  // Known by now, it is refused at once; what is sound still wakes.
  EXPECT_THAT(Prefetch(ReplayOf(ExactOf("s"))), HasCode(StatusCode::kDataLoss));
  v1::BeginResumeHeader shorter = ExactOf("s");
  shorter.mutable_limits()->set_allow_shorter(true);
  v1::PrefetchRequest sound = ReplayOf(shorter);
  ASSERT_OK_AND_ASSIGN(const auto held, Prefetch(sound));
  EXPECT_EQ(held.resume_at(), kToyBlock);
  ASSERT_OK_AND_ASSIGN(const Woken woken, Resume(shorter));
  EXPECT_TRUE(woken.receipt->prefetched());
  EXPECT_EQ(woken.receipt->recomputed_tokens(), kLong + 1 - kToyBlock);
  Hold("t");
  ASSERT_OK_AND_ASSIGN(const Woken other, Resume(ExactOf("t")));
  EXPECT_TRUE(other.receipt->prefetched());
  ExpectIdle();
}

TEST_F(PrefetchTest, ADrainDropsWhatIsHeld) {
  Asleep("w8", "s", false);
  Hold("s");
  server().backend().Drain();
  EXPECT_EQ(HeldBytes(), 0);
  EXPECT_EQ(Count("cancelled"), 1);
  EXPECT_THAT(Prefetch(ReplayOf(ExactOf("s"))),
              HasCode(StatusCode::kUnavailable));
}

TEST_F(PrefetchTest, ManyAtOnceWakeToTheirOwnBits) {
  constexpr int kSessions = 6;
  std::vector<Woken> want(kSessions);
  for (int i = 0; i < kSessions; ++i) {
    const std::string session = absl::StrCat("s", i);
    Engine engine = NewEngine(i % 2 == 0 ? "w8" : "w7");
    engine.Start({});
    engine.Append(Ids(i % 2 == 0 ? "w8" : "w7", 60 + 7 * i, 10 + i));
    ASSERT_OK(engine.Sleep(client_.get(), session, kToyBlock, false));
    ASSERT_OK_AND_ASSIGN(want[i], Resume(ExactOf(session)));
  }
  std::vector<std::thread> threads;
  std::vector<absl::StatusOr<Woken>> got(kSessions, absl::UnknownError(""));
  for (int i = 0; i < kSessions; ++i) {
    threads.emplace_back([&, i] {
      const v1::BeginResumeHeader header = ExactOf(absl::StrCat("s", i));
      const auto answer = Prefetch(ReplayOf(header));
      got[i] = answer.ok() ? Resume(header) : answer.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kSessions; ++i) {
    ASSERT_OK(got[i]);
    EXPECT_TRUE(got[i]->receipt->prefetched()) << i;
    ExpectSameRows(got[i]->window, want[i].window);
  }
  ExpectIdle();
}

}  // namespace
}  // namespace torpor::service
