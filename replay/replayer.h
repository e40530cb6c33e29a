// SPDX-License-Identifier: Apache-2.0
//
// Rebuilds the window KV of sleeping sessions: reads their compact rows through
// a small interface, re-runs the rows of their plans, returns the windows.
// Stored rows are read and never written.

#ifndef TORPOR_REPLAY_REPLAYER_H_
#define TORPOR_REPLAY_REPLAYER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/planner.h"

namespace torpor::replay {

// Where compact rows come from; who stores them adapts to this.
class CompactKvReader {
 public:
  virtual ~CompactKvReader() = default;
  // Rows of a persisted slot of the layout, verified. `out` holds them exactly.
  virtual absl::Status ReadRows(uint32_t slot, Rows rows,
                                std::span<uint8_t> out) = 0;
};

// Rows of one slot of the layout.
struct SlotRows {
  uint32_t slot = 0;
  uint64_t first = 0;
  uint64_t end = 0;
  std::vector<uint8_t> bytes;

  friend bool operator==(const SlotRows&, const SlotRows&) = default;
};

// What a session holds beside its compact KV, at one cut.
struct WindowState {
  uint64_t resume_at = 0;
  // One entry for each slot that was rebuilt, or that a snapshot brought, in
  // layout order: its rows at resume_at.
  std::vector<SlotRows> slots;
  // Of row resume_at - 1, [vocab] f32, if the plan was made with logits.
  std::vector<float> logits;
};

struct ReplayJob {
  const ReplayPlan* plan = nullptr;
  // Ids of the session's tokens [0, resume_at).
  std::span<const uint32_t> ids;
  std::span<const TwoWaySpan> spans;
  CompactKvReader* reader = nullptr;
  // True: also logits of row resume_at - 1.
  bool want_logits = false;
};

struct ReplayTimes {
  // Reading compact rows, running rows, writing windows out.
  uint64_t read_us = 0;
  uint64_t replay_us = 0;
  uint64_t bytes_read = 0;
};

struct ReplayResult {
  WindowState window;
  ReplayTimes times;
  // Of the model that ran it.
  std::string numerics_id;
  // Why it did not run where the model is; empty as a rule.
  std::string fallback_reason;
};

class Replayer {
 public:
  virtual ~Replayer() = default;

  // One job after its rows were read; several run in ragged batches. A job's
  // result does not depend on the others. Fails whole: kCancelled, kDataLoss
  // from a reader, kInvalidArgument.
  virtual absl::StatusOr<std::vector<ReplayResult>> Rebuild(
      std::span<const ReplayJob> jobs,
      const std::function<bool()>& cancelled) = 0;

  // Bytes that one job takes while it runs.
  [[nodiscard]] virtual uint64_t MemoryFor(const ReplayPlan& plan) const = 0;
};

// Over a model, which outlives it; runs where the model is.
std::unique_ptr<Replayer> MakeReplayer(Model* model);

// Slots of which a session at `cut` holds rows beside its compact KV, with
// those rows: what a snapshot stores. Replay rebuilds those that come back by
// it.
std::vector<SlotRows> WindowRowsAt(const ModelLayout& layout, uint64_t cut);

// The window of a sequence that has run [0, cut).
absl::StatusOr<WindowState> ExportWindow(const ModelLayout& layout,
                                         const Sequence& sequence,
                                         uint64_t cut);
// Puts a window back.
absl::Status ImportWindow(const WindowState& window, Sequence* sequence);

// Copies the rows of one compact slot, those of tokens [0, n_tokens), into a
// sequence. Returns the bytes read; kCancelled.
absl::StatusOr<uint64_t> LoadSlotRows(const ModelLayout& layout, uint32_t slot,
                                      uint64_t n_tokens,
                                      CompactKvReader* reader,
                                      Sequence* sequence,
                                      const std::function<bool()>& cancelled);
// The same for every compact slot, in order.
absl::StatusOr<uint64_t> LoadCompactRows(
    const ModelLayout& layout, uint64_t n_tokens, CompactKvReader* reader,
    Sequence* sequence, const std::function<bool()>& cancelled);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_REPLAYER_H_
