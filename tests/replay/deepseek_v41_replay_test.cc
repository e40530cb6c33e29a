// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's replays: bounded ones and decoder tails against the float64
// implementation (tests/oracles/deepseek_v41), and what of them is exact. What
// every family must do is in family_conformance_test.cc.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "replay/planner.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/replay/deepseek_v41_fixture.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::Isa;

constexpr double kTolerance = 1e-4;
constexpr uint64_t kWindow = 8;
// Of "plain": layers 8 to 10 stand above the last source.
constexpr uint32_t kLastSource = 7;

class DeepSeekV41ReplayTest : public ::testing::TestWithParam<Isa> {
 protected:
  DeepSeekV41ReplayTest()
      : expected_(CaseDirectory("plain") + "/expected.safetensors"),
        replays_(CaseDirectory("plain") + "/replay.safetensors"),
        model_(LoadCase("plain", GetParam())),
        ids_(IdsOf(expected_)) {}

  const ModelLayout& layout() const { return model_->layout(); }

  // A session of the first n tokens that never slept.
  TestSession Prefilled(uint64_t n) {
    TestSession session(model_.get());
    EXPECT_OK(session.Run(std::span(ids_).first(n), 0).status());
    return session;
  }

  // Stored bytes that differ from the oracle's, of `wanted` rows that end at
  // `end`; those of the slot's rows that are held.
  size_t Flips(const Sequence& sequence, uint32_t slot, uint64_t end,
               const std::vector<uint8_t>& wanted) const {
    const size_t row_bytes = layout().slots[slot].row_bytes;
    const uint64_t n =
        std::min<uint64_t>({kWindow - 1, end, wanted.size() / row_bytes});
    std::vector<uint8_t> got(n * row_bytes);
    EXPECT_OK(sequence.ExportRows(slot, {end - n, end}, got));
    size_t flips = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      if (got[i] != wanted[wanted.size() - got.size() + i]) ++flips;
    }
    return flips;
  }

  size_t WindowFlips(const Sequence& sequence, uint64_t end,
                     const std::string& prefix) const {
    size_t flips = 0;
    for (uint32_t i = 0; i < layout().slots.size(); ++i) {
      const Slot& slot = layout().slots[i];
      if (!slot.is_window()) continue;
      flips += Flips(sequence, i, end,
                     replays_.Get<uint8_t>(prefix + "window_bytes." +
                                           std::to_string(slot.owner_layer)));
    }
    return flips;
  }

  const Numbers expected_;
  const Numbers replays_;
  const std::unique_ptr<DeepSeekV41> model_;
  const std::vector<uint32_t> ids_;
};

TEST_P(DeepSeekV41ReplayTest, BoundedReplaysAgree) {
  size_t flipped_cuts = 0;
  // At 9 a value stands 1.4e-8 from the middle of two codes.
  for (const uint64_t cut : {5, 8, 10, 24, 33, 57, 60, 64, 67, 95, 96}) {
    SCOPED_TRACE(cut);
    TestSession truth = Prefilled(cut);
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, truth.Compact());
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         PlanReplay(layout(), {.resume_at = cut,
                                               .mode = ReplayMode::kBounded,
                                               .want_logits = true}));
    EXPECT_EQ(plan.replay_tokens(), std::min(cut, kWindow));
    const ReplayJob job{.plan = &plan,
                        .ids = std::span(ids_).first(cut),
                        .reader = &rows,
                        .want_logits = true};
    ASSERT_OK_AND_ASSIGN(
        const std::vector<ReplayResult> results,
        MakeReplayer(model_.get())->Rebuild(std::span(&job, 1), nullptr));
    const std::unique_ptr<Sequence> woken = model_->NewSequence();
    ASSERT_OK(ImportWindow(results[0].window, woken.get()));
    const std::string at = std::to_string(cut) + ".";
    const size_t flips = WindowFlips(*woken, cut, at);
    if (flips != 0) {
      ++flipped_cuts;
      continue;
    }
    EXPECT_LE(RelativeError(results[0].window.logits,
                            replays_.Get<float>(at + "logits")),
              kTolerance);
    for (uint32_t i = 0; cut % 2 == 1 && i < layout().slots.size(); ++i) {
      const Slot& slot = layout().slots[i];
      if (slot.kind != SlotKind::kOpenGroup) continue;
      std::vector<uint8_t> row(slot.row_bytes);
      ASSERT_OK(woken->ExportRows(i, {cut - 1, cut}, row));
      std::vector<float> got(row.size() / 4);
      std::memcpy(got.data(), row.data(), row.size());
      EXPECT_LE(RelativeError(
                    got, replays_.Get<float>(at + "open." +
                                             std::to_string(slot.owner_layer))),
                kTolerance);
    }
  }
  // f32 stands within 1e-6 of float64: few cuts have a value that close to the
  // middle of two codes.
  std::printf("%d of 11 cuts with a flipped code\n",
              static_cast<int>(flipped_cuts));
  EXPECT_LE(flipped_cuts, 2);
}

