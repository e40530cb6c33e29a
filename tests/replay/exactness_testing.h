// SPDX-License-Identifier: Apache-2.0
//
// A session's whole life against the session that never slept, every
// comparison with ==.

#ifndef TORPOR_TESTS_REPLAY_EXACTNESS_TESTING_H_
#define TORPOR_TESTS_REPLAY_EXACTNESS_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay {

// One session that never sleeps, looked at after every token.
class NeverSlept {
 public:
  // Runs `ids` token by token; keeps windows at `cuts` and all logits.
  NeverSlept(Model* model, std::vector<uint32_t> ids,
             const std::vector<uint64_t>& cuts)
      : model_(model), ids_(std::move(ids)), session_(model) {
    uint64_t at = 0;
    std::vector<uint64_t> stops = cuts;
    stops.push_back(ids_.size());
    std::sort(stops.begin(), stops.end());
    for (const uint64_t stop : stops) {
      if (stop > at) {
        auto logits =
            session_.Run(std::span(ids_).subspan(at, stop - at), stop - at);
        EXPECT_OK(logits.status());
        logits_.insert(logits_.end(), logits->begin(), logits->end());
        at = stop;
      }
      auto window = session_.Window();
      EXPECT_OK(window.status());
      windows_[stop] = *std::move(window);
    }
    auto rows = session_.Compact();
    EXPECT_OK(rows.status());
    rows_ = *std::move(rows);
  }

  const std::vector<uint32_t>& ids() const { return ids_; }
  const WindowState& window(uint64_t cut) const { return windows_.at(cut); }
  MemoryRows* rows() { return &rows_; }
  std::span<const float> logits(uint64_t begin, uint64_t end) const {
    const size_t vocab = model_->vocab_size();
    return std::span(logits_).subspan(begin * vocab, (end - begin) * vocab);
  }

 private:
  Model* model_;
  std::vector<uint32_t> ids_;
  TestSession session_;
  std::map<uint64_t, WindowState> windows_;
  std::vector<float> logits_;
  MemoryRows rows_;
};

// Wakes at `cut` by `plan` and goes on over the next `n_more` tokens.
inline void ExpectWakesAsItWas(Model* model, NeverSlept* truth, uint64_t cut,
                               const ReplayPlan& plan, uint64_t n_more) {
  auto woken = TestSession::Wake(model, truth->ids(), plan, truth->rows());
  ASSERT_OK(woken.status());
  ASSERT_OK_AND_ASSIGN(const WindowState window, woken->Window());
  ASSERT_EQ(window.slots, truth->window(cut).slots) << "cut " << cut;
  const uint64_t end = std::min<uint64_t>(cut + n_more, truth->ids().size());
  if (end == cut) return;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<float> logits,
      woken->Run(std::span(truth->ids()).subspan(cut, end - cut), end - cut));
  ASSERT_TRUE(kernels::SameBits(logits, truth->logits(cut, end)))
      << "cut " << cut;
}

inline uint64_t ExactTokens(const Model& model) {
  return FiguresOf(model.layout(), 0).exact_tokens;
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_EXACTNESS_TESTING_H_
