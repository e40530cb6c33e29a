// SPDX-License-Identifier: Apache-2.0
//
// Exact means ==: on tiny models of windows 8, 7 and 5, three sliding layers
// around two full ones, on every CPU path.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "replay/witness.h"
#include "tests/replay/exactness_testing.h"

namespace torpor::replay {
namespace {

using kernels::Isa;

std::string Oracle(const std::string& name) {
  return std::string(TORPOR_ORACLES_DIR) + "/gemma3/" + name;
}

std::unique_ptr<Model> LoadTiny(const std::string& name, Isa isa, int threads) {
  auto model = LoadModel(Oracle(name), {.isa = isa, .n_threads = threads});
  EXPECT_OK(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

using Param = std::tuple<const char*, Isa>;

class ExactnessTest : public ::testing::TestWithParam<Param> {
 protected:
  ExactnessTest()
      : model_(LoadTiny(std::get<0>(GetParam()), std::get<1>(GetParam()), 1)),
        exact_(ExactTokens(*model_)),
        window_(model_->layout().LargestWindow()) {}

  std::unique_ptr<Model> Reload(int threads) const {
    return LoadTiny(std::get<0>(GetParam()), std::get<1>(GetParam()), threads);
  }
  std::vector<uint32_t> Ids(size_t n) {
    return RandomIds(random_, n, model_->vocab_size());
  }
  std::vector<uint64_t> Cuts(uint64_t first, uint64_t last) const {
    std::vector<uint64_t> cuts;
    for (uint64_t c = first; c <= last; ++c) cuts.push_back(c);
    return cuts;
  }

  testing::Random random_;
  std::unique_ptr<Model> model_;
  const uint64_t exact_;
  const uint64_t window_;
};

INSTANTIATE_TEST_SUITE_P(
    Models, ExactnessTest,
    ::testing::Combine(::testing::Values("w8", "w7", "w5"),
                       ::testing::ValuesIn(kernels::AvailableIsas())),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) + "_" +
             std::string(kernels::IsaName(std::get<1>(info.param)));
    });

TEST_P(ExactnessTest, EveryCutWakesExact) {
  EXPECT_EQ(exact_, 3 * (window_ - 1));
  const auto cuts = Cuts(1, 4 * exact_);
  NeverSlept truth(model_.get(), Ids(4 * exact_ + window_), cuts);
  for (const uint64_t cut : cuts) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kExact));
    EXPECT_EQ(plan.replay_tokens(), std::min(cut, exact_));
    EXPECT_TRUE(plan.exact);
    ExpectWakesAsItWas(model_.get(), &truth, cut, plan, 3);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ExactnessTest, ABoundedReplayThatReachesAsFarIsExact) {
  const auto cuts = Cuts(1, exact_ + window_);
  NeverSlept truth(model_.get(), Ids(exact_ + window_ + 1), cuts);
  for (const uint64_t cut : cuts) {
    for (const uint64_t r : {window_, window_ + 2, exact_, exact_ + 5}) {
      ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                           Plan(*model_, cut, ReplayMode::kBounded, r));
      EXPECT_EQ(plan.exact, r >= std::min(cut, exact_));
      if (plan.exact) {
        ExpectWakesAsItWas(model_.get(), &truth, cut, plan, 1);
      }
      if (HasFatalFailure()) return;
    }
  }
}

// Design D9: neither chunks nor threads nor the batch change a bit.
TEST_P(ExactnessTest, ChunksAndThreadsChangeNothing) {
  const auto ids = Ids(3 * exact_ + 40);
  const uint64_t n = ids.size();
  NeverSlept truth(model_.get(), ids, {n});
  for (const int threads : {1, 2}) {
    const auto model = Reload(threads);
    for (const uint64_t chunk : {1, 3, 7, 8, 9, 16, 64, 512}) {
      TestSession session(model.get());
      ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                           session.Run(ids, n, chunk));
      ASSERT_TRUE(kernels::SameBits(logits, truth.logits(0, n)))
          << "chunk " << chunk << ", " << threads << " threads";
      ASSERT_OK_AND_ASSIGN(const WindowState window, session.Window());
      ASSERT_EQ(window.slots, truth.window(n).slots);
      ASSERT_OK_AND_ASSIGN(const MemoryRows rows, session.Compact());
      ASSERT_EQ(rows.slots, truth.rows()->slots);
    }
  }
}

