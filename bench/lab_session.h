// SPDX-License-Identifier: Apache-2.0
//
// Sessions of a model in this process that sleep and wake without a store: what
// a suspend would keep lies in memory. Not thread-safe; sessions do not outlive
// their model.

#ifndef TORPOR_BENCH_LAB_SESSION_H_
#define TORPOR_BENCH_LAB_SESSION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/model.h"
#include "replay/replayer.h"

namespace torpor::bench {

// The compact rows of a sequence, as a store would hold them.
class KeptRows final : public replay::CompactKvReader {
 public:
  static absl::StatusOr<std::unique_ptr<KeptRows>> Of(
      const replay::ModelLayout& layout, const replay::Sequence& sequence,
      uint64_t n_tokens);

  absl::Status ReadRows(uint32_t slot, replay::Rows rows,
                        std::span<uint8_t> out) override;
  // REQUIRES: a compact slot and a row that was kept.
  [[nodiscard]] std::span<const uint8_t> Row(uint32_t slot, uint64_t row) const;
  [[nodiscard]] uint64_t n_rows(uint32_t slot) const;

 private:
  struct SlotBytes {
    uint64_t row_bytes = 0;
    std::vector<uint8_t> bytes;
  };
  std::vector<SlotBytes> slots_;
};

// A session at a cut, asleep, and the window that it held.
struct Asleep {
  uint64_t at = 0;
  std::unique_ptr<KeptRows> rows;
  replay::WindowState window;
};

class LabSession {
 public:
  // Without tokens.
  explicit LabSession(replay::Model* model)
      : model_(model), sequence_(model->NewSequence()) {}
  // The tokens before the window's cut, with these rows and this window. `text`
  // holds them and may go on beyond the cut; kInvalidArgument when it does not.
  static absl::StatusOr<LabSession> Wake(replay::Model* model,
                                         std::span<const uint32_t> text,
                                         KeptRows* rows,
                                         const replay::WindowState& window);

  [[nodiscard]] uint64_t at() const { return ids_.size(); }

  // Runs text[at(), end); logits of rows from `logits_begin` on (end = none).
  // REQUIRES: at() < end <= text.size().
  absl::StatusOr<std::vector<float>> Run(std::span<const uint32_t> text,
                                         uint64_t end, uint64_t logits_begin);
  // Takes `token` as row at() and gives that row with its logits, which the
  // caller runs in a batch of many sessions before anything else is asked of
  // this one. It looks at this session's ids.
  replay::Segment Step(uint32_t token);
  [[nodiscard]] absl::StatusOr<Asleep> Suspend() const;

 private:
  replay::Model* model_;
  std::unique_ptr<replay::Sequence> sequence_;
  // Of the rows that were run or woken: models may look back at them.
  std::vector<uint32_t> ids_;
};

// The window that a replay by `plan` gives. `text` holds the session's tokens
// and may go on beyond the cut.
absl::StatusOr<replay::WindowState> Rebuild(replay::Model* model,
                                            const replay::ReplayPlan& plan,
                                            std::span<const uint32_t> text,
                                            KeptRows* rows);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_LAB_SESSION_H_
