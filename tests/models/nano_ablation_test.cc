// SPDX-License-Identifier: Apache-2.0
//
// Stored rows and replay matter to the bundled model: without either it
// predicts worse what follows a cut, and after an exact replay not a bit
// differs.

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "tests/models/nano_testing.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay {
namespace {

// The cut is above the exact length; loss is of the kAfter bytes that follow.
constexpr uint64_t kCut = 2048;
constexpr uint64_t kAfter = 128;
constexpr size_t kWindows = 64;

// Nats a byte of rows [kCut, kCut + kAfter).
double Loss(std::span<const float> logits, std::span<const uint32_t> ids) {
  const size_t vocab = logits.size() / kAfter;
  double loss = 0;
  for (size_t i = 0; i < kAfter; ++i) {
    const auto row = logits.subspan(i * vocab, vocab);
    double max = row[0];
    for (const float x : row) max = std::max<double>(max, x);
    double sum = 0;
    for (const float x : row) sum += std::exp(x - max);
    loss += max + std::log(sum) - row[ids[kCut + i + 1]];
  }
  return loss / kAfter;
}

struct Difference {
  std::vector<double> values;

  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const double v : values) sum += v;
    return sum / static_cast<double>(values.size());
  }
  [[nodiscard]] double standard_error() const {
    const double m = mean();
    double sum = 0;
    for (const double v : values) sum += (v - m) * (v - m);
    const auto n = static_cast<double>(values.size());
    return std::sqrt(sum / (n - 1) / n);
  }
};

class NanoAblationTest : public ::testing::Test {
 protected:
  NanoAblationTest()
      : model_(LoadNano()), text_(NanoText("heldout_sample.bin")) {}

  std::vector<uint32_t> WindowOfText(size_t i) const {
    const size_t length = kCut + kAfter + 1;
    const size_t step = (text_.size() - length) / (kWindows - 1);
    const auto begin = text_.begin() + static_cast<ptrdiff_t>(i * step);
    return {begin, begin + static_cast<ptrdiff_t>(length)};
  }

  // Logits of [kCut, kCut + kAfter) of a session that holds these compact rows
  // and this window.
  absl::StatusOr<std::vector<float>> GoOn(const std::vector<uint32_t>& ids,
                                          MemoryRows* rows,
                                          const WindowState& window) {
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    TORPOR_RETURN_IF_ERROR(
        LoadCompactRows(model_->layout(), kCut, rows, sequence.get(), nullptr)
            .status());
    TORPOR_RETURN_IF_ERROR(ImportWindow(window, sequence.get()));
    Segment segment = SegmentOf(sequence.get(), ids, kCut, kCut + kAfter);
    segment.logits_begin = kCut;
    return RunTokens(model_.get(), segment, 0, {});
  }

  // The same where no window row below the cut is seen. The compact rows of
  // the tokens that run are the true ones: what is lost is the window's part.
  absl::StatusOr<std::vector<float>> GoOnWithoutWindow(
      const std::vector<uint32_t>& ids, MemoryRows* rows) {
    const ModelLayout& layout = model_->layout();
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    TORPOR_RETURN_IF_ERROR(
        LoadCompactRows(layout, kCut + kAfter, rows, sequence.get(), nullptr)
            .status());
    ReplayPlan plan;
    plan.mode = ReplayMode::kBounded;
    plan.resume_at = kCut + kAfter;
    plan.replay_start = kCut;
    plan.exact = false;
    plan.layers.assign(layout.n_layers, {kCut, kCut});
    for (const Slot& slot : layout.slots) {
      plan.write_begin.push_back(
          slot.come_back == ComeBack::kReplay ? kCut : plan.resume_at);
    }
    plan.floors = {{kCut, kCut + kAfter, kCut, 0}};
    Segment segment = SegmentOf(sequence.get(), ids, kCut, kCut + kAfter);
    segment.plan = &plan;
    segment.logits_begin = kCut;
    return RunTokens(model_.get(), segment, 0, {});
  }

  static void ExpectWorse(const Difference& d, const char* what) {
    std::cout << what << ": +" << d.mean() << " nats a byte, standard error "
              << d.standard_error() << '\n';
    EXPECT_GE(d.mean(), 0.05) << what;
    EXPECT_GE(d.mean(), 5 * d.standard_error()) << what;
  }

  std::unique_ptr<Model> model_;
  const std::vector<uint32_t> text_;
};

TEST_F(NanoAblationTest, StoredRowsAndReplayBothMatter) {
  Difference zeroed;
  Difference skipped;
  double loss = 0;
  for (size_t i = 0; i < kWindows; ++i) {
    const std::vector<uint32_t> ids = WindowOfText(i);
    TestSession awake(model_.get());
    ASSERT_OK(awake.Run(std::span(ids).first(kCut), 0).status());
    ASSERT_OK_AND_ASSIGN(
        const std::vector<float> truth,
        awake.Run(std::span(ids).subspan(kCut, kAfter), kAfter));
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, awake.Compact());
    const double true_loss = Loss(truth, ids);
    loss += true_loss / kWindows;

    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, kCut, ReplayMode::kExact));
    auto woken = TestSession::Wake(model_.get(), ids, plan, &rows);
    ASSERT_OK(woken.status());
    ASSERT_OK_AND_ASSIGN(const WindowState window, woken->Window());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> exact,
                         GoOn(ids, &rows, window));
    ASSERT_TRUE(kernels::SameBits(exact, truth)) << "window of text " << i;

    ASSERT_OK_AND_ASSIGN(const std::vector<float> without,
                         GoOnWithoutWindow(ids, &rows));
    skipped.values.push_back(Loss(without, ids) - true_loss);

    for (auto& [slot, bytes] : rows.slots) {
      std::fill(bytes.begin(), bytes.end(), 0);
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<float> blind,
                         GoOn(ids, &rows, window));
    zeroed.values.push_back(Loss(blind, ids) - true_loss);
  }
  std::cout << "loss after the cut: " << loss << " nats a byte\n";
  ExpectWorse(zeroed, "zeroed full-layer rows");
  ExpectWorse(skipped, "skipped replay");
}

}  // namespace
}  // namespace torpor::replay
