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

// `start`, or the start of the span around it.
uint64_t SpanStart(const PlanRequest& request, uint64_t start) {
  for (const TwoWaySpan& span : request.spans) {
    if (span.begin < start && start < span.end) return span.begin;
  }
  return start;
}

class Dataflow {
 public:
  Dataflow(const ModelLayout& layout, const PlanRequest& request,
           std::vector<FloorRange> floors)
      : layout_(layout),
        request_(request),
        floors_(std::move(floors)),
        read_by_(layout.n_layers),
        owned_by_(layout.n_layers) {
    for (uint32_t i = 0; i < layout.slots.size(); ++i) {
      const Slot& slot = layout.slots[i];
      if (slot.come_back != ComeBack::kReplay) continue;
      owned_by_[slot.owner_layer].push_back(i);
      if (!slot.is_window()) continue;
      for (const uint32_t l : slot.reader_layers) read_by_[l].push_back(i);
    }
  }

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
      for (const uint32_t i : read_by_[l]) {
        if (wanted == cut) break;
        plan.write_begin[i] = std::min(plan.write_begin[i],
                                       FirstRead(layout_.slots[i], l, wanted));
      }
      uint64_t input = wanted;
      // Readers stand above their owner: here the slot's need is final.
      for (const uint32_t i : owned_by_[l]) {
        input = std::min(input, plan.write_begin[i]);
      }
      wanted = plan.layers[l].input_begin = SpanBegin(input);
    }
    plan.replay_start = wanted;
    return plan;
  }

 private:
  // The first row of a window slot that rows [row, H) of `layer` read: that of
  // the first of them or, where a floor shorter than the window covers it,
  // that of the first row behind the floor.
  uint64_t FirstRead(const Slot& slot, uint32_t layer, uint64_t row) const {
    uint64_t first = FirstReadOf(slot, layer, row);
    for (const FloorRange& floor : floors_) {
      if (row < floor.row_end && floor.row_end < request_.resume_at) {
        first = std::min(first, FirstReadOf(slot, layer, floor.row_end));
      }
    }
    return first;
  }

  uint64_t FirstReadOf(const Slot& slot, uint32_t layer, uint64_t row) const {
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
  uint64_t SpanBegin(uint64_t row) const { return SpanStart(request_, row); }

  const ModelLayout& layout_;
  const PlanRequest& request_;
  const std::vector<FloorRange> floors_;
  // Per layer: the window slots that it reads, and the slots that it owns.
  std::vector<std::vector<uint32_t>> read_by_;
  std::vector<std::vector<uint32_t>> owned_by_;
};

// `start`, or the first row that an open group of the cut owes.
uint64_t FirstOpenRow(const ModelLayout& layout, uint64_t cut, uint64_t start) {
  for (const Slot& slot : layout.slots) {
    if (slot.kind == SlotKind::kOpenGroup &&
        slot.come_back == ComeBack::kReplay) {
      start = std::min(start, FirstRowOwed(slot, cut));
    }
  }
  return start;
}

// Row H - 1 can run again only where nothing but rows that are stored, or that
// a replay rebuilds, stands between it and the tokens.
absl::Status CheckLogits(const ModelLayout& layout,
                         const PlanRequest& request) {
  if (!request.want_logits || request.resume_at == 0) return absl::OkStatus();
  for (const Slot& slot : layout.slots) {
    const bool held_until_cut = slot.come_back == ComeBack::kSnapshot ||
                                (request.mode == ReplayMode::kSnapshot &&
                                 slot.come_back == ComeBack::kReplay);
    if (held_until_cut && slot.kind != SlotKind::kOpenGroup) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "logits of row %d: slot '%s' comes back as of token %d and row %d "
          "wants it as of one before; run the next token instead",
          request.resume_at - 1, slot.name, request.resume_at,
          request.resume_at - 1));
    }
  }
  return absl::OkStatus();
}

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

Rows RowsHeldAt(const Slot& slot, uint64_t cut) {
  if (slot.kind == SlotKind::kRecurrent) return {0, 1};
  const bool at_cut = slot.come_back != ComeBack::kPersist &&
                      (slot.is_window() || slot.kind == SlotKind::kOpenGroup);
  return at_cut ? Rows{FirstRowOwed(slot, cut), cut} : RowsOf(slot, 0, cut);
}

const Slot* SlotOwedBySnapshot(const ModelLayout& layout, uint64_t cut) {
  for (const Slot& slot : layout.slots) {
    if (slot.come_back == ComeBack::kSnapshot &&
        RowsHeldAt(slot, cut).size() > 0) {
      return &slot;
    }
  }
  return nullptr;
}