TEST_P(DeepSeekV41ReplayTest, ABoundedReplayIsExactWhereNoWindowWasCut) {
  for (uint64_t cut = kWindow + 1; cut <= 48; ++cut) {
    TestSession truth = Prefilled(cut);
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, truth.Compact());
    ASSERT_OK_AND_ASSIGN(
        const ReplayPlan plan,
        PlanReplay(layout(), {.resume_at = cut, .mode = ReplayMode::kBounded}));
    ASSERT_OK_AND_ASSIGN(TestSession woken,
                         TestSession::Wake(model_.get(), ids_, plan, &rows));
    ASSERT_OK_AND_ASSIGN(const WindowState wanted, truth.Window());
    ASSERT_OK_AND_ASSIGN(const WindowState got, woken.Window());
    std::set<uint32_t> exact_layers;
    for (size_t i = 0; i < wanted.slots.size(); ++i) {
      const Slot& slot = layout().slots[wanted.slots[i].slot];
      if (!slot.is_window()) continue;
      if (wanted.slots[i].bytes == got.slots[i].bytes) {
        exact_layers.insert(slot.owner_layer);
      }
      const auto last = static_cast<ptrdiff_t>(slot.row_bytes);
      if (slot.owner_layer == 1) {
        EXPECT_TRUE(std::equal(wanted.slots[i].bytes.end() - last,
                               wanted.slots[i].bytes.end(),
                               got.slots[i].bytes.end() - last));
      }
    }
    EXPECT_EQ(exact_layers, std::set<uint32_t>{0}) << "cut " << cut;
  }
}

// ---- the decoder tail ------------------------------------------------------

class DecoderTailTest : public DeepSeekV41ReplayTest {
 protected:
  // Prefills [begin, end) of the ids with a tail; `floors` receives its entry.
  void PrefillTail(Sequence* sequence, uint64_t begin, uint64_t end,
                   uint64_t chunk, std::vector<Floor>* floors,
                   std::vector<float>* logits) {
    const auto tail = PlanTailPrefill(layout(), begin, end);
    Segment segment = SegmentOf(sequence, ids_, begin, end);
    segment.logits_begin = end - 1;
    if (tail) {
      segment.plan = &tail->plan;
      floors->push_back(tail->floor);
    }
    ASSERT_OK_AND_ASSIGN(std::vector<float> out,
                         RunTokens(model_.get(), segment, chunk, {}));
    if (logits != nullptr) *logits = std::move(out);
  }