TEST_P(ExactnessTest, RaggedBatchesRebuildWhatEachAloneDoes) {
  std::vector<std::unique_ptr<NeverSlept>> truths;
  std::vector<ReplayPlan> plans;
  std::vector<ReplayJob> jobs;
  const std::vector<uint64_t> lengths = {1, window_, exact_ + 3, 2 * exact_,
                                         3 * exact_ + 1};
  for (const uint64_t n : lengths) {
    truths.push_back(std::make_unique<NeverSlept>(model_.get(), Ids(n),
                                                  std::vector<uint64_t>{n}));
    ASSERT_OK_AND_ASSIGN(ReplayPlan plan, Plan(*model_, n, ReplayMode::kExact));
    plans.push_back(plan);
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    jobs.push_back({.plan = &plans[i],
                    .ids = truths[i]->ids(),
                    .reader = truths[i]->rows(),
                    .want_logits = false});
  }
  for (const int threads : {1, 2}) {
    const auto model = Reload(threads);
    const auto replayer = MakeCpuReplayer(model.get());
    ASSERT_OK_AND_ASSIGN(const auto results, replayer->Rebuild(jobs, nullptr));
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(results[i].window.slots, truths[i]->window(lengths[i]).slots)
          << "session of " << lengths[i] << " tokens";
    }
  }
}

TEST_P(ExactnessTest, LogitsOfTheLastRowComeFromTheReplay) {
  const uint64_t n = 2 * exact_ + 3;
  NeverSlept truth(model_.get(), Ids(n), {n});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       PlanReplay(model_->layout(), {.resume_at = n,
                                                     .mode = ReplayMode::kExact,
                                                     .want_logits = true}));
  const ReplayJob job{.plan = &plan,
                      .ids = truth.ids(),
                      .reader = truth.rows(),
                      .want_logits = true};
  ASSERT_OK_AND_ASSIGN(
      const auto results,
      MakeCpuReplayer(model_.get())->Rebuild(std::span(&job, 1), nullptr));
  EXPECT_TRUE(
      kernels::SameBits(results[0].window.logits, truth.logits(n - 1, n)));
  EXPECT_EQ(results[0].window.slots, truth.window(n).slots);
}

// ---- the boundary, by reachability ---------------------------------------

class Probe {
 public:
  // Replays `plan` over real inputs, one row of which is NaN.
  static absl::StatusOr<WindowState> Run(Model* model, NeverSlept* truth,
                                         const ReplayPlan& plan,
                                         uint64_t poisoned) {
    const std::unique_ptr<Sequence> sequence = model->NewSequence();
    TORPOR_RETURN_IF_ERROR(LoadCompactRows(model->layout(), plan.resume_at,
                                           truth->rows(), sequence.get(),
                                           nullptr)
                               .status());
    std::vector<float> inputs;
    {
      TestSession scratch(model);
      ForwardOptions options;
      options.on_layer_input = [&](uint32_t layer, size_t, uint64_t,
                                   std::span<const float> rows) {
        if (layer == 0) inputs.insert(inputs.end(), rows.begin(), rows.end());
      };
      TORPOR_RETURN_IF_ERROR(
          scratch
              .Run(std::span(truth->ids()).first(plan.resume_at), 0, 0, options)
              .status());
    }
    const size_t hidden = model->hidden_size();
    std::fill_n(inputs.begin() + static_cast<ptrdiff_t>(poisoned * hidden),
                hidden, kernels::kNan);
    Segment segment;
    segment.sequence = sequence.get();
    segment.begin = plan.replay_start;
    segment.ids = std::span(truth->ids())
                      .subspan(plan.replay_start, plan.replay_tokens());
    segment.plan = &plan;
    segment.inputs = inputs.data() + plan.replay_start * hidden;
    segment.logits_begin = plan.resume_at;
    TORPOR_RETURN_IF_ERROR(RunTokens(model, segment, 0, {}).status());
    return ExportWindow(model->layout(), *sequence, plan.resume_at);
  }

  // Any element of the row that is NaN, in the slot's own format.
  static bool HasNan(const Slot& slot, std::span<const uint8_t> row) {
    if (slot.format == "bf16") {
      for (size_t i = 0; i < row.size(); i += 2) {
        const uint16_t bits = static_cast<uint16_t>(row[i] | row[i + 1] << 8);
        if (std::isnan(kernels::ToFloat({bits}))) return true;
      }
      return false;
    }
    for (size_t i = 0; i < row.size(); i += 4) {
      float v = 0;
      std::memcpy(&v, row.data() + i, 4);
      if (std::isnan(v)) return true;
    }
    return false;
  }
};

