// SPDX-License-Identifier: Apache-2.0

#include "replay/planner.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace torpor::replay {
namespace {

uint64_t SubtractClamped(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

absl::Status CheckRequest(const ModelLayout& layout,
                          const PlanRequest& request) {
  const uint64_t cut = request.resume_at;
  if (request.mode == ReplayMode::kBounded && request.replay_tokens != 0 &&
      request.replay_tokens < layout.LargestWindow()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "bounded replay: got %d tokens, wanted at least the largest window, "
        "%d",
        request.replay_tokens, layout.LargestWindow()));
  }
  for (const TwoWaySpan& span : request.spans) {
    if (span.begin < cut && cut < span.end) {
      return absl::InvalidArgumentError(
          absl::StrFormat("cut at %d: inside the bidirectional span [%d, %d)",
                          cut, span.begin, span.end));
    }
  }
  for (const Floor& floor : request.floors) {
    if (floor.replay_start >= floor.resume_at ||
        floor.layer_begin >= layout.n_layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "floor at %d: got replay start %d and layer %d, wanted a start "
          "below it and a layer below %d",
          floor.resume_at, floor.replay_start, floor.layer_begin,
          layout.n_layers));
    }
  }
  return absl::OkStatus();
}

class Dataflow {
 public:
  Dataflow(const ModelLayout& layout, const PlanRequest& request,
           std::vector<FloorRange> floors)
      : layout_(layout), request_(request), floors_(std::move(floors)) {}

  ReplayPlan Run() const {
    const uint64_t cut = request_.resume_at;
    ReplayPlan plan;
    plan.mode = request_.mode;
    plan.resume_at = cut;
    plan.floors = floors_;
    plan.layers.resize(layout_.n_layers);
    plan.write_begin.assign(layout_.slots.size(), cut);
    for (size_t i = 0; i < layout_.slots.size(); ++i) {
      const Slot& slot = layout_.slots[i];
      if (slot.come_back != ComeBack::kReplay) continue;
      if (slot.kind == SlotKind::kOpenGroup && request_.open_groups_stored) {
        continue;
      }
      plan.write_begin[i] = FirstRowOwed(slot, cut);
    }
    // Rows whose output the layer above wants.
    uint64_t wanted = request_.want_logits ? SubtractClamped(cut, 1) : cut;
    for (uint32_t l = layout_.n_layers; l-- > 0;) {
      plan.layers[l].run_begin = wanted;
      plan.token_layers += cut - wanted;
      uint64_t input = wanted;
      for (size_t i = 0; i < layout_.slots.size(); ++i) {
        const Slot& slot = layout_.slots[i];
        if (slot.come_back != ComeBack::kReplay) continue;
        if (wanted < cut && Reads(slot, l)) {
          plan.write_begin[i] =
              std::min(plan.write_begin[i], FirstRead(slot, l, wanted));
        }
        // Readers stand above their owner: here the slot's need is final.
        if (slot.owner_layer == l) input = std::min(input, plan.write_begin[i]);
      }
      wanted = plan.layers[l].input_begin = SpanBegin(input);
    }
    plan.replay_start = wanted;
    return plan;
  }

 private:
  static bool Reads(const Slot& slot, uint32_t layer) {
    return slot.is_window() &&
           std::find(slot.reader_layers.begin(), slot.reader_layers.end(),
                     layer) != slot.reader_layers.end();
  }

  // The first row of a window slot that rows [row, H) of `layer` read. The
  // first of them reads furthest back: floors rise with rows.
  uint64_t FirstRead(const Slot& slot, uint32_t layer, uint64_t row) const {
    uint64_t first = slot.kind == SlotKind::kSliding
                         ? SubtractClamped(row + 1, slot.window)
                         : row / slot.chunk * slot.chunk;
    first = std::min(first, SpanBegin(row));
    for (const FloorRange& floor : floors_) {
      if (layer >= floor.layer_begin && row >= floor.row_begin &&
          row < floor.row_end) {
        first = std::max(first, floor.floor);
      }
    }
    return first;
  }

  // A run of rows never begins inside a two-way span.
  uint64_t SpanBegin(uint64_t row) const {
    for (const TwoWaySpan& span : request_.spans) {
      if (span.begin < row && row < span.end) return span.begin;
    }
    return row;
  }

  const ModelLayout& layout_;
  const PlanRequest& request_;
  const std::vector<FloorRange> floors_;
};

// Nothing runs: the rows come from elsewhere, or no row is used at all.
ReplayPlan NoReplay(const ModelLayout& layout, const PlanRequest& request,
                    uint64_t resume_at) {
  ReplayPlan plan;
  plan.mode = request.mode;
  plan.resume_at = plan.replay_start = resume_at;
  plan.layers.assign(layout.n_layers, {resume_at, resume_at});
  plan.write_begin.assign(layout.slots.size(), resume_at);
  return plan;
}

}  // namespace

