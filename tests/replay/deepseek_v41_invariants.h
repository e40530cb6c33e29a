// SPDX-License-Identifier: Apache-2.0
//
// Shared by the fifteen invariants of DeepSeek V4.1's records and replays: the
// released model's layout for what is about sizes, the tiny model "plain" for
// what is about values, and replays whose sequences a test can look into.
//
// "plain" has 11 layers of window 8; layers 2 and 5 write a row for two tokens,
// layer 7 one for each and layer 9 chooses among those anew; Engram stands
// before 1 and 5.

#ifndef TORPOR_TESTS_REPLAY_DEEPSEEK_V41_INVARIANTS_H_
#define TORPOR_TESTS_REPLAY_DEEPSEEK_V41_INVARIANTS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "replay/config_json.h"
#include "replay/deepseek_v41/config.h"
#include "replay/planner.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/replay/deepseek_v41_fixture.h"

namespace torpor::replay::deepseek_v41 {

// Of the released model.
inline constexpr uint64_t kReleaseWindow = 128;
inline constexpr uint32_t kReleaseLayers = 40;

inline nlohmann::json ReleaseConfig() {
  const auto text = ReadTextFile(std::string(TORPOR_ORACLES_DIR) +
                                 "/configs/DeepSeek-V4.1-Flash.json");
  EXPECT_OK(text.status());
  auto config = ParseConfigJson(*text, "config.json");
  EXPECT_OK(config.status());
  return *std::move(config);
}

inline ModelLayout ReleaseLayout() {
  auto layout = LayoutOf(ReleaseConfig());
  EXPECT_OK(layout.status());
  return *std::move(layout);
}

class DeepSeekV41Invariants : public ::testing::Test {
 protected:
  static constexpr uint64_t kWindow = 8;
  static constexpr uint32_t kLayers = 11;
  static constexpr uint32_t kLastSource = 7;
  static constexpr uint64_t kTokens = 96;

  DeepSeekV41Invariants()
      : model_(LoadCase("plain", kernels::AvailableIsas().back())),
        ids_(IdsOf(Numbers(CaseDirectory("plain") + "/expected.safetensors"))) {
    EXPECT_EQ(ids_.size(), kTokens);
  }

  [[nodiscard]] const ModelLayout& layout() const { return model_->layout(); }
  [[nodiscard]] uint32_t WindowSlot(uint32_t layer) const {
    return SlotNamed("layer." + std::to_string(layer) + ".window");
  }
  [[nodiscard]] uint32_t SlotNamed(const std::string& name) const {
    for (uint32_t i = 0; i < layout().slots.size(); ++i) {
      if (layout().slots[i].name == name) return i;
    }
    ADD_FAILURE() << "no slot " << name;
    return 0;
  }
  [[nodiscard]] std::vector<uint32_t> WindowSlots() const {
    std::vector<uint32_t> slots;
    for (uint32_t l = 0; l < kLayers; ++l) slots.push_back(WindowSlot(l));
    return slots;
  }

  // A session of the first n tokens that never slept.
  TestSession Prefilled(uint64_t n) {
    TestSession session(model_.get());
    EXPECT_OK(session.Run(std::span(ids_).first(n), 0).status());
    return session;
  }
  MemoryRows CompactAt(uint64_t n) {
    auto rows = Prefilled(n).Compact();
    EXPECT_OK(rows.status());
    return *std::move(rows);
  }

  ReplayPlan PlanAt(uint64_t cut, ReplayMode mode, uint64_t replay_tokens = 0,
                    bool want_logits = false) const {
    auto plan = PlanReplay(layout(), {.resume_at = cut,
                                      .mode = mode,
                                      .replay_tokens = replay_tokens,
                                      .want_logits = want_logits});
    EXPECT_OK(plan.status());
    return *std::move(plan);
  }
  ReplayPlan Bounded(uint64_t cut, bool want_logits = false) const {
    return PlanAt(cut, ReplayMode::kBounded, 0, want_logits);
  }
  ReplayPlan Exact(uint64_t cut, bool want_logits = false) const {
    return PlanAt(cut, ReplayMode::kExact, 0, want_logits);
  }

  // A sequence with the stored rows of [0, cut) and nothing else.
  std::unique_ptr<Sequence> Loaded(uint64_t cut, MemoryRows* rows) {
    std::unique_ptr<Sequence> sequence = model_->NewSequence();
    EXPECT_OK(
        LoadCompactRows(layout(), cut, rows, sequence.get(), nullptr).status());
    return sequence;
  }
  // Runs a plan's rows on it; logits of rows from `logits_begin` on.
  std::vector<float> Replay(Model* model, const ReplayPlan& plan,
                            std::span<const uint32_t> ids, Sequence* sequence,
                            uint64_t logits_begin, uint64_t chunk = 0) {
    Segment segment =
        SegmentOf(sequence, ids, plan.replay_start, plan.resume_at);
    segment.plan = &plan;
    segment.logits_begin = logits_begin;
    auto logits = RunTokens(model, segment, chunk, {});
    EXPECT_OK(logits.status());
    return logits.ok() ? *std::move(logits) : std::vector<float>();
  }
  std::unique_ptr<Sequence> Replayed(const ReplayPlan& plan, MemoryRows* rows,
                                     uint64_t chunk = 0) {
    std::unique_ptr<Sequence> sequence = Loaded(plan.resume_at, rows);
    Replay(model_.get(), plan, ids_, sequence.get(), plan.resume_at, chunk);
    return sequence;
  }

  std::vector<uint8_t> RowsOf(const Sequence& sequence, uint32_t slot,
                              Rows rows) const {
    std::vector<uint8_t> bytes(rows.size() * layout().slots[slot].row_bytes);
    EXPECT_OK(sequence.ExportRows(slot, rows, bytes));
    return bytes;
  }
  bool SameRow(const Sequence& a, const Sequence& b, uint32_t slot,
               uint64_t row) const {
    return RowsOf(a, slot, {row, row + 1}) == RowsOf(b, slot, {row, row + 1});
  }
  // Rows [begin, end) of a slot in which two sequences differ.
  std::vector<uint64_t> Differing(const Sequence& a, const Sequence& b,
                                  uint32_t slot, uint64_t begin,
                                  uint64_t end) const {
    std::vector<uint64_t> rows;
    for (uint64_t row = begin; row < end; ++row) {
      if (!SameRow(a, b, slot, row)) rows.push_back(row);
    }
    return rows;
  }
  // NaN in window rows [begin, end) of layers from `first_layer` on.
  void PoisonWindows(uint32_t first_layer, uint64_t begin, uint64_t end,
                     Sequence* sequence) const {
    for (uint32_t l = first_layer; l < kLayers; ++l) {
      const uint32_t slot = WindowSlot(l);
      const std::vector<uint8_t> nan(
          (end - begin) * layout().slots[slot].row_bytes, 0xff);
      EXPECT_OK(sequence->ImportRows(slot, begin, nan));
    }
  }
  WindowState WindowOf(const Sequence& sequence, uint64_t cut) const {
    auto window = ExportWindow(layout(), sequence, cut);
    EXPECT_OK(window.status());
    return *std::move(window);
  }

  const std::unique_ptr<DeepSeekV41> model_;
  const std::vector<uint32_t> ids_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_TESTS_REPLAY_DEEPSEEK_V41_INVARIANTS_H_
