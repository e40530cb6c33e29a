// SPDX-License-Identifier: Apache-2.0
//
// What a replay needs, found without a planner: a graph search over single
// (layer, row) and (slot, row) nodes. An edge is a read, and a read is decided
// by the definition of the slot kind alone, one pair of rows at a time; nothing
// here knows an interval. Slow, and meant to be believed by reading.

#ifndef TORPOR_TESTS_REPLAY_DEPENDENCY_TRACER_H_
#define TORPOR_TESTS_REPLAY_DEPENDENCY_TRACER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "replay/model_layout.h"
#include "replay/planner.h"

namespace torpor::replay {

// A set of rows of [0, cut).
using RowSet = std::vector<bool>;

struct TraceRequest {
  uint64_t cut = 0;
  // All of them bind: rows [replay_start, resume_at) of layers >= layer_begin
  // do not see window rows below replay_start.
  std::vector<Floor> floors;
  // A span enters a layer whole or not at all.
  std::vector<TwoWaySpan> spans;
  bool want_logits = false;
  bool open_groups_stored = false;
};

struct Trace {
  // By layer: rows that enter it, and rows that come out of it.
  std::vector<RowSet> inputs;
  std::vector<RowSet> runs;
  // By slot: rows that are written anew.
  std::vector<RowSet> writes;
};

// The token at `reader_row` attends to the row of `slot` at `row`, in a model
// that never slept. Window slots only.
bool Attends(const Slot& slot, const std::vector<TwoWaySpan>& spans,
             uint64_t reader_row, uint64_t row);

// One of the floors hides `row` from `reader_row` of `layer`.
bool IsHidden(const std::vector<Floor>& floors, uint32_t layer,
              uint64_t reader_row, uint64_t row);

// By slot: the rows of [0, cut) that an engine must hold to go on at `cut`, of
// the slots that replay rebuilds.
std::vector<RowSet> OwedRows(const ModelLayout& layout,
                             const TraceRequest& request);

Trace TraceReplay(const ModelLayout& layout, const TraceRequest& request);

// Floors of the log that count at `cut`: those of wakes before it.
std::vector<Floor> BindingFloors(const std::vector<Floor>& log, uint64_t cut);

// First row that a bounded replay of `replay_tokens` may re-run: `cut` less
// those tokens, but never inside a span.
uint64_t BoundByTokens(const TraceRequest& request, uint64_t replay_tokens);

// The same, but never above a row that is owed or whose logits are wanted: no
// replay can do without those.
uint64_t BoundedStart(const ModelLayout& layout, const TraceRequest& request,
                      uint64_t replay_tokens);

// Slots that replay rebuilds and that are read by `layer`'s attention.
std::vector<uint32_t> ReplayedWindowsOf(const ModelLayout& layout,
                                        uint32_t layer);

// For messages: "[3, 7) 9" and so on.
std::string RowSetString(const RowSet& rows);

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_DEPENDENCY_TRACER_H_
