// SPDX-License-Identifier: Apache-2.0
//
// Forwards touch a backend's memory through its ops alone: models run on one
// whose memory is closed to the host, and come out as on the CPU, to the bit.

#include "tests/replay/guarded_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/replay/deepseek_v41_fixture.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay {
namespace {

using kernels::GuardedOps;

constexpr uint64_t kTokens = 100;
constexpr uint64_t kCut = 87;

struct Case {
  std::string directory;
  std::string compute_dtype;
};

// A model on the CPU and on a guarded backend of the same path.
class GuardedOpsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const kernels::Isa isa = kernels::AvailableIsas().back();
    guarded_ops_ = std::make_shared<GuardedOps>(isa, 2);
    const std::string directory =
        std::string(TORPOR_ORACLES_DIR) + "/" + GetParam().directory;
    ModelOptions options{
        .isa = isa, .n_threads = 2, .compute_dtype = GetParam().compute_dtype};
    ASSERT_OK_AND_ASSIGN(cpu_, LoadModel(directory, options));
    options.ops = guarded_ops_;
    ASSERT_OK_AND_ASSIGN(guarded_, LoadModel(directory, options));
    ids_ = RandomIds(random_, kTokens, cpu_->vocab_size());
  }

  // Everything that a session computes and keeps, prefilled by `chunk`.
  struct Outcome {
    std::vector<float> logits;
    std::map<uint32_t, std::vector<uint8_t>> compact;
    std::vector<SlotRows> window;
  };
  Outcome Prefill(Model* model, uint64_t chunk) const {
    TestSession session(model);
    auto logits = session.Run(ids_, kTokens, chunk);
    auto compact = session.Compact();
    auto window = session.Window();
    EXPECT_OK(logits.status());
    EXPECT_OK(compact.status());
    EXPECT_OK(window.status());
    return {*std::move(logits), std::move(compact->slots),
            std::move(window->slots)};
  }

  // Logits of the tokens after a wake at the cut.
  std::vector<float> WakeAndGoOn(Model* model, ReplayMode mode) const {
    TestSession truth(model);
    EXPECT_OK(truth.Run(std::span(ids_).first(kCut), 0).status());
    auto rows = truth.Compact();
    const auto plan = Plan(*model, kCut, mode);
    EXPECT_OK(plan.status());
    auto woken = TestSession::Wake(model, ids_, *plan, &*rows);
    EXPECT_OK(woken.status());
    auto logits = woken->Run(std::span(ids_).subspan(kCut), kTokens - kCut, 3);
    EXPECT_OK(logits.status());
    return *std::move(logits);
  }

  testing::Random random_;
  std::shared_ptr<GuardedOps> guarded_ops_;
  std::unique_ptr<Model> cpu_;
  std::unique_ptr<Model> guarded_;
  std::vector<uint32_t> ids_;
};

