// SPDX-License-Identifier: Apache-2.0
//
// How plans of random small layouts and requests stand to each other.
// TORPOR_TEST_SEED repeats a run.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "replay/planner.h"
#include "tests/replay/dependency_tracer.h"
#include "tests/replay/planner_cases.h"

namespace torpor::replay {
namespace {

// Every row that `small` runs, `large` runs too.
std::string NotWithin(const ReplayPlan& small, const ReplayPlan& large) {
  std::ostringstream out;
  for (size_t layer = 0; layer < small.layers.size(); ++layer) {
    if (small.layers[layer].input_begin < large.layers[layer].input_begin ||
        small.layers[layer].run_begin < large.layers[layer].run_begin) {
      out << "layer " << layer << " runs more rows than it should\n";
    }
  }
  for (size_t s = 0; s < small.write_begin.size(); ++s) {
    if (small.write_begin[s] < large.write_begin[s]) {
      out << "slot " << s << " has more rows written than it should\n";
    }
  }
  return out.str();
}

// Plans `c` and its altered copies, and compares.
template <typename Alter>
std::string Altered(const Case& c, bool alteration_is_larger, Alter alter) {
  Case other = c;
  alter(other);
  ReplayPlan plan;
  ReplayPlan other_plan;
  if (std::string s = Planned(c, plan); !s.empty()) return s;
  if (std::string s = Planned(other, other_plan); !s.empty()) return s;
  const std::string failure = alteration_is_larger
                                  ? NotWithin(plan, other_plan)
                                  : NotWithin(other_plan, plan);
  return failure.empty() ? "" : failure + "altered to\n" + other.String();
}

TEST(PlannerRelationsTest, WantingLogitsNeverRunsFewerRows) {
  ForEachUsualCase([](const Case& c) {
    return Altered(c, true, [](Case& o) { o.request.want_logits = true; });
  });
}

TEST(PlannerRelationsTest, StoredOpenGroupsNeverRunMoreRows) {
  ForEachUsualCase([](const Case& c) {
    return Altered(c, false,
                   [](Case& o) { o.request.open_groups_stored = true; });
  });
}

TEST(PlannerRelationsTest, ALongerBoundNeverRunsFewerRows) {
  ForEachUsualCase([](const Case& c) -> std::string {
    // Stored open groups are rebuilt by an inexact plan alone.
    if (c.request.mode != ReplayMode::kBounded ||
        c.request.open_groups_stored) {
      return "";
    }
    return Altered(c, true, [](Case& o) {
      uint64_t& tokens = o.request.replay_tokens;
      tokens = (tokens > 0 ? tokens : o.layout.LargestWindow()) + 3;
    });
  });
}

TEST(PlannerRelationsTest, AnExactPlanRunsEveryRowOfABoundedOne) {
  ForEachUsualCase([](const Case& c) -> std::string {
    if (c.request.open_groups_stored) return "";
    return Altered(c, true,
                   [](Case& o) { o.request.mode = ReplayMode::kExact; });
  });
}

TEST(PlannerRelationsTest, AFloorNeverRunsMoreRows) {
  ForEachUsualCase([](const Case& c) -> std::string {
    const uint64_t window = std::max<uint64_t>(c.layout.LargestWindow(), 1);
    if (c.request.resume_at <= window || !c.request.spans.empty()) return "";
    return Altered(c, false, [&](Case& o) {
      const uint64_t at = o.request.resume_at - 1;
      o.request.floors.push_back({at, at - window, 0});
    });
  });
}

TEST(PlannerRelationsTest, ALongerWindowNeverRunsFewerRows) {
  ForEachUsualCase([](const Case& c) -> std::string {
    // Bounds and floors must stay above the largest window.
    if (c.request.mode != ReplayMode::kExact || !c.request.floors.empty()) {
      return "";
    }
    return Altered(c, true, [](Case& o) {
      for (Slot& slot : o.layout.slots) {
        if (slot.kind == SlotKind::kSliding) slot.window += 2;
      }
    });
  });
}

TEST(PlannerRelationsTest, AVoidFloorChangesNothing) {
  ForEachUsualCase([](const Case& c) -> std::string {
    Case other = c;
    const uint64_t cut = c.request.resume_at;
    for (const Floor& floor :
         {Floor{cut + 1, cut, 0}, Floor{cut + 9, cut / 2, 0},
          Floor{std::max<uint64_t>(cut, 1), cut / 3, 0}}) {
      other.request.floors.insert(other.request.floors.begin(), floor);
    }
    ReplayPlan plan;
    ReplayPlan other_plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    if (std::string s = Planned(other, other_plan); !s.empty()) return s;
    if (plan.layers == other_plan.layers && plan.floors == other_plan.floors &&
        plan.write_begin == other_plan.write_begin &&
        plan.replay_start == other_plan.replay_start &&
        plan.exact == other_plan.exact &&
        plan.token_layers == other_plan.token_layers) {
      return "";
    }
    return "void floors changed the plan\n";
  });
}

TEST(PlannerRelationsTest, RowsOfAPlanNestFromLayerToLayer) {
  ForEachUsualCase([](const Case& c) -> std::string {
    ReplayPlan plan;
    if (std::string s = Planned(c, plan); !s.empty()) return s;
    std::ostringstream out;
    if (plan.replay_start != plan.layers[0].input_begin) {
      out << "replay does not start at layer 0\n";
    }
    for (size_t layer = 0; layer < plan.layers.size(); ++layer) {
      const LayerRows& rows = plan.layers[layer];
      const uint64_t next =
          layer + 1 < plan.layers.size()
              ? plan.layers[layer + 1].input_begin
              : plan.resume_at -
                    (c.request.want_logits && plan.resume_at > 0 ? 1 : 0);
      if (rows.run_begin != next || rows.input_begin > rows.run_begin) {
        out << "layer " << layer << " does not feed the next\n";
      }
    }
    return out.str();
  });
}

}  // namespace
}  // namespace torpor::replay