TEST_P(ExactnessTest, TheFirstRowReachesTheOldestRowOfTheLastWindow) {
  const uint64_t cut = 2 * exact_ + 1;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kExact));
  ASSERT_EQ(plan.replay_start, cut - exact_);
  ASSERT_OK_AND_ASSIGN(
      const WindowState window,
      Probe::Run(model_.get(), &truth, plan, plan.replay_start));
  const SlotRows& last = window.slots.back();
  const Slot& slot = model_->layout().slots[last.slot];
  EXPECT_TRUE(Probe::HasNan(slot, std::span(last.bytes).first(slot.row_bytes)))
      << "the oldest row of " << slot.name;
}

TEST_P(ExactnessTest, ARowBeforeTheFirstReachesNothing) {
  const uint64_t cut = 2 * exact_ + 1;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(ReplayPlan plan, Plan(*model_, cut, ReplayMode::kExact));
  // Forced to begin one row early, in every layer.
  --plan.replay_start;
  for (LayerRows& rows : plan.layers) {
    rows.input_begin = std::min(rows.input_begin, cut) - 1;
    rows.run_begin = std::min(rows.run_begin, cut) - 1;
  }
  for (const uint32_t slot : model_->layout().ReplaySlots()) {
    --plan.write_begin[slot];
  }
  ASSERT_OK_AND_ASSIGN(
      const WindowState window,
      Probe::Run(model_.get(), &truth, plan, plan.replay_start));
  EXPECT_EQ(window.slots, truth.window(cut).slots);
}

// ---- what replay reads and leaves alone -----------------------------------

TEST_P(ExactnessTest, EveryStoredRowInSightMatters) {
  const uint64_t cut = 2 * exact_ + 1;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kExact));
  for (const auto& [slot, bytes] : truth.rows()->slots) {
    // A full layer that no window stands above is not read at all.
    const uint32_t owner = model_->layout().slots[slot].owner_layer;
    const bool read = plan.layers[owner].run_begin < cut;
    MemoryRows changed = *truth.rows();
    const size_t row_bytes = model_->layout().slots[slot].row_bytes;
    for (const uint64_t row : {uint64_t{0}, cut / 2}) {
      // A large value, so that no rounding hides it.
      for (size_t i = 1; i < row_bytes; i += 2) {
        changed.slots[slot][row * row_bytes + i] = 0x42;
      }
    }
    auto woken = TestSession::Wake(model_.get(), truth.ids(), plan, &changed);
    ASSERT_OK(woken.status());
    ASSERT_OK_AND_ASSIGN(const WindowState window, woken->Window());
    EXPECT_EQ(window.slots != truth.window(cut).slots, read)
        << model_->layout().slots[slot].name;
  }
}

TEST_P(ExactnessTest, StoredRowsStayAsTheyAre) {
  const uint64_t cut = 2 * exact_ + 1;
  NeverSlept truth(model_.get(), Ids(cut + 5), {cut});
  const auto before = truth.rows()->slots;
  for (const auto& [mode, r] : {std::pair{ReplayMode::kExact, uint64_t{0}},
                                std::pair{ReplayMode::kBounded, window_}}) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan, Plan(*model_, cut, mode, r));
    auto woken =
        TestSession::Wake(model_.get(), truth.ids(), plan, truth.rows());
    ASSERT_OK(woken.status());
    EXPECT_EQ(truth.rows()->slots, before);
    // Nor did the replay write them in its own sequence.
    ASSERT_OK_AND_ASSIGN(const MemoryRows inside, woken->Compact());
    for (const auto& [slot, bytes] : inside.slots) {
      EXPECT_TRUE(
          std::equal(bytes.begin(), bytes.end(), before.at(slot).begin()));
    }
  }
}

// ---- bounded --------------------------------------------------------------

