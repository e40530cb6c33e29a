// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1 on the CUDA backend, under the emulator, against the float64
// oracle and against the CPU. Every row goes on with the oracle's codes and
// choices, so that no rounding travels into another code.

#include <gtest/gtest.h>

#include "tests/kernels/emulated_ops.h"
#include "tests/replay/deepseek_v41_fixture.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::EmulatedDevice;

constexpr double kTolerance = 1e-4;

struct Outcome {
  std::vector<float> logits;
  std::map<std::string, double> errors;
  uint64_t flips = 0;
  uint64_t n_choices = 0;
};

// The first `n` of the oracle's tokens.
absl::StatusOr<Outcome> Prefill(const std::string& name, uint64_t n,
                                std::shared_ptr<kernels::Ops> ops) {
  const std::string directory = CaseDirectory(name);
  const Numbers numbers(directory + "/expected.safetensors");
  TORPOR_ASSIGN_OR_RETURN(const std::string text, ReadModelConfig(directory));
  TORPOR_ASSIGN_OR_RETURN(
      const auto model,
      LoadDeepSeekV41(directory, text,
                      {.ops = std::move(ops), .compute_dtype = "f32"}));
  ComparingTap tap(&numbers, &model->layout(), /*forces=*/true);
  model->set_tap(&tap);
  const std::unique_ptr<Sequence> sequence = model->NewSequence();
  const std::vector<uint32_t> ids = IdsOf(numbers);
  Segment segment = SegmentOf(sequence.get(), ids, 0, n);
  segment.logits_begin = 0;
  Outcome out;
  TORPOR_ASSIGN_OR_RETURN(out.logits, RunTokens(model.get(), segment, 0, {}));
  out.errors = tap.errors();
  out.flips = tap.code_flips() + tap.choice_flips();
  out.n_choices = tap.n_choices();
  return out;
}

TEST(CudaDeepSeekV41Test, EveryOpAgreesWithTheOracleAndLogitsWithTheCpu) {
  // More entries than are picked, and than there are candidates.
  constexpr uint64_t kTokens = 24;
  const EmulatedDevice device({.late = true});
  ASSERT_OK_AND_ASSIGN(const Outcome got,
                       Prefill("plain", kTokens, EmulatedDevice::NewOps()));
  for (const auto& [op, error] : got.errors) {
    EXPECT_LE(error, kTolerance) << op;
  }
  EXPECT_GT(got.errors.size(), 10u);
  EXPECT_EQ(got.flips, 0u);
  EXPECT_GT(got.n_choices, 4 * kTokens);
  ASSERT_OK_AND_ASSIGN(const Outcome on_cpu,
                       Prefill("plain", kTokens, nullptr));
  EXPECT_TRUE(kernels::Near(got.logits, on_cpu.logits, 1e-5));
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
