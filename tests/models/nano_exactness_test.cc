// SPDX-License-Identifier: Apache-2.0
//
// The bundled model wakes to the bits it had: at cuts around its exact length,
// around block edges and at random, over real text and over sampled tokens.

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "service/cli/sampler.h"
#include "tests/models/nano_testing.h"
#include "tests/replay/exactness_testing.h"

namespace torpor::replay {
namespace {

using service::cli::Sampler;

constexpr uint64_t kMore = 256;

class NanoExactnessTest : public ::testing::Test {
 protected:
  NanoExactnessTest() : model_(LoadNano()), exact_(ExactTokens(*model_)) {}

  // Each cut wakes with the window it had, and goes on with the same logits
  // over the real text that follows and the same sampled tokens.
  void ExpectExactAt(const std::set<uint64_t>& cuts) {
    std::vector<uint32_t> ids = NanoText("agent_session.txt");
    ids.resize(std::min<size_t>(ids.size(), *cuts.rbegin() + kMore));
    NeverSlept truth(model_.get(), ids, {cuts.begin(), cuts.end()});
    for (const uint64_t cut : cuts) {
      SCOPED_TRACE(cut);
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                           Plan(*model_, cut, ReplayMode::kExact));
      EXPECT_TRUE(plan.exact);
      EXPECT_EQ(plan.replay_tokens(), std::min(cut, exact_));
      ExpectWakesAsItWas(model_.get(), &truth, cut, plan, kMore);
      if (HasFatalFailure()) return;
      ExpectSamplesAlike(&truth, cut, plan);
      if (HasFatalFailure()) return;
    }
  }

  // kMore tokens sampled after the cut's own token: by a session that ran
  // [0, cut) just now, and by one that was woken at the cut.
  void ExpectSamplesAlike(NeverSlept* truth, uint64_t cut,
                          const ReplayPlan& plan) {
    const uint64_t seed = random_.Between(1, 1 << 30);
    const uint32_t pending = truth->ids()[cut];
    TestSession awake(model_.get());
    ASSERT_OK(awake.Run(std::span(truth->ids()).first(cut), 0).status());
    ASSERT_OK_AND_ASSIGN(const auto expected, Sample(&awake, pending, seed));
    auto woken =
        TestSession::Wake(model_.get(), truth->ids(), plan, truth->rows());
    ASSERT_OK(woken.status());
    ASSERT_OK_AND_ASSIGN(const auto tokens, Sample(&*woken, pending, seed));
    ASSERT_EQ(tokens, expected) << "seed " << seed;
  }

  static absl::StatusOr<std::vector<uint32_t>> Sample(TestSession* session,
                                                      uint32_t pending,
                                                      uint64_t seed) {
    Sampler sampler({.temperature = 0.8, .seed = seed});
    std::vector<uint32_t> tokens;
    for (uint64_t i = 0; i < kMore; ++i) {
      TORPOR_ASSIGN_OR_RETURN(const std::vector<float> logits,
                              session->Run(std::span(&pending, 1), 1));
      pending = sampler.Next(logits);
      tokens.push_back(pending);
    }
    return tokens;
  }

  testing::Random random_;
  std::unique_ptr<Model> model_;
  const uint64_t exact_;
};

TEST_F(NanoExactnessTest, TheLayoutIsTheOneItsFiguresNeed) {
  EXPECT_EQ(exact_, 1778u);
  const LayoutFigures figures = FiguresOf(model_->layout(), 8192);
  EXPECT_EQ(figures.bounded_tokens, 128u);
  EXPECT_EQ(figures.compact_bytes_per_token, 2 * 2 * 2 * 32 * 2);
  EXPECT_EQ(figures.ratio, 8.0);
}

TEST_F(NanoExactnessTest, AroundTheExactLength) {
  const uint64_t window = model_->layout().LargestWindow();
  ExpectExactAt({exact_ - 2, exact_ - 1, exact_, exact_ + 1, exact_ + 2,
                 exact_ + window});
}

TEST_F(NanoExactnessTest, AroundBlockEdges) {
  const uint64_t block = ChooseBlockSize(model_->layout());
  std::set<uint64_t> cuts;
  for (uint64_t edge = block; edge < 8000 && cuts.size() < 12; edge += block) {
    cuts.insert({edge - 1, edge, edge + 1});
  }
  ExpectExactAt(cuts);
}

TEST_F(NanoExactnessTest, AtRandomCuts) {
  std::set<uint64_t> cuts;
  while (cuts.size() < 50) cuts.insert(random_.Between(exact_, 8000));
  ExpectExactAt(cuts);
}

}  // namespace
}  // namespace torpor::replay