TEST_P(ExactnessTest, BoundedIsRightWhereItCanBe) {
  const uint64_t cut = exact_ + 2 * window_;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  for (const uint64_t r : {window_, window_ + 1, exact_ - 1}) {
    ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                         Plan(*model_, cut, ReplayMode::kBounded, r));
    ASSERT_FALSE(plan.exact);
    EXPECT_EQ(plan.replay_start, cut - r);
    auto woken =
        TestSession::Wake(model_.get(), truth.ids(), plan, truth.rows());
    ASSERT_OK(woken.status());
    ASSERT_OK_AND_ASSIGN(const WindowState window, woken->Window());
    const WindowState& cold = truth.window(cut);
    // K and V of the first sliding layer, whole.
    EXPECT_EQ(window.slots[0], cold.slots[0]);
    EXPECT_EQ(window.slots[1], cold.slots[1]);
    // The last row of the second.
    for (const size_t i : {2, 3}) {
      const size_t row = model_->layout().slots[window.slots[i].slot].row_bytes;
      EXPECT_TRUE(std::equal(window.slots[i].bytes.end() - row,
                             window.slots[i].bytes.end(),
                             cold.slots[i].bytes.end() - row))
          << "R " << r;
    }
    // And not everything else: bounded is an approximation.
    if (r == window_) {
      EXPECT_NE(window.slots, cold.slots);
    }
  }
}

TEST_P(ExactnessTest, NothingBelowTheFloorLeaks) {
  const uint64_t cut = exact_ + 2 * window_;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kBounded, window_));
  std::vector<WindowState> windows;
  for (const bool poison : {false, true}) {
    const std::unique_ptr<Sequence> sequence = model_->NewSequence();
    ASSERT_OK(LoadCompactRows(model_->layout(), cut, truth.rows(),
                              sequence.get(), nullptr)
                  .status());
    for (const uint32_t slot : model_->layout().ReplaySlots()) {
      const std::vector<uint8_t> nan(
          plan.replay_start * model_->layout().slots[slot].row_bytes,
          poison ? 0xff : 0x00);
      ASSERT_OK(sequence->ImportRows(slot, 0, nan));
    }
    Segment segment;
    segment.sequence = sequence.get();
    segment.begin = plan.replay_start;
    segment.ids = std::span(truth.ids()).subspan(plan.replay_start);
    segment.plan = &plan;
    segment.logits_begin = cut;
    ASSERT_OK(RunTokens(model_.get(), segment, 0, {}).status());
    ASSERT_OK_AND_ASSIGN(WindowState window,
                         ExportWindow(model_->layout(), *sequence, cut));
    windows.push_back(std::move(window));
  }
  EXPECT_EQ(windows[0].slots, windows[1].slots);
}

// Design D5: exact gives the window that the session held, wakes included.
TEST_P(ExactnessTest, ASessionThatWasWokenBoundedWakesExactToItsBits) {
  for (int round = 0; round < 4; ++round) {
    std::vector<uint32_t> ids = Ids(random_.Between(window_ + 1, 2 * exact_));
    auto session = std::make_unique<TestSession>(model_.get());
    ASSERT_OK(session->Run(ids, 0).status());
    std::vector<Floor> floors;
    std::vector<uint64_t> cuts;
    std::map<uint64_t, WindowState> first_windows;
    for (int wake = 0; wake < 5; ++wake) {
      const uint64_t cut = session->ids().size();
      ASSERT_OK_AND_ASSIGN(MemoryRows rows, session->Compact());
      ASSERT_OK_AND_ASSIGN(const WindowState held, session->Window());
      first_windows[cut] = held;
      const std::vector<uint32_t> all = session->ids();
      // As it was, by an exact wake with the floor log.
      ASSERT_OK_AND_ASSIGN(const ReplayPlan exact,
                           Plan(*model_, cut, ReplayMode::kExact, 0, floors));
      ASSERT_OK_AND_ASSIGN(TestSession as_it_was,
                           TestSession::Wake(model_.get(), all, exact, &rows));
      ASSERT_OK_AND_ASSIGN(const WindowState rebuilt, as_it_was.Window());
      ASSERT_EQ(rebuilt.slots, held.slots) << "wake " << wake;
      // And at every earlier cut, to what was first computed there.
      for (const auto& [earlier, window] : first_windows) {
        std::vector<Floor> log = floors;
        ASSERT_OK_AND_ASSIGN(
            const ReplayPlan back,
            Plan(*model_, earlier, ReplayMode::kExact, 0, log));
        ASSERT_OK_AND_ASSIGN(TestSession rewound,
                             TestSession::Wake(model_.get(), all, back, &rows));
        ASSERT_OK_AND_ASSIGN(const WindowState there, rewound.Window());
        ASSERT_EQ(there.slots, window.slots) << "rewound to " << earlier;
      }
      // Then a bounded wake and fifty more tokens, or few.
      const uint64_t r = random_.Between(window_, exact_);
      ASSERT_OK_AND_ASSIGN(const ReplayPlan bounded,
                           Plan(*model_, cut, ReplayMode::kBounded, r, floors));
      if (!bounded.exact) floors.push_back(bounded.floor());
      auto woken = TestSession::Wake(model_.get(), all, bounded, &rows);
      ASSERT_OK(woken.status());
      session = std::make_unique<TestSession>(*std::move(woken));
      const auto more = Ids(wake % 2 == 0 ? 50 : random_.Between(1, window_));
      ASSERT_OK(session->Run(more, 0).status());
    }
    EXPECT_FALSE(floors.empty());
  }
}

