// SPDX-License-Identifier: Apache-2.0
//
// Sessions of the laboratory with a model that looks back at token ids: pieces,
// wakes and steps give the logits of one run at once, to the bit.

#include "bench/lab_session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/families.h"
#include "replay/planner.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::bench {
namespace {

using Logits = std::vector<float>;

class LabSessionTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kTokens = 130;

  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(
        model_, replay::LoadModel(
                    std::string(TORPOR_ORACLES_DIR) + "/deepseek_v41/plain",
                    {.isa = kernels::AvailableIsas().front()}));
    // Without it nothing here tells a session that forgets from one that knows.
    ASSERT_EQ(model_->id_lookback(), 3);
    for (uint64_t i = 0; i < kTokens; ++i) {
      text_.push_back(
          static_cast<uint32_t>(random_.Between(0, model_->vocab_size() - 1)));
    }
    LabSession once(model_.get());
    ASSERT_OK_AND_ASSIGN(truth_, once.Run(text_, kTokens, 0));
  }

  // Of rows [begin, end) of the run at once.
  Logits Truth(uint64_t begin, uint64_t end) const {
    const uint64_t vocab = model_->vocab_size();
    return {truth_.begin() + static_cast<ptrdiff_t>(begin * vocab),
            truth_.begin() + static_cast<ptrdiff_t>(end * vocab)};
  }

  // The text before `cut` in two pieces.
  absl::StatusOr<LabSession> InTwo(uint64_t cut) {
    LabSession session(model_.get());
    const uint64_t half = random_.Between(1, cut - 1);
    TORPOR_ASSIGN_OR_RETURN(const Logits first, session.Run(text_, half, 0));
    EXPECT_TRUE(kernels::SameBits(first, Truth(0, half)));
    TORPOR_ASSIGN_OR_RETURN(const Logits second, session.Run(text_, cut, half));
    EXPECT_TRUE(kernels::SameBits(second, Truth(half, cut)))
        << "pieces of " << half << " and " << cut - half;
    return session;
  }

  absl::StatusOr<LabSession> WakeExact(const Asleep& asleep) {
    TORPOR_ASSIGN_OR_RETURN(
        const replay::ReplayPlan plan,
        replay::PlanReplay(model_->layout(), {.resume_at = asleep.at}));
    TORPOR_ASSIGN_OR_RETURN(
        const replay::WindowState window,
        Rebuild(model_.get(), plan, text_, asleep.rows.get()));
    EXPECT_EQ(window.slots, asleep.window.slots);
    return LabSession::Wake(model_.get(), text_, asleep.rows.get(), window);
  }

  testing::Random random_;
  std::unique_ptr<replay::Model> model_;
  std::vector<uint32_t> text_;
  Logits truth_;
};

TEST_F(LabSessionTest, AWokenSessionRunsOnAsIfItNeverSlept) {
  for (int i = 0; i < 8; ++i) {
    const uint64_t cut = random_.Between(2, kTokens - 8);
    SCOPED_TRACE(cut);
    ASSERT_OK_AND_ASSIGN(const LabSession session, InTwo(cut));
    ASSERT_OK_AND_ASSIGN(const Asleep asleep, session.Suspend());
    ASSERT_OK_AND_ASSIGN(LabSession woken, WakeExact(asleep));
    EXPECT_EQ(woken.at(), cut);
    // Shorter than the look-back, so that the second reaches behind the wake.
    for (const uint64_t end : {cut + 1, cut + 3, cut + 8}) {
      const uint64_t begin = woken.at();
      ASSERT_OK_AND_ASSIGN(const Logits got, woken.Run(text_, end, begin));
      EXPECT_TRUE(kernels::SameBits(got, Truth(begin, end)))
          << "from " << begin;
    }
  }
}

TEST_F(LabSessionTest, StepsOfManySessionsTogetherGiveTheSame) {
  const uint64_t early = random_.Between(2, 40);
  const uint64_t late = random_.Between(80, kTokens - 8);
  SCOPED_TRACE(early);
  SCOPED_TRACE(late);
  std::vector<LabSession> sessions;
  for (const uint64_t cut : {early, late}) {
    ASSERT_OK_AND_ASSIGN(LabSession session, InTwo(cut));
    ASSERT_OK_AND_ASSIGN(const Asleep asleep, session.Suspend());
    ASSERT_OK_AND_ASSIGN(LabSession woken, WakeExact(asleep));
    sessions.push_back(std::move(session));
    sessions.push_back(std::move(woken));
  }
  for (int step = 0; step < 8; ++step) {
    std::vector<replay::Segment> batch;
    for (LabSession& session : sessions) {
      batch.push_back(session.Step(text_[session.at()]));
    }
    std::vector<Logits> logits;
    ASSERT_OK(model_->Forward(batch, {}, &logits));
    for (size_t i = 0; i < sessions.size(); ++i) {
      const uint64_t at = sessions[i].at();
      EXPECT_TRUE(kernels::SameBits(logits[i], Truth(at - 1, at)))
          << "session " << i << " at " << at;
    }
  }
}

TEST_F(LabSessionTest, AWakeWantsTheWholeText) {
  LabSession session(model_.get());
  ASSERT_OK(session.Run(text_, 40, 40).status());
  ASSERT_OK_AND_ASSIGN(const Asleep asleep, session.Suspend());
  EXPECT_THAT(LabSession::Wake(model_.get(), std::span(text_).first(39),
                               asleep.rows.get(), asleep.window),
              testing::HasStatus(absl::StatusCode::kInvalidArgument,
                                 "wake at 40: got the ids of 39 tokens"));
}

}  // namespace
}  // namespace torpor::bench