  // Exact at `cut` gives the windows that `held` holds there.
  void ExpectWakesExact(const Sequence& held, uint64_t cut,
                        const std::vector<Floor>& floors) {
    ASSERT_OK_AND_ASSIGN(MemoryRows rows, CompactRowsOf(layout(), held, cut));
    ASSERT_OK_AND_ASSIGN(
        const ReplayPlan plan,
        PlanReplay(layout(), {.resume_at = cut, .floors = floors}));
    const ReplayJob job{
        .plan = &plan, .ids = std::span(ids_).first(cut), .reader = &rows};
    ASSERT_OK_AND_ASSIGN(
        const std::vector<ReplayResult> results,
        MakeReplayer(model_.get())->Rebuild(std::span(&job, 1), nullptr));
    ASSERT_OK_AND_ASSIGN(const WindowState wanted,
                         ExportWindow(layout(), held, cut));
    for (size_t i = 0; i < wanted.slots.size(); ++i) {
      EXPECT_EQ(wanted.slots[i], results[0].window.slots[i])
          << "cut " << cut << " " << layout().slots[wanted.slots[i].slot].name;
    }
  }
};

TEST_P(DecoderTailTest, AgreesWithTheOracle) {
  const std::unique_ptr<Sequence> sequence = model_->NewSequence();
  std::vector<Floor> floors;
  std::vector<float> logits;
  PrefillTail(sequence.get(), 0, 96, 0, &floors, &logits);
  const size_t flips = WindowFlips(*sequence, 96, "tail.96.");
  std::printf("%d flipped bytes\n", static_cast<int>(flips));
  if (flips == 0) {
    EXPECT_LE(RelativeError(logits, replays_.Get<float>("tail.96.logits")),
              kTolerance);
  } else {
    // Only rounding carried by a cold run of this path may have flipped a code,
    // here and there.
    EXPECT_LE(flips, 8);
    ComparingTap tap(&expected_, &layout(), /*forces=*/false);
    model_->set_tap(&tap);
    (void)Prefilled(96);
    model_->set_tap(nullptr);
    EXPECT_GT(tap.code_flips(), 0);
  }
}

TEST_P(DecoderTailTest, LeavesWhatPersistsAsItIs) {
  TestSession truth = Prefilled(96);
  const std::unique_ptr<Sequence> tailed = model_->NewSequence();
  std::vector<Floor> floors;
  PrefillTail(tailed.get(), 0, 96, 0, &floors, nullptr);
  ASSERT_OK_AND_ASSIGN(const MemoryRows wanted, truth.Compact());
  ASSERT_OK_AND_ASSIGN(const MemoryRows got,
                       CompactRowsOf(layout(), *tailed, 96));
  EXPECT_EQ(wanted.slots, got.slots);
  // Windows up to the layer above the last source are exact, of the next only
  // the last row, deeper ones nowhere.
  ASSERT_OK_AND_ASSIGN(const WindowState a, truth.Window());
  ASSERT_OK_AND_ASSIGN(const WindowState b,
                       ExportWindow(layout(), *tailed, 96));
  for (size_t i = 0; i < a.slots.size(); ++i) {
    const Slot& slot = layout().slots[a.slots[i].slot];
    if (!slot.is_window()) continue;
    EXPECT_EQ(a.slots[i].bytes == b.slots[i].bytes,
              slot.owner_layer <= kLastSource + 1)
        << slot.name;
    if (slot.owner_layer == kLastSource + 2) {
      const auto row = static_cast<ptrdiff_t>(slot.row_bytes);
      EXPECT_TRUE(std::equal(a.slots[i].bytes.end() - row,
                             a.slots[i].bytes.end(),
                             b.slots[i].bytes.end() - row));
    }
  }
}

