// SPDX-License-Identifier: Apache-2.0
//
// Which rows a resume re-runs: a backward dataflow over layers (design D4).
//
// It starts from what is owed at the cut H (window rows that tokens from H on
// can see, open groups, and the row H - 1 through the layers above if its
// logits are wanted), walks the layers down, and subtracts at the owner of each
// slot the reach of its readers; persisted slots add no dependency. What is
// needed of a layer is always a run of rows that ends at H, so one number a
// layer says it. A two-way span enters every layer whole. A window that no
// layer reads (a draft's) is owed as any other.
//
// Exact: no cut of the windows but those the floor log records. Bounded(R):
// window reads of rows from s = H - R on stop at s; s is lower where an open
// group, the wanted logits or a span begins below. An executor applies a plan's
// floors whether the plan is exact or not: `exact` may hold because of them.

#ifndef TORPOR_REPLAY_PLANNER_H_
#define TORPOR_REPLAY_PLANNER_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model_layout.h"

namespace torpor::replay {

// Numbers are those of torpor.v1.ReplayMode.
enum class ReplayMode : uint8_t {
  kBounded = 1,
  kExact = 2,
  kSnapshot = 3,
  kCold = 4,
  kAuto = 5,
};
std::string_view ReplayModeName(ReplayMode mode);

// A past wake at `resume_at` re-ran rows [replay_start, resume_at) with window
// reads of layers >= layer_begin cut at replay_start.
struct Floor {
  uint64_t resume_at = 0;
  uint64_t replay_start = 0;
  uint32_t layer_begin = 0;

  friend bool operator==(const Floor&, const Floor&) = default;
};

// Tokens [begin, end) attend to each other in both directions.
struct TwoWaySpan {
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct PlanRequest {
  // The cut H: rows [0, H) come back.
  uint64_t resume_at = 0;
  ReplayMode mode = ReplayMode::kExact;
  // Bounded only; 0 = the largest window. At least the largest window.
  uint64_t replay_tokens = 0;
  // The session's floor log. Entries with resume_at >= H are void.
  std::vector<Floor> floors;
  // Ascending, not overlapping, none of them cut by H.
  std::vector<TwoWaySpan> spans;
  // Also run row H - 1 through every layer.
  bool want_logits = false;
  // Open groups of the cut are stored: nothing is owed for them, except by a
  // bounded replay that is not exact.
  bool open_groups_stored = false;
};

struct LayerRows {
  // Inputs [input_begin, H) enter the layer.
  uint64_t input_begin = 0;
  // Rows [run_begin, H) run attention and FFN.
  uint64_t run_begin = 0;

  friend bool operator==(const LayerRows&, const LayerRows&) = default;
};

// Window reads of rows [row_begin, row_end) in layers >= layer_begin stop at
// `floor`; where several apply, at the largest.
struct FloorRange {
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
  uint64_t floor = 0;
  uint32_t layer_begin = 0;

  friend bool operator==(const FloorRange&, const FloorRange&) = default;
};

struct ReplayPlan {
  ReplayMode mode = ReplayMode::kExact;
  uint64_t resume_at = 0;
  // Rows [replay_start, resume_at) enter layer 0; == resume_at when none do.
  uint64_t replay_start = 0;
  // The rebuilt windows are those that the session held.
  bool exact = true;
  // Per layer, and per slot the first row that the replay writes (resume_at
  // when none; persisted slots are never written).
  std::vector<LayerRows> layers;
  std::vector<uint64_t> write_begin;
  std::vector<FloorRange> floors;
  // Sum over layers of rows run.
  uint64_t token_layers = 0;

  [[nodiscard]] uint64_t replay_tokens() const {
    return resume_at - replay_start;
  }
  // The floor that a later suspend must log; only of inexact plans.
  [[nodiscard]] Floor floor() const { return {resume_at, replay_start, 0}; }

  friend bool operator==(const ReplayPlan&, const ReplayPlan&) = default;
};

// Pure. REQUIRES: layout.Validate() is OK. kInvalidArgument when the request
// cannot be (R below the largest window, a span cut, a floor that is none);
// mode kAuto is resolved by ChooseMode first.
absl::StatusOr<ReplayPlan> PlanReplay(const ModelLayout& layout,
                                      const PlanRequest& request);

// A prefill of [begin, end) whose layers above the last one that persists
// anything run their last rows alone, as many as the largest window, with
// window reads cut at the first of them (DeepSeek V4.1's decoder tail). Every
// row passes the layers below and writes every slot there; the last persisting
// layer's own attention and FFN run for the tail alone, with its whole window.
struct TailPrefill {
  // For Segment.plan; its persisted slots are written.
  ReplayPlan plan;
  // What a later suspend logs, so that an exact wake repeats the cut. The last
  // row of a tail sees its whole window, so the entry names the token before it
  // as the place of the wake: it then binds at the end of the prefill itself,
  // and a rewind below drops it.
  Floor floor;
};
// nullopt where every row has to run anyway: too few rows, no layer above the
// last persisting one, or a slot up there that is no window of tokens.
std::optional<TailPrefill> PlanTailPrefill(const ModelLayout& layout,
                                           uint64_t begin, uint64_t end);

// First row of `slot`, a window or an open group, that tokens from `cut` on
// read, before any floor. `cut` for the kinds that persist: their rows are
// loaded, never owed.
uint64_t FirstRowOwed(const Slot& slot, uint64_t cut);

// Rows that a session of `cut` tokens holds of a slot: all that stand for its
// tokens, the window or the open group at the cut, or its one state.
Rows RowsHeldAt(const Slot& slot, uint64_t cut);

// The first slot of which a session of `cut` tokens holds rows that nothing but
// a snapshot of that cut brings back; null when there is none.
const Slot* SlotOwedBySnapshot(const ModelLayout& layout, uint64_t cut);

struct AutoLimits {
  // 0 = none.
  uint64_t max_replay_tokens = 0;
  // 0 = none; a bounded replay that nothing can measure is then not chosen.
  double max_error = 0;
  bool allow_cold = false;
  // What the session has stored at this cut. A snapshot is not chosen where
  // logits are wanted, which it cannot give.
  bool has_snapshot = false;
  bool has_witness = false;
};

// The cheapest mode that keeps within the limits: a snapshot is read, the
// others cost the rows they run (cold: every row through every layer).
// kFailedPrecondition when none does, with each mode's reason.
absl::StatusOr<ReplayMode> ChooseMode(const ModelLayout& layout,
                                      const PlanRequest& request,
                                      const AutoLimits& limits);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_PLANNER_H_