// ---- witness --------------------------------------------------------------

TEST_P(ExactnessTest, TheWitnessTellsExactFromBounded) {
  const uint64_t cut = exact_ + 2 * window_;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  const Witness witness =
      MakeWitness(model_->layout(), model_->numerics_id(), truth.window(cut));
  EXPECT_EQ(witness.layers.size(), 3);
  for (const LayerWitness& layer : witness.layers) {
    EXPECT_GE(layer.rows.size(), 4);
    EXPECT_EQ(layer.rows.back().position, cut - 1);
    EXPECT_EQ(layer.rows.front().position, cut - window_ + 1);
  }
  ASSERT_OK_AND_ASSIGN(
      const WitnessReport same,
      CompareWithWitness(model_->layout(), truth.window(cut), witness));
  EXPECT_EQ(same.verdict, Verdict::kExact);
  EXPECT_EQ(same.max_error(), 0);

  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kBounded, window_));
  auto woken = TestSession::Wake(model_.get(), truth.ids(), plan, truth.rows());
  ASSERT_OK(woken.status());
  ASSERT_OK_AND_ASSIGN(const WindowState bounded, woken->Window());
  ASSERT_OK_AND_ASSIGN(const WitnessReport report,
                       CompareWithWitness(model_->layout(), bounded, witness));
  EXPECT_EQ(report.verdict, Verdict::kMeasured);
  EXPECT_TRUE(report.layers[0].digest_equal);
  EXPECT_FALSE(report.layers[2].digest_equal);
  EXPECT_GT(report.max_error(), 1e-3);

  // One bit anywhere shows.
  WindowState flipped = truth.window(cut);
  flipped.slots[3].bytes[17] ^= 1;
  ASSERT_OK_AND_ASSIGN(const WitnessReport seen,
                       CompareWithWitness(model_->layout(), flipped, witness));
  EXPECT_EQ(seen.verdict, Verdict::kMeasured);
  WindowState other = truth.window(cut);
  other.resume_at = cut - 1;
  EXPECT_THAT(CompareWithWitness(model_->layout(), other, witness),
              testing::HasCode(absl::StatusCode::kInvalidArgument));
}

// ---- bad input ------------------------------------------------------------

TEST_P(ExactnessTest, BadRowsAreRefused) {
  TestSession session(model_.get());
  const std::vector<uint32_t> ids = {1, model_->vocab_size(), 2};
  EXPECT_THAT(
      session.Run(ids, 0),
      testing::HasStatus(absl::StatusCode::kInvalidArgument, "position 1"));
  const std::unique_ptr<Sequence> sequence = model_->NewSequence();
  EXPECT_THAT(sequence->ImportRows(999, 0, {}),
              testing::HasCode(absl::StatusCode::kInvalidArgument));
  const std::vector<uint8_t> odd(3);
  EXPECT_THAT(sequence->ImportRows(0, 0, odd),
              testing::HasCode(absl::StatusCode::kInvalidArgument));
  std::vector<uint8_t> out(model_->layout().slots[0].row_bytes);
  EXPECT_THAT(sequence->ExportRows(0, {0, 1}, out),
              testing::HasCode(absl::StatusCode::kOutOfRange));
}

TEST_P(ExactnessTest, ACancelledReplayStops) {
  const uint64_t cut = 2 * exact_;
  NeverSlept truth(model_.get(), Ids(cut), {cut});
  ASSERT_OK_AND_ASSIGN(const ReplayPlan plan,
                       Plan(*model_, cut, ReplayMode::kExact));
  const ReplayJob job{
      .plan = &plan, .ids = truth.ids(), .reader = truth.rows()};
  int polls = 0;
  EXPECT_THAT(MakeCpuReplayer(model_.get())
                  ->Rebuild(std::span(&job, 1), [&] { return ++polls > 6; }),
              testing::HasCode(absl::StatusCode::kCancelled));
}

}  // namespace
}  // namespace torpor::replay
