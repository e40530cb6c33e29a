// SPDX-License-Identifier: Apache-2.0
//
// Store and planner as Lease::Begin joins them: whatever was suspended resumes,
// and reuses all but what the plan replays. Random layouts, blocks, lengths,
// histories, cuts and modes over a real store.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/replay/layout_builder.h"
#include "tests/replay/random_cases.h"
#include "tests/service/random_resumes.h"
#include "tests/service/resume_fixture.h"
#include "tests/store/store_fixture.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::service {
namespace {

using replay::ModelLayout;
using testing::Random;

constexpr uint64_t kCases = 10'000;
constexpr uint64_t kCasesPerModel = 4;
constexpr uint64_t kMaxTokens = 6000;

class ResumePropertyTest : public ResumeTest {
 protected:
  // A history of 1 to 4 versions, asked for between them and at its end.
  void RunCase(Random& random, StoredSession* session);
};

void ResumePropertyTest::RunCase(Random& random, StoredSession* session) {
  const RegisteredModel& model = session->model();
  // Many blocks are dear; a few such sessions will do.
  const uint64_t max =
      random.OneIn(12) ? kMaxTokens
                       : std::min<uint64_t>(kMaxTokens, 40 * model.block_size);
  const bool with_spans = random.OneIn(5);
  const bool sleeps_often = random.OneIn(2);
  for (uint64_t v = random.Between(sleeps_often ? 2 : 1, 4); v > 0; --v) {
    std::optional<replay::ReplayPlan> woken;
    if (session->n_tokens() > 0 && (sleeps_often || random.OneIn(3))) {
      woken = Resume(*session, sleeps_often ? BoundedWake(random, *session)
                                            : RandomQuestion(random, *session));
      if (HasFailure()) return;
    }
    if (session->n_tokens() > 0 && random.OneIn(12)) {
      const uint64_t at =
          LegalCut(session->tokens(), random.Between(1, session->n_tokens()));
      if (at > 0) {
        ASSERT_OK(session->Rewind(at));
        continue;
      }
    }
    StoredSession::Step step = RandomStep(random, *session, max);
    if (woken.has_value() && (sleeps_often || random.OneIn(2))) {
      // The engine goes on from the wake, over windows that it left.
      step.tokens_kept = woken->resume_at;
      step.n_new =
          random.Between(0, random.OneIn(3) ? 2 * model.block_size : 40);
      step.kv_len = (step.tokens_kept + step.n_new -
                     random.Between(0, std::min(step.n_new, kMaxLookahead)));
      if (!woken->exact) step.floor = woken->floor();
    }
    if (with_spans && step.n_new > 0) {
      step.spans = RandomSpans(random, step.tokens_kept,
                               step.tokens_kept + step.n_new, step.kv_len);
    }
    auto receipt = session->Suspend(step);
    ASSERT_OK(receipt);
    EXPECT_EQ(receipt->kv_len, session->kv_len());
    EXPECT_EQ(receipt->n_tokens, session->n_tokens());
    if (receipt->row_bytes_copied > 0) ++n_copied_;
  }
  // What no session names any more is not found.
  ASSERT_OK(store::Settle(store_.get()));
  for (int i = 0; i < 2 && !HasFailure(); ++i) {
    Resume(*session, RandomQuestion(random, *session));
  }
}

TEST_F(ResumePropertyTest, AllIsReusedButWhatThePlanReplays) {
  std::shared_ptr<const RegisteredModel> model;
  for (uint64_t i = 0; i < kCases; ++i) {
    Random random(i);
    if (i % kCasesPerModel == 0) {
      const ModelLayout layout =
          random.OneIn(3) ? UniformLayout(random) : MixedLayout(random);
      model = Register(layout, RandomBlock(random, layout));
    }
    ASSERT_NE(model, nullptr) << "case " << i;
    StoredSession session(store_.get(), model, static_cast<uint32_t>(i + 1));
    RunCase(random, &session);
    ASSERT_FALSE(HasFailure())
        << "case " << i << " of seed " << testing::TestSeed() << ": "
        << session.String() << replay::LayoutString(model->layout);
    ASSERT_OK(session.Erase());
    // Long enough for the store to forget that there was one.
    now_us_ += kTwoDaysUs;
  }
  ASSERT_OK(store::Settle(store_.get()));
  EXPECT_EQ(store_->Stats().records, 0);
  // The cases are worth something.
  EXPECT_GT(n_resumes_, 2 * kCases);
  EXPECT_LT(n_refused_, n_resumes_ / 5);
  EXPECT_GT(n_inexact_, kCases / 5);
  EXPECT_GT(n_floored_, kCases / 50);
  EXPECT_GT(n_uniform_, kCases / 10);
  EXPECT_GT(n_copied_, kCases / 5);
  std::printf(
      "%llu resumes: %llu refused, %llu inexact, %llu exact through "
      "floors, %llu uniform; %llu suspends copied rows of a tail\n",
      static_cast<unsigned long long>(n_resumes_),
      static_cast<unsigned long long>(n_refused_),
      static_cast<unsigned long long>(n_inexact_),
      static_cast<unsigned long long>(n_floored_),
      static_cast<unsigned long long>(n_uniform_),
      static_cast<unsigned long long>(n_copied_));
}

// The open group of a cut reaches further back than any window: a floor that
// only its rows meet was once left out, and their replay called exact.
TEST_F(ResumePropertyTest, AFloorBindsRowsThatOnlyOpenGroupsReach) {
  ModelLayout layout = replay::LayoutOf("s", 16, 2, 4);
  layout.n_layers = 2;
  layout.slots.push_back(replay::PooledSlot("pooled", 1, 128, 8));
  layout.slots.push_back(replay::OpenGroupSlot("open", 1, 128, 128, 2));
  const auto model = Register(layout, 128);
  ASSERT_NE(model, nullptr);
  StoredSession session(store_.get(), model, 1);
  ASSERT_OK(session.Suspend({.n_new = 384, .kv_len = 384}));
  Asked asked;
  asked.header.set_session(session.id());
  asked.header.set_mode(v1::REPLAY_MODE_BOUNDED);
  asked.header.set_engine_replays(true);
  const auto bounded = Resume(session, asked);
  ASSERT_TRUE(bounded.has_value());
  ASSERT_EQ(bounded->floor(), (replay::Floor{384, 256, 0}));
  ASSERT_OK(session.Suspend({.tokens_kept = 384,
                             .n_new = 66,
                             .kv_len = 450,
                             .floor = bounded->floor()}));
  asked.header.set_mode(v1::REPLAY_MODE_EXACT);
  const auto exact = Resume(session, asked);
  ASSERT_TRUE(exact.has_value());
  EXPECT_EQ(exact->replay_start, 256);
}

}  // namespace
}  // namespace torpor::service