INSTANTIATE_TEST_SUITE_P(Models, GuardedOpsTest,
                         ::testing::Values(Case{"deepseek_v41/plain", "f32"},
                                           Case{"deepseek_v41/plain", "bf16"},
                                           Case{"deepseek_v41/ratio1", "f32"},
                                           Case{"deepseek_v41/release",
                                                "native"},
                                           Case{"gemma3/w8", "native"},
                                           Case{"gemma3/pattern", "native"}),
                         [](const auto& info) {
                           std::string name = info.param.directory + "_" +
                                              info.param.compute_dtype;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST_P(GuardedOpsTest, APrefillIsTheCpus) {
  for (const uint64_t chunk : {0, 7}) {
    const Outcome wanted = Prefill(cpu_.get(), chunk);
    const Outcome got = Prefill(guarded_.get(), chunk);
    EXPECT_EQ(got.logits, wanted.logits) << "chunk " << chunk;
    EXPECT_EQ(got.compact, wanted.compact) << "chunk " << chunk;
    EXPECT_EQ(got.window, wanted.window) << "chunk " << chunk;
  }
  EXPECT_GT(guarded_ops_->n_calls(), 100);
}

TEST_P(GuardedOpsTest, WakesAreTheCpus) {
  for (const ReplayMode mode : {ReplayMode::kExact, ReplayMode::kBounded}) {
    EXPECT_EQ(WakeAndGoOn(guarded_.get(), mode), WakeAndGoOn(cpu_.get(), mode));
  }
}

// Rows of one layer that do not follow each other, and inputs that are changed.
TEST_P(GuardedOpsTest, ARaggedBatchIsTheCpus) {
  std::vector<std::vector<float>> results[2];
  for (Model* model : {cpu_.get(), guarded_.get()}) {
    std::vector<std::unique_ptr<Sequence>> sequences;
    std::vector<Segment> segments;
    for (const uint64_t n : {31, 1, 60}) {
      sequences.push_back(model->NewSequence());
      segments.push_back(SegmentOf(sequences.back().get(), ids_, 0, n));
      segments.back().logits_begin = n / 2;
    }
    ForwardOptions options;
    options.on_layer_input = [](uint32_t layer, size_t segment, uint64_t,
                                std::span<float> rows) {
      if (layer == 1 && segment == 2) rows[0] += 0.5f;
    };
    ASSERT_OK(model->Forward(segments, options,
                             &results[model == cpu_.get() ? 0 : 1]));
  }
  EXPECT_EQ(results[1], results[0]);
}

TEST_P(GuardedOpsTest, AForwardTakesNoMoreThanItSays) {
  const uint64_t before = guarded_ops_->arena().bytes();
  const uint64_t rows = guarded_->max_rows();
  std::vector<uint32_t> ids(rows, 1);
  const std::unique_ptr<Sequence> sequence = guarded_->NewSequence();
  guarded_ops_->arena().ResetPeak();
  for (const uint64_t chunk : {uint64_t{1}, uint64_t{100}, rows}) {
    Segment segment = SegmentOf(sequence.get(), ids, 0, chunk);
    segment.logits_begin = chunk - 1;
    ASSERT_OK(RunTokens(guarded_.get(), segment, 0, {}).status());
  }
  const uint64_t took = guarded_ops_->arena().peak() - before;
  EXPECT_LE(took, guarded_->WorkBytes() + guarded_->SequenceBytes(rows));
  std::printf(
      "took %d of %d bytes\n", static_cast<int>(took),
      static_cast<int>(guarded_->WorkBytes() + guarded_->SequenceBytes(rows)));
}

TEST(GuardedArenaDeathTest, TheHostMayNotTouchIt) {
  GuardedOps ops(kernels::Isa::kPortable, 1);
  kernels::Buffer<float> rows(&ops, std::vector<float>{1.0f, 2.0f});
  float host[2] = {};
  ops.Download(host, rows.data(), sizeof(host));
  EXPECT_EQ(host[1], 2.0f);
  EXPECT_DEATH(rows.data()[0] = 3.0f, "");
  EXPECT_DEATH(host[0] = *static_cast<volatile float*>(rows.data()), "");
  EXPECT_DEATH(ops.Upload(host, host, sizeof(host)), "upload wants");
}

// A tap sees and forces the same through downloads and uploads.
TEST(GuardedTapTest, ForcedCodesAndChoicesAreTheCpus) {
  using deepseek_v41::ComparingTap;
  const kernels::Isa isa = kernels::AvailableIsas().back();
  const std::string directory = deepseek_v41::CaseDirectory("plain");
  const deepseek_v41::Numbers numbers(directory + "/expected.safetensors");
  const std::vector<uint32_t> ids = deepseek_v41::IdsOf(numbers);
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadModelConfig(directory));
  std::vector<std::vector<float>> results;
  for (const auto& ops :
       {std::shared_ptr<GuardedOps>(), std::make_shared<GuardedOps>(isa, 1)}) {
    ASSERT_OK_AND_ASSIGN(
        const auto model,
        deepseek_v41::LoadDeepSeekV41(
            directory, text, {.isa = isa, .ops = ops, .compute_dtype = "f32"}));
    ComparingTap tap(&numbers, &model->layout(), /*forces=*/true);
    model->set_tap(&tap);
    const std::unique_ptr<Sequence> sequence = model->NewSequence();
    Segment segment = SegmentOf(sequence.get(), ids, 0, ids.size());
    segment.logits_begin = 0;
    ASSERT_OK_AND_ASSIGN(std::vector<float> logits,
                         RunTokens(model.get(), segment, 0, {}));
    EXPECT_GT(tap.n_choices(), ids.size() * 4);
    EXPECT_EQ(tap.choice_flips(), 0);
    results.push_back(std::move(logits));
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace torpor::replay
