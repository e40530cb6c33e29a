// SPDX-License-Identifier: Apache-2.0
//
// The KV of one sequence for models whose rows are records of bytes: every row
// of slots that persist, a ring of the last rows of the others. Rows stand as
// they are stored. Not thread-safe.

#ifndef TORPOR_REPLAY_RECORD_CACHE_H_
#define TORPOR_REPLAY_RECORD_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "replay/model.h"
#include "replay/model_layout.h"

namespace torpor::replay {

class RecordCache final : public Sequence {
 public:
  static constexpr uint64_t kPageRows = 64;

  // A window's ring holds a window and `max_rows` new rows beside it; an open
  // group's holds the group and what it overlaps.
  RecordCache(const ModelLayout& layout, uint64_t max_rows);

  absl::Status ImportRows(uint32_t slot, uint64_t row_begin,
                          std::span<const uint8_t> bytes) override;
  absl::Status ExportRows(uint32_t slot, Rows rows,
                          std::span<uint8_t> out) const override;
  uint64_t bytes() const override;

  // Where a row is written; makes room for it.
  uint8_t* Put(uint32_t slot, uint64_t row);
  // A row that was written or imported and is still held.
  [[nodiscard]] const uint8_t* Row(uint32_t slot, uint64_t row) const;
  // Rows of a slot that persists: page i holds [i, i + 1) * kPageRows.
  [[nodiscard]] const uint8_t* const* Pages(uint32_t slot) const {
    return slots_[slot].pages.data();
  }

  // What such a cache takes for n tokens.
  static uint64_t BytesFor(const ModelLayout& layout, uint64_t max_rows,
                           uint64_t n_tokens);

 private:
  struct Slot {
    uint64_t row_bytes = 0;
    // Rows of the ring; 0 = all are kept.
    uint64_t ring_rows = 0;
    std::vector<std::vector<uint8_t>> memory;
    std::vector<const uint8_t*> pages;
    // One past the last row that was put.
    uint64_t end = 0;
  };

  static uint64_t RingRows(const replay::Slot& slot, uint64_t max_rows);
  [[nodiscard]] absl::Status CheckSlot(uint32_t slot, const char* what) const;
  [[nodiscard]] absl::Status CheckBytes(uint32_t slot, uint64_t n_rows,
                                        size_t n_bytes, const char* what) const;

  std::vector<Slot> slots_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_RECORD_CACHE_H_
