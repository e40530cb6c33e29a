// SPDX-License-Identifier: Apache-2.0
//
// The built-in DeepSeek V4.1 against a float64 implementation that shares no
// code with it (tests/oracles/deepseek_v41): every op with the oracle's own
// inputs, the whole model with its codes and choices, and free-running with
// flips counted; then bounded replays.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "tests/replay/deepseek_v41_fixture.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::Isa;

constexpr double kTolerance = 1e-4;

struct OracleCase {
  const char* name;
  Isa isa;
};

class DeepSeekV41OracleTest : public ::testing::TestWithParam<OracleCase> {
 protected:
  DeepSeekV41OracleTest()
      : numbers_(CaseDirectory(GetParam().name) + "/expected.safetensors"),
        model_(LoadCase(GetParam().name, GetParam().isa)),
        ids_(IdsOf(numbers_)) {}

  absl::StatusOr<std::vector<float>> Run(Tap* tap) {
    model_->set_tap(tap);
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    Segment segment = SegmentOf(sequence.get(), ids_, 0, ids_.size());
    segment.logits_begin = 0;
    auto logits = RunTokens(model_.get(), segment, 0, {});
    model_->set_tap(nullptr);
    return logits;
  }

  void ExpectLogits(std::span<const float> got) const {
    const std::vector<float> wanted = numbers_.Get<float>("logits");
    ASSERT_EQ(got.size(), wanted.size());
    const size_t vocab = model_->vocab_size();
    for (size_t at = 0; at < wanted.size(); at += vocab) {
      EXPECT_LE(RelativeError(got.subspan(at, vocab),
                              std::span(wanted).subspan(at, vocab)),
                kTolerance)
          << "row " << at / vocab;
    }
  }

  const Numbers numbers_;
  const std::unique_ptr<DeepSeekV41> model_;
  const std::vector<uint32_t> ids_;
};

TEST_P(DeepSeekV41OracleTest, EveryOpAgreesOnTheOraclesInputs) {
  ComparingTap tap(&numbers_, &model_->layout(), /*forces=*/true);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, Run(&tap));
  EXPECT_GT(tap.n_rows(), ids_.size() * 20);
  EXPECT_GT(tap.n_choices(), ids_.size() * 4);
  for (const auto& [op, error] : tap.errors()) {
    EXPECT_LE(error, kTolerance) << op;
  }
  // None of these cases has a value that close to a boundary.
  EXPECT_EQ(tap.code_flips(), 0) << "of " << tap.n_codes();
  EXPECT_EQ(tap.choice_flips(), 0) << "of " << tap.n_choices();
  ExpectLogits(logits);
}

TEST_P(DeepSeekV41OracleTest, AFreeRunAgrees) {
  ComparingTap tap(&numbers_, &model_->layout(), /*forces=*/false);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> logits, Run(&tap));
  std::printf(
      "%s/%s: %d of %d codes and %d of %d choices flipped\n", GetParam().name,
      std::string(IsaName(GetParam().isa)).c_str(),
      static_cast<int>(tap.code_flips()), static_cast<int>(tap.n_codes()),
      static_cast<int>(tap.choice_flips()), static_cast<int>(tap.n_choices()));
  // No op flips a code on the oracle's inputs (above): what flips here is
  // rounding that travelled, some 1e-6 of a row, met by a value as close to the
  // middle of two codes; one such row then changes others.
  EXPECT_EQ(tap.choice_flips(), 0);
  EXPECT_LE(tap.code_flips(), tap.n_codes() / 1000);
  if (tap.code_flips() == 0) ExpectLogits(logits);
}

std::vector<OracleCase> Cases() {
  std::vector<OracleCase> cases;
  for (const Isa isa : kernels::AvailableIsas()) {
    for (const char* name : {"plain", "ratio1", "release"}) {
      cases.push_back({name, isa});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, DeepSeekV41OracleTest,
                         ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<OracleCase>& info) {
                           return std::string(info.param.name) + "_" +
                                  std::string(kernels::IsaName(info.param.isa));
                         });

}  // namespace
}  // namespace torpor::replay::deepseek_v41
