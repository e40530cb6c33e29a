// SPDX-License-Identifier: Apache-2.0
//
// Whole session histories in numbers: prefill, wakes at cuts old and new,
// tokens between them. A plan that calls itself exact must rebuild the very
// rows that the session held when it first stood at the cut; a bounded one
// those of an engine that re-runs everything from its start. TORPOR_TEST_SEED
// repeats a run.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "replay/planner.h"
#include "tests/replay/dependency_tracer.h"
#include "tests/replay/layout_builder.h"
#include "tests/replay/random_cases.h"
#include "tests/replay/session_simulator.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using testing::Random;

constexpr uint64_t kHistories = 2'000;
constexpr uint64_t kLongest = 70;

struct HistoryOptions {
  // Prefills whose upper layers run their last tokens only.
  bool tails = false;
  // Bounds may be shorter than the open groups.
  bool short_bounds = false;
};

// The first histories are of small layouts, so that the first failure is.
uint32_t MaxLayers(uint64_t index) {
  return static_cast<uint32_t>(std::min<uint64_t>(1 + index / 50, 6));
}

class History {
 public:
  History(uint64_t index, HistoryOptions options)
      : random_(index),
        options_(options),
        layout_(RandomLayout(random_, MaxLayers(index))),
        session_(layout_, random_.OneIn(3) ? RandomSpans(random_, kLongest, {})
                                           : std::vector<TwoWaySpan>()) {}

  // What went wrong, with the story up to it; empty when nothing did.
  std::string Run() {
    Append(random_.Between(1, 24));
    for (uint64_t i = random_.Between(1, 8); i > 0 && failure_.empty(); --i) {
      Resume(random_.OneIn(3) ? AnyCut() : session_.n_tokens());
      const bool tail = options_.tails && random_.OneIn(2) && AppendTail();
      // A cut right behind a tail is not one that the log describes.
      Append(random_.Between(tail ? 1 : 0, 12));
    }
    // Now every plan of the past, with the whole log.
    for (int i = 0; i < 8 && failure_.empty(); ++i) {
      const uint64_t cut = i == 0 ? session_.n_tokens() : AnyCut();
      Replay(RandomRequest(cut, ReplayMode::kExact));
      Replay(RandomRequest(cut, ReplayMode::kBounded));
    }
    if (failure_.empty()) return "";
    return LayoutString(layout_) + story_.str() + failure_;
  }

  [[nodiscard]] uint64_t n_inexact() const { return n_inexact_; }
  [[nodiscard]] uint64_t n_cut_exact() const { return n_cut_exact_; }

 private:
  const TwoWaySpan* SpanAround(uint64_t cut) const {
    for (const TwoWaySpan& span : session_.timeline().spans) {
      if (span.begin < cut && cut < span.end) return &span;
    }
    return nullptr;
  }

  // A cut where the session once stood.
  uint64_t AnyCut() {
    for (;;) {
      const uint64_t cut = random_.Between(1, session_.n_tokens());
      if (session_.HeldAt(cut) != nullptr) return cut;
    }
  }

  std::vector<Value> Tokens(uint64_t n) {
    std::vector<Value> tokens;
    while (tokens.size() < n) tokens.push_back(random_.Between(0, 99));
    return tokens;
  }

  // At least `n` tokens in batches of any size, none of which cuts a span.
  void Append(uint64_t n) {
    while (n > 0) {
      uint64_t batch = random_.Between(1, n);
      if (const auto* span = SpanAround(session_.n_tokens() + batch)) {
        batch = span->end - session_.n_tokens();
      }
      session_.Append(Tokens(batch));
      story_ << "append " << batch << "\n";
      n -= std::min(n, batch);
    }
    CheckSession();
  }

  // A prefill with a tail, if the layout and the spans allow one.
  bool AppendTail() {
    const uint64_t begin = session_.n_tokens();
    uint32_t least_layer = 1;
    for (const Slot& slot : layout_.slots) {
      // Rows of all tokens come from below the tail.
      if (!slot.is_window() || slot.come_back == ComeBack::kPersist) {
        least_layer = std::max(least_layer, slot.owner_layer + 1);
      }
    }
    if (least_layer >= layout_.n_layers) return false;
    const auto layer = static_cast<uint32_t>(
        random_.Between(least_layer, layout_.n_layers - 1));
    const uint64_t n_tail =
        std::max<uint64_t>(layout_.LargestWindow(), 1) + random_.Between(0, 3);
    const uint64_t end = begin + n_tail + random_.Between(0, 6);
    if (SpanAround(end) != nullptr || SpanAround(end - n_tail) != nullptr) {
      return false;
    }
    session_.AppendWithTail(Tokens(end - begin), n_tail, layer);
    log_.push_back({end, end - n_tail, layer});
    story_ << "append " << end - begin << ", the last " << n_tail
           << " in layers >= " << layer << "\n";
    CheckSession();
    return true;
  }

  void CheckSession() {
    if (session_.errors().empty() || !failure_.empty()) return;
    failure_ = "the session " + session_.errors().front() + "\n";
  }

  PlanRequest RandomRequest(uint64_t cut, ReplayMode mode) {
    PlanRequest request;
    request.resume_at = cut;
    request.mode = mode;
    request.floors = log_;
    request.spans = session_.timeline().spans;
    request.want_logits = random_.OneIn(2);
    if (mode == ReplayMode::kBounded) {
      uint64_t least = std::max<uint64_t>(layout_.LargestWindow(), 1);
      for (const Slot& slot : layout_.slots) {
        if (options_.short_bounds || slot.kind != SlotKind::kOpenGroup) {
          continue;
        }
        least = std::max<uint64_t>(
            least, slot.tokens_per_row - 1 + slot.overlap_tokens);
      }
      request.replay_tokens =
          least + random_.Between(0, 1) * random_.Between(0, 8);
    }
    return request;
  }

