// SPDX-License-Identifier: Apache-2.0
//
// What a person or a capacity plan wants to know of a layout: its slots in
// groups of equals, and what a fleet of sessions needs under each way to keep
// window rows. Pure functions.

#ifndef TORPOR_REPLAY_LAYOUT_REPORT_H_
#define TORPOR_REPLAY_LAYOUT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model_layout.h"

namespace torpor::replay {

// Slots that differ in nothing but their layer.
struct SlotGroup {
  // The name with N for the layer's number, for example "layer.N.k".
  std::string name;
  // The first of them.
  Slot slot;
  // Of all of them: their layers, ascending, and the layers that also read
  // them, which the first one names when there is one only.
  std::vector<uint32_t> layers;
  // Bytes that all of them add for a token.
  double bytes_per_token = 0;
};
// In the order of their first slots.
std::vector<SlotGroup> GroupSlots(const ModelLayout& layout);

// For example "0-4, 6-10, 11", or "2-42 by 2" for steps.
std::string LayerRanges(const std::vector<uint32_t>& layers);

// Windows of one size that hold every position the model knows, so that their
// layers persist as full ones do.
struct PersistedWindow {
  // Tokens.
  uint64_t reach = 0;
  std::vector<uint32_t> layers;
};
std::vector<PersistedWindow> PersistedWindows(const ModelLayout& layout);

struct FleetRequest {
  uint64_t n_sessions = 1;
  // Of each session.
  uint64_t n_tokens = 0;
  // Suspends in a session's life, evenly spread over its tokens; at least 1.
  uint64_t n_turns = 1;
};

struct FleetNeeds {
  // All sessions asleep.
  uint64_t ssd_bytes = 0;
  // KV in GPU or host memory while all sessions are awake.
  uint64_t memory_bytes = 0;
};

// Draft windows are left out, as in LayoutFigures; so is what a store adds.
struct FleetFigures {
  // A prefix cache that can resume at any token: every row of every window
  // stays.
  FleetNeeds every_window_row;
  // Compact rows, and the windows as they were at the end of each turn.
  FleetNeeds snapshot_per_turn;
  // Compact rows, and the windows as they were last.
  FleetNeeds snapshot_per_session;
  // Compact rows alone; windows are replayed.
  FleetNeeds torpor;
  // Token ids, 4 bytes each, which all of them need beside that.
  uint64_t token_id_bytes = 0;
};
// kInvalidArgument for no turns, or for bytes beyond 2^62.
absl::StatusOr<FleetFigures> FleetFiguresOf(const ModelLayout& layout,
                                            const FleetRequest& request);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_LAYOUT_REPORT_H_