std::string_view ReplayModeName(ReplayMode mode) {
  switch (mode) {
    case ReplayMode::kBounded:
      return "bounded";
    case ReplayMode::kExact:
      return "exact";
    case ReplayMode::kSnapshot:
      return "snapshot";
    case ReplayMode::kCold:
      return "cold";
    case ReplayMode::kAuto:
      return "auto";
  }
  return "unknown";
}

uint64_t FirstRowOwed(const Slot& slot, uint64_t cut) {
  switch (slot.kind) {
    case SlotKind::kSliding:
      return SubtractClamped(cut + 1, slot.window);
    case SlotKind::kChunked:
      return cut / slot.chunk * slot.chunk;
    case SlotKind::kOpenGroup:
      return SubtractClamped(cut / slot.tokens_per_row * slot.tokens_per_row,
                             slot.overlap_tokens);
    case SlotKind::kFull:
    case SlotKind::kPooled:
    case SlotKind::kRecurrent:
      break;
  }
  return cut;
}

absl::StatusOr<ReplayPlan> PlanReplay(const ModelLayout& layout,
                                      const PlanRequest& request) {
  TORPOR_RETURN_IF_ERROR(CheckRequest(layout, request));
  const uint64_t cut = request.resume_at;
  std::vector<FloorRange> floors;
  for (const Floor& floor : request.floors) {
    if (floor.resume_at >= cut) continue;
    floors.push_back({floor.replay_start, floor.resume_at, floor.replay_start,
                      floor.layer_begin});
  }
  switch (request.mode) {
    case ReplayMode::kExact:
      return Dataflow(layout, request, std::move(floors)).Run();
    case ReplayMode::kSnapshot:
      if (request.want_logits && cut > 0 && layout.LargestWindow() > 0) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "snapshot: row %d wants one window row more than a snapshot "
            "holds, so its logits cannot be had; run the next token instead",
            cut - 1));
      }
      return NoReplay(layout, request, cut);
    case ReplayMode::kCold:
      return NoReplay(layout, request, 0);
    case ReplayMode::kBounded:
      break;
    case ReplayMode::kAuto:
      return absl::InvalidArgumentError(
          "plan: mode auto must be resolved before");
  }
  ReplayPlan exact = Dataflow(layout, request, floors).Run();
  exact.mode = ReplayMode::kBounded;
  const uint64_t replay_tokens = request.replay_tokens != 0
                                     ? request.replay_tokens
                                     : layout.LargestWindow();
  uint64_t start = SubtractClamped(cut, replay_tokens);
  for (const TwoWaySpan& span : request.spans) {
    if (span.begin < start && start < span.end) start = span.begin;
  }
  // R reaches as far as exact does: nothing is cut.
  if (start <= exact.replay_start) return exact;
  floors.push_back({start, cut, start, 0});
  ReplayPlan bounded = Dataflow(layout, request, std::move(floors)).Run();
  bounded.exact = false;
  return bounded;
}

absl::StatusOr<ReplayMode> ChooseMode(const ModelLayout& layout,
                                      const PlanRequest& request,
                                      const AutoLimits& limits) {
  if (limits.has_snapshot) return ReplayMode::kSnapshot;
  struct Candidate {
    ReplayMode mode;
    uint64_t cost;
  };
  std::vector<Candidate> candidates;
  std::vector<std::string> reasons;
  for (const ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact}) {
    PlanRequest asked = request;
    asked.mode = mode;
    TORPOR_ASSIGN_OR_RETURN(const ReplayPlan plan, PlanReplay(layout, asked));
    if (limits.max_replay_tokens != 0 &&
        plan.replay_tokens() > limits.max_replay_tokens) {
      reasons.push_back(absl::StrFormat("%s replays %d tokens, the limit is %d",
                                        std::string(ReplayModeName(mode)),
                                        plan.replay_tokens(),
                                        limits.max_replay_tokens));
      continue;
    }
    if (!plan.exact && limits.max_error > 0 && !limits.has_witness) {
      reasons.push_back(
          "bounded has no witness to measure its error against max_error");
      continue;
    }
    candidates.push_back({mode, plan.token_layers});
  }
  if (limits.allow_cold) {
    candidates.push_back(
        {ReplayMode::kCold, request.resume_at * layout.n_layers});
  } else {
    reasons.push_back("cold is not allowed");
  }
  if (candidates.empty()) {
    return absl::FailedPreconditionError(
        absl::StrFormat("no replay mode keeps within the limits: %s",
                        absl::StrJoin(reasons, "; ")));
  }
  return std::min_element(candidates.begin(), candidates.end(),
                          [](const Candidate& a, const Candidate& b) {
                            return a.cost < b.cost;
                          })
      ->mode;
}

}  // namespace torpor::replay
