// SPDX-License-Identifier: Apache-2.0
//
// Plans of random small layouts and requests against the dependency tracer, and
// run as numbers. TORPOR_TEST_SEED repeats a run.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "replay/planner.h"
#include "tests/replay/dependency_tracer.h"
#include "tests/replay/planner_cases.h"
#include "tests/replay/random_cases.h"
#include "tests/replay/session_simulator.h"
#include "tests/testing/random.h"

namespace torpor::replay {
namespace {

using testing::Random;

// [begin, cut) as a set.
RowSet Run(uint64_t begin, uint64_t cut) {
  RowSet rows(cut);
  for (uint64_t row = begin; row < cut; ++row) rows[row] = true;
  return rows;
}

uint64_t Count(const RowSet& rows) {
  return static_cast<uint64_t>(std::count(rows.begin(), rows.end(), true));
}

bool AnyBelow(const RowSet& rows, uint64_t end) {
  return std::find(rows.begin(), rows.begin() + end, true) !=
         rows.begin() + end;
}

void Compare(const std::string& what, uint64_t begin, const RowSet& want,
             std::ostringstream& out) {
  if (begin <= want.size() && Run(begin, want.size()) == want) return;
  out << what << ": planned from " << begin << ", needed " << RowSetString(want)
      << "\n";
}

// Where the plan is not what the tracer reaches; empty when it is.
std::string Deviation(const Case& c, const ReplayPlan& plan) {
  const Traced traced = TracedOf(c);
  const Trace trace = TraceReplay(c.layout, traced.asked);
  std::ostringstream out;
  uint64_t token_layers = 0;
  for (uint32_t layer = 0; layer < c.layout.n_layers; ++layer) {
    const std::string name = "layer " + std::to_string(layer);
    Compare(name + " input", plan.layers[layer].input_begin,
            trace.inputs[layer], out);
    Compare(name + " run", plan.layers[layer].run_begin, trace.runs[layer],
            out);
    token_layers += Count(trace.runs[layer]);
  }
  Compare("replay start", plan.replay_start, trace.inputs[0], out);
  for (size_t s = 0; s < c.layout.slots.size(); ++s) {
    Compare(c.layout.slots[s].name, plan.write_begin[s], trace.writes[s], out);
  }
  if (plan.token_layers != token_layers) {
    out << "token-layers " << plan.token_layers << ", not " << token_layers
        << "\n";
  }
  const Trace exact = TraceReplay(c.layout, traced.exact);
  bool is_exact = true;
  for (const RowSet& rows : exact.inputs) {
    is_exact = is_exact && !AnyBelow(rows, traced.start);
  }
  if (plan.exact != is_exact) {
    out << "exact is " << plan.exact << ", first row " << traced.start << "\n";
  }
  return out.str();
}

// The rows that a planned run may read are those that the definition lets it.
std::string FloorDeviation(const Case& c, const ReplayPlan& plan) {
  const Traced traced = TracedOf(c);
  std::ostringstream out;
  for (uint32_t layer = 0; layer < c.layout.n_layers; ++layer) {
    for (const uint32_t s : ReplayedWindowsOf(c.layout, layer)) {
      for (uint64_t reader = plan.layers[layer].run_begin;
           reader < plan.resume_at; ++reader) {
        uint64_t floor = 0;
        for (const FloorRange& range : plan.floors) {
          if (layer >= range.layer_begin && range.row_begin <= reader &&
              reader < range.row_end) {
            floor = std::max(floor, range.floor);
          }
        }
        for (uint64_t row = 0; row < plan.resume_at; ++row) {
          if (!Attends(c.layout.slots[s], c.request.spans, reader, row)) {
            continue;
          }
          const bool hidden = IsHidden(traced.asked.floors, layer, reader, row);
          if (hidden == (row < floor)) continue;
          out << "row " << reader << " of layer " << layer << " must "
              << (hidden ? "not " : "") << "read row " << row << "\n";
        }
      }
    }
  }
  return out.str();
}

TEST(PlannerPropertyTest, RandomLayoutsAreValid) {
  ForEachUsualCase([](const Case& c) {
    const absl::Status status = c.layout.Validate();
    return status.ok() ? "" : status.ToString();
  });
}

TEST(PlannerPropertyTest, APlanIsWhatTheTracerReaches) {
  uint64_t n_bounded = 0;
  uint64_t n_inexact = 0;
  uint64_t n_cut_by_floor = 0;
  ForEachUsualCase([&](const Case& c) -> std::string {
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    n_bounded += c.request.mode == ReplayMode::kBounded ? 1 : 0;
    n_inexact += plan.exact ? 0 : 1;
    n_cut_by_floor += plan.exact && !plan.floors.empty() ? 1 : 0;
    return Deviation(c, plan);
  });
  // The cases are worth something.
  EXPECT_GT(n_bounded, kCases / 3);
  EXPECT_GT(n_inexact, kCases / 20);
  EXPECT_GT(n_cut_by_floor, kCases / 20);
}

// Rows of an open group may lie below H - R. They must be rebuilt, so the
// replay, and with it the floor that it logs, starts at them.
TEST(PlannerPropertyTest, AnOwedRowBelowTheBoundLowersTheStart) {
  uint64_t n = 0;
  ForEachCase([&](const Case& c) -> std::string {
    if (!OwesBelowBound(c) || c.layout.LargestWindow() == 0) return "";
    ++n;
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    return Deviation(c, plan) + FloorDeviation(c, plan);
  });
  EXPECT_GT(n, 0);
}

// Where no window is cut nothing is approximate, whatever is owed.
TEST(PlannerPropertyTest, ABoundWithoutWindowsIsExact) {
  uint64_t n = 0;
  ForEachCase([&](const Case& c) -> std::string {
    if (!OwesBelowBound(c) || c.layout.LargestWindow() > 0) return "";
    ++n;
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    return Deviation(c, plan);
  });
  EXPECT_GT(n, 0);
}

// A log that holds a floor shorter than a window is damaged: rows after it
// would see rows that no wake rebuilt. Either it is refused or its definition
// is followed; a plan that reads rows it has not is neither.
TEST(PlannerPropertyTest, AFloorShorterThanAWindowIsRefusedOrFollowed) {
  uint64_t index = 0;
  ForEachUsualCase([&](const Case& c) -> std::string {
    Random random(kCases + index++);
    Case short_floor = c;
    short_floor.request.spans.clear();
    short_floor.request.floors = {
        RandomShortFloor(random, c.layout, c.request.resume_at)};
    ReplayPlan plan;
    const std::string refused = Planned(short_floor, plan);
    if (!refused.empty()) return "";
    const std::string deviation = Deviation(short_floor, plan);
    return deviation.empty() ? "" : deviation + short_floor.String();
  });
}

TEST(PlannerPropertyTest, FloorRangesHideWhatTheDefinitionHides) {
  ForEachUsualCase([](const Case& c) -> std::string {
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    return FloorDeviation(c, plan);
  });
}

TEST(PlannerPropertyTest, FirstRowOwedIsTheTracersFirstOwedRow) {
  ForEachUsualCase([](const Case& c) -> std::string {
    const uint64_t cut = c.request.resume_at;
    const std::vector<RowSet> owed = OwedRows(c.layout, {.cut = cut});
    std::ostringstream out;
    for (size_t s = 0; s < owed.size(); ++s) {
      const Slot& slot = c.layout.slots[s];
      if (slot.come_back == ComeBack::kPersist) continue;
      Compare(slot.name, FirstRowOwed(slot, cut), owed[s], out);
    }
    return out.str();
  });
}

// ---- Plans as numbers ----------------------------------------------------

// Rows that persist, as any session may have stored them.
KvRows AnyStoredRows(const ModelLayout& layout, uint64_t cut) {
  KvRows rows(layout.slots.size());
  for (size_t s = 0; s < rows.size(); ++s) {
    const Slot& slot = layout.slots[s];
    const bool pooled = slot.kind == SlotKind::kPooled;
    rows[s].resize(pooled ? cut / slot.tokens_per_row : cut);
    if (slot.come_back != ComeBack::kPersist) continue;
    for (size_t row = 0; row < rows[s].size(); ++row) {
      rows[s][row] = s * 1'000'003 + row * 7919;
    }
  }
  return rows;
}

Timeline TimelineOf(const Case& c) {
  Timeline timeline;
  for (uint64_t i = 0; i < c.request.resume_at; ++i) {
    timeline.tokens.push_back(i * 31 + 5);
  }
  timeline.spans = c.request.spans;
  return timeline;
}

// All rows through all layers, with the floors that the tracer was given.
Held WantedRows(const Case& c, const Timeline& timeline) {
  const Traced traced = TracedOf(c);
  const uint64_t cut = c.request.resume_at;
  const Rebuilt all =
      RunRectangle(c.layout, timeline, 0, cut, traced.asked.floors,
                   AnyStoredRows(c.layout, cut));
  return HeldOf(c.layout, timeline, cut, all, !c.request.open_groups_stored);
}

TEST(PlannerPropertyTest, AReplayReadsNoRowThatItHasNotAndRebuildsTheRest) {
  ForEachUsualCase([](const Case& c) -> std::string {
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    const Timeline timeline = TimelineOf(c);
    const Rebuilt got = RunPlan(c.layout, timeline, plan,
                                AnyStoredRows(c.layout, plan.resume_at));
    if (c.request.want_logits && plan.resume_at > 0 &&
        !got.logits.has_value()) {
      return "no logits\n";
    }
    return Difference(c.layout, WantedRows(c, timeline), got);
  });
}

TEST(PlannerPropertyTest, TheFirstRowOfAReplayMatters) {
  ForEachUsualCase([](const Case& c) -> std::string {
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    // A span enters whole, whichever of its rows is needed.
    if (plan.replay_start == plan.resume_at || !c.request.spans.empty()) {
      return "";
    }
    Timeline timeline = TimelineOf(c);
    const Held want = WantedRows(c, timeline);
    timeline.tokens[plan.replay_start] += 1;
    const Rebuilt got = RunPlan(c.layout, timeline, plan,
                                AnyStoredRows(c.layout, plan.resume_at));
    return Difference(c.layout, want, got).empty()
               ? "another first token changes nothing\n"
               : "";
  });
}

}  // namespace
}  // namespace torpor::replay