TEST_P(DecoderTailTest, AsManyRowsAsTheDataflowNeedsAreExact) {
  // W + (R - 1) (W - 1) rows of R layers above the source give the last W rows
  // of the last: 8 + 2 * 7 here, 2,414 in the released model.
  const uint64_t rows = kWindow + 2 * (kWindow - 1);
  auto tail = PlanTailPrefill(layout(), 0, 96);
  ASSERT_TRUE(tail.has_value());
  ReplayPlan plan = tail->plan;
  for (uint32_t l = kLastSource; l < layout().n_layers; ++l) {
    plan.layers[l].run_begin = 96 - rows;
    if (l > kLastSource) plan.layers[l].input_begin = 96 - rows;
  }
  for (size_t i = 0; i < layout().slots.size(); ++i) {
    if (layout().slots[i].owner_layer > kLastSource) {
      plan.write_begin[i] = 96 - rows;
    }
  }
  plan.floors = {{96 - rows, 96, 96 - rows, kLastSource + 1}};
  const std::unique_ptr<Sequence> sequence = model_->NewSequence();
  Segment segment = SegmentOf(sequence.get(), ids_, 0, 96);
  segment.plan = &plan;
  ASSERT_OK(RunTokens(model_.get(), segment, 0, {}).status());
  TestSession truth = Prefilled(96);
  const auto slot = static_cast<uint32_t>(layout().slots.size() - 1);
  ASSERT_EQ(layout().slots[slot].owner_layer, layout().n_layers - 1);
  std::vector<uint8_t> a(kWindow * layout().slots[slot].row_bytes);
  std::vector<uint8_t> b(a.size());
  ASSERT_OK(truth.sequence()->ExportRows(slot, {96 - kWindow, 96}, a));
  ASSERT_OK(sequence->ExportRows(slot, {96 - kWindow, 96}, b));
  // One row fewer need not show: a bit at that depth is far below a code.
  EXPECT_EQ(a, b);
}

TEST_P(DecoderTailTest, WakesExactAtItsOwnEndAndLater) {
  for (uint64_t end = kWindow + 1; end <= 60; ++end) {
    SCOPED_TRACE(end);
    const std::unique_ptr<Sequence> session = model_->NewSequence();
    std::vector<Floor> floors;
    PrefillTail(session.get(), 0, end, end % 5, &floors, nullptr);
    ASSERT_EQ(floors.size(), 1);
    ExpectWakesExact(*session, end, floors);
    uint64_t at = end;
    for (const uint64_t more : {1, 2, 5, 9}) {
      Segment segment = SegmentOf(session.get(), ids_, at, at + more);
      ASSERT_OK(RunTokens(model_.get(), segment, 1, {}).status());
      at += more;
      ExpectWakesExact(*session, at, floors);
    }
    PrefillTail(session.get(), at, at + 19, 7, &floors, nullptr);
    ASSERT_EQ(floors.size(), 2);
    ExpectWakesExact(*session, at + 19, floors);
  }
}

TEST_P(DecoderTailTest, ChunksChangeNothing) {
  std::vector<WindowState> windows;
  for (const uint64_t chunk : {0, 1, 3, 8, 31}) {
    const std::unique_ptr<Sequence> session = model_->NewSequence();
    std::vector<Floor> floors;
    PrefillTail(session.get(), 0, 71, chunk, &floors, nullptr);
    ASSERT_OK_AND_ASSIGN(WindowState window,
                         ExportWindow(layout(), *session, 71));
    windows.push_back(std::move(window));
    EXPECT_EQ(windows.back().slots, windows.front().slots) << chunk;
  }
}

TEST(TailPrefillTest, ShortPrefillsAndFlatModelsHaveNone) {
  const auto model = LoadCase("plain", kernels::AvailableIsas().front());
  EXPECT_FALSE(PlanTailPrefill(model->layout(), 0, kWindow).has_value());
  EXPECT_TRUE(PlanTailPrefill(model->layout(), 0, kWindow + 1).has_value());
  EXPECT_FALSE(PlanTailPrefill(model->layout(), 90, 98).has_value());
  ModelLayout flat = model->layout();
  std::erase_if(flat.slots, [](const Slot& s) {
    return s.come_back == ComeBack::kPersist;
  });
  EXPECT_FALSE(PlanTailPrefill(flat, 0, 50).has_value());
}

INSTANTIATE_TEST_SUITE_P(Isas, DeepSeekV41ReplayTest,
                         ::testing::ValuesIn(kernels::AvailableIsas()),
                         [](const auto& info) {
                           return std::string(kernels::IsaName(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(Isas, DecoderTailTest,
                         ::testing::ValuesIn(kernels::AvailableIsas()),
                         [](const auto& info) {
                           return std::string(kernels::IsaName(info.param));
                         });

}  // namespace
}  // namespace torpor::replay::deepseek_v41