absl::StatusOr<ReplayPlan> PlanReplay(const ModelLayout& layout,
                                      const PlanRequest& request) {
  TORPOR_RETURN_IF_ERROR(CheckRequest(layout, request));
  if (request.mode != ReplayMode::kCold) {
    TORPOR_RETURN_IF_ERROR(CheckLogits(layout, request));
  }
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
    case ReplayMode::kSnapshot: {
      if (!request.want_logits) return NoReplay(layout, request, cut);
      PlanRequest stored = request;
      stored.open_groups_stored = true;
      return Dataflow(layout, stored, {}).Run();
    }
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
  // What R alone would cut; if exact reaches no further, nothing is.
  uint64_t start = SubtractClamped(cut, replay_tokens);
  if (request.want_logits) start = std::min(start, SubtractClamped(cut, 1));
  if (!request.open_groups_stored) start = FirstOpenRow(layout, cut, start);
  start = SpanStart(request, start);
  if (start <= exact.replay_start) return exact;
  // The floor log says of a wake that all rows from its start on were cut
  // there: so open groups are rebuilt with them, stored or not.
  PlanRequest rebuilt = request;
  rebuilt.open_groups_stored = false;
  start = SpanStart(request, FirstOpenRow(layout, cut, start));
  if (start <= exact.replay_start) return exact;
  floors.push_back({start, cut, start, 0});
  ReplayPlan bounded = Dataflow(layout, rebuilt, std::move(floors)).Run();
  bounded.exact = false;
  return bounded;
}

std::optional<TailPrefill> PlanTailPrefill(const ModelLayout& layout,
                                           uint64_t begin, uint64_t end) {
  uint32_t last = layout.n_layers;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back != ComeBack::kPersist) continue;
    last = last == layout.n_layers ? slot.owner_layer
                                   : std::max(last, slot.owner_layer);
  }
  const uint64_t tail = layout.LargestWindow();
  if (last + 1 >= layout.n_layers || tail < 2 || end - begin <= tail) {
    return std::nullopt;
  }
  for (const Slot& slot : layout.slots) {
    if (slot.owner_layer > last && slot.kind != SlotKind::kSliding) {
      return std::nullopt;
    }
  }
  const uint64_t start = end - tail;
  TailPrefill prefill;
  ReplayPlan& plan = prefill.plan;
  plan.mode = ReplayMode::kCold;
  plan.resume_at = end;
  plan.replay_start = begin;
  plan.exact = false;
  for (uint32_t l = 0; l < layout.n_layers; ++l) {
    plan.layers.push_back(
        {l <= last ? begin : start, l < last ? begin : start});
    plan.token_layers += end - plan.layers[l].run_begin;
  }
  for (const Slot& slot : layout.slots) {
    plan.write_begin.push_back(slot.owner_layer <= last ? begin : start);
  }
  plan.floors = {{start, end, start, last + 1}};
  prefill.floor = {end - 1, start, last + 1};
  return prefill;
}

absl::StatusOr<ReplayMode> ChooseMode(const ModelLayout& layout,
                                      const PlanRequest& request,
                                      const AutoLimits& limits) {
  struct Candidate {
    ReplayMode mode;
    uint64_t cost;
  };
  std::vector<Candidate> candidates;
  std::vector<std::string> reasons;
  if (limits.has_snapshot && !request.want_logits) {
    PlanRequest asked = request;
    asked.mode = ReplayMode::kSnapshot;
    const absl::StatusOr<ReplayPlan> plan = PlanReplay(layout, asked);
    if (plan.ok()) return ReplayMode::kSnapshot;
    reasons.emplace_back(plan.status().message());
  }
  const Slot* const owed = limits.has_snapshot
                               ? nullptr
                               : SlotOwedBySnapshot(layout, request.resume_at);
  if (owed != nullptr) {
    reasons.push_back(absl::StrFormat(
        "slot '%s' comes back from a snapshot of token %d alone, and there is "
        "none",
        owed->name, request.resume_at));
  }
  for (const ReplayMode mode : {ReplayMode::kBounded, ReplayMode::kExact}) {
    if (owed != nullptr) break;
    PlanRequest asked = request;
    asked.mode = mode;
    const absl::StatusOr<ReplayPlan> planned = PlanReplay(layout, asked);
    if (absl::IsFailedPrecondition(planned.status())) {
      reasons.emplace_back(planned.status().message());
      continue;
    }
    if (!planned.ok()) return planned.status();
    const ReplayPlan& plan = *planned;
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
