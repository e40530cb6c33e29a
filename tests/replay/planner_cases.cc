// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/planner_cases.h"

#include <algorithm>
#include <utility>

#include "tests/replay/random_cases.h"
#include "tests/testing/random.h"

namespace torpor::replay {
namespace {

constexpr uint64_t kMaxTokens = 40;

uint64_t BoundOf(const Case& c) {
  return c.request.replay_tokens > 0 ? c.request.replay_tokens
                                     : c.layout.LargestWindow();
}

bool ReachesBelow(const ModelLayout& layout, const TraceRequest& request,
                  uint64_t start) {
  for (const RowSet& rows : TraceReplay(layout, request).inputs) {
    for (uint64_t row = 0; row < start && row < rows.size(); ++row) {
      if (rows[row]) return true;
    }
  }
  return false;
}

}  // namespace

std::string Case::String() const {
  return LayoutString(layout) + RequestString(request) + "\n";
}

Case RandomCase(uint64_t index) {
  testing::Random random(index);
  const uint64_t size = std::min(kCases, index * 3);
  Case out;
  out.layout =
      RandomLayout(random, static_cast<uint32_t>(1 + size * 5 / kCases));
  out.request =
      RandomRequest(random, out.layout, 8 + (kMaxTokens - 8) * size / kCases);
  return out;
}

Traced TracedOf(const Case& c) {
  const PlanRequest& request = c.request;
  Traced out;
  out.exact = {.cut = request.resume_at,
               .floors = BindingFloors(request.floors, request.resume_at),
               .spans = request.spans,
               .want_logits = request.want_logits,
               .open_groups_stored = request.open_groups_stored};
  out.asked = out.exact;
  if (request.mode == ReplayMode::kBounded) {
    out.start = BoundedStart(c.layout, out.exact, BoundOf(c));
    // What is cut rebuilds its open groups too, stored or not: the floor log
    // says of all rows from the start on that they were cut there.
    if (ReachesBelow(c.layout, out.exact, out.start)) {
      TraceRequest rebuilt = out.exact;
      rebuilt.open_groups_stored = false;
      out.start = BoundedStart(c.layout, rebuilt, BoundOf(c));
      if (ReachesBelow(c.layout, out.exact, out.start)) {
        out.asked.open_groups_stored = false;
      }
    }
    out.asked.floors.push_back({request.resume_at, out.start, 0});
  }
  return out;
}

bool OwesBelowBound(const Case& c) {
  if (c.request.mode != ReplayMode::kBounded) return false;
  const Traced traced = TracedOf(c);
  return traced.start < BoundByTokens(traced.exact, BoundOf(c));
}

std::string Planned(const Case& c, ReplayPlan& plan) {
  absl::StatusOr<ReplayPlan> got = PlanReplay(c.layout, c.request);
  if (!got.ok()) return got.status().ToString() + "\n";
  plan = *std::move(got);
  if (plan.layers.size() != c.layout.n_layers ||
      plan.write_begin.size() != c.layout.slots.size() ||
      plan.resume_at != c.request.resume_at) {
    return "the plan is of another shape\n";
  }
  return "";
}

}  // namespace torpor::replay
