// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3's own figures of exactness: what three sliding layers around two full
// ones make of windows 8, 7 and 5. All that any family must prove is in
// family_conformance.h.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "replay/witness.h"
#include "tests/replay/exactness_testing.h"

namespace torpor::replay {
namespace {

class Gemma3ExactnessTest : public ::testing::TestWithParam<const char*> {
 protected:
  Gemma3ExactnessTest() {
    auto model = LoadModel(
        std::string(TORPOR_ORACLES_DIR) + "/gemma3/" + GetParam(), {});
    EXPECT_OK(model.status());
    if (model.ok()) model_ = *std::move(model);
  }
  void SetUp() override { ASSERT_NE(model_, nullptr); }

  testing::Random random_;
  std::unique_ptr<Model> model_;
};

INSTANTIATE_TEST_SUITE_P(Models, Gemma3ExactnessTest,
                         ::testing::Values("w8", "w7", "w5"),
                         [](const auto& info) { return info.param; });

TEST_P(Gemma3ExactnessTest, EachSlidingLayerAddsAWindow) {
  const uint64_t window = model_->layout().LargestWindow();
  const uint64_t exact = ExactTokens(*model_);
  EXPECT_EQ(exact, 3 * (window - 1));
  for (uint64_t cut = 1; cut <= 4 * exact; ++cut) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    EXPECT_EQ(plan.replay_tokens(), std::min(cut, exact));
  }
}

TEST_P(Gemma3ExactnessTest, TheWitnessHoldsRowsOfEachSlidingLayer) {
  const uint64_t window = model_->layout().LargestWindow();
  const uint64_t cut = 5 * window;
  NeverSlept truth(model_.get(), RandomIds(random_, cut, model_->vocab_size()),
                   {cut});
  const Witness witness =
      MakeWitness(model_->layout(), model_->numerics_id(), truth.window(cut));
  EXPECT_EQ(witness.layers.size(), 3);
  for (const LayerWitness& layer : witness.layers) {
    EXPECT_GE(layer.rows.size(), 4);
    EXPECT_EQ(layer.rows.back().position, cut - 1);
    EXPECT_EQ(layer.rows.front().position, cut - window + 1);
  }
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kBounded, window));
  ASSERT_OK_AND_ASSIGN(
      const TestSession woken,
      TestSession::Wake(model_.get(), truth.ids(), plan, truth.rows()));
  ASSERT_OK_AND_ASSIGN(const WindowState bounded, woken.Window());
  ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                       CompareWithWitness(model_->layout(), bounded, witness));
  // A bounded replay has the first layer's window right and not the last's.
  EXPECT_TRUE(report.layers[0].digest_equal);
  EXPECT_FALSE(report.layers[2].digest_equal);
}

}  // namespace
}  // namespace torpor::replay