  // Plans and runs; the rebuilt rows, or nullopt when they are wrong.
  std::optional<std::pair<ReplayPlan, Rebuilt>> Replay(
      const PlanRequest& request) {
    const auto fail = [&](const std::string& why) {
      failure_ = RequestString(request) + "\n" + why;
      return std::nullopt;
    };
    const absl::StatusOr<ReplayPlan> plan = PlanReplay(layout_, request);
    if (!plan.ok()) return fail(plan.status().ToString());
    const uint64_t cut = request.resume_at;
    const KvRows stored =
        StoredRows(layout_, session_.kv(), cut, request.open_groups_stored);
    const Timeline& timeline = session_.timeline();
    Rebuilt rebuilt = RunPlan(layout_, timeline, *plan, stored);
    if (request.want_logits && !rebuilt.logits.has_value()) {
      return fail("no logits\n");
    }
    const std::vector<Floor> binding = BindingFloors(log_, cut);
    if (plan->exact) {
      n_cut_exact_ += binding.empty() ? 0 : 1;
      const std::string diff =
          Difference(layout_, *session_.HeldAt(cut), rebuilt);
      if (!diff.empty()) return fail("exact, but\n" + diff);
      return std::pair(*plan, std::move(rebuilt));
    }
    if (request.mode != ReplayMode::kBounded) return fail("exact is false\n");
    ++n_inexact_;
    const uint64_t start = BoundedStart(layout_,
                                        {.cut = cut,
                                         .spans = request.spans,
                                         .want_logits = request.want_logits},
                                        request.replay_tokens);
    if (!(plan->floor() == Floor{cut, start, 0})) {
      return fail("logs a floor at " + std::to_string(plan->replay_start) +
                  ", started at " + std::to_string(start) + "\n");
    }
    // An engine knows the one floor of its wake. Older ones of all layers lie
    // below it, or the plan were exact; those of some layers it must repeat.
    const bool partial =
        std::any_of(binding.begin(), binding.end(),
                    [](const Floor& floor) { return floor.layer_begin > 0; });
    const Rebuilt engine =
        RunRectangle(layout_, timeline, start, cut,
                     partial ? binding : std::vector<Floor>(), stored);
    const std::string diff = Difference(
        layout_, HeldOf(layout_, timeline, cut, engine, true), rebuilt);
    if (!diff.empty()) return fail("bounded, but\n" + diff);
    return std::pair(*plan, std::move(rebuilt));
  }

  // Sleeps and wakes at `cut`, and goes on from there.
  void Resume(uint64_t cut) {
    PlanRequest request = RandomRequest(
        cut, random_.OneIn(3) ? ReplayMode::kExact : ReplayMode::kBounded);
    // Rows that a suspend here would store are those held now, unless they are
    // the copies of a wake at this very cut, which exact replay does not
    // repeat. A bounded wake rebuilds its open groups: the floor that it logs
    // tells later plans how, and cannot tell that they came from elsewhere.
    request.open_groups_stored =
        request.mode == ReplayMode::kExact && cut == session_.n_tokens() &&
        std::none_of(log_.begin(), log_.end(), [&](const Floor& floor) {
          return floor.resume_at == cut;
        });
    const auto got = Replay(request);
    if (!got.has_value()) return;
    story_ << (cut < session_.n_tokens() ? "rewind, " : "")
           << RequestString(request) << (got->first.exact ? "" : " (not exact)")
           << "\n";
    session_.Rewind(cut);
    std::erase_if(log_,
                  [&](const Floor& floor) { return floor.resume_at >= cut; });
    if (!got->first.exact) log_.push_back(got->first.floor());
    session_.Wake(got->second);
  }

  Random random_;
  const HistoryOptions options_;
  const ModelLayout layout_;
  SimulatedSession session_;
  std::vector<Floor> log_;
  std::ostringstream story_;
  std::string failure_;
  uint64_t n_inexact_ = 0;
  uint64_t n_cut_exact_ = 0;
};

void RunHistories(HistoryOptions options) {
  uint64_t n_inexact = 0;
  uint64_t n_cut_exact = 0;
  int n_failed = 0;
  for (uint64_t i = 0; i < kHistories && n_failed < 3; ++i) {
    History history(i, options);
    const std::string failure = history.Run();
    n_inexact += history.n_inexact();
    n_cut_exact += history.n_cut_exact();
    if (failure.empty()) continue;
    ++n_failed;
    ADD_FAILURE() << "history " << i << "\n" << failure;
  }
  if (n_failed > 0) return;
  // They did what they are for.
  EXPECT_GT(n_inexact, kHistories);
  EXPECT_GT(n_cut_exact, kHistories);
}

TEST(PlannerHistoryTest, ExactReplayRebuildsWhatTheSessionHeld) {
  RunHistories({});
}

TEST(PlannerHistoryTest, ExactReplayRepeatsPrefillsWithATail) {
  RunHistories({.tails = true});
}

TEST(PlannerHistoryTest, OpenGroupsLongerThanTheBoundAreRebuilt) {
  RunHistories({.short_bounds = true});
}

}  // namespace
}  // namespace torpor::replay
