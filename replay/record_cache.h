// SPDX-License-Identifier: Apache-2.0
//
// The KV of one sequence for models whose rows are records of bytes: every row
// of slots that persist, a ring of the last rows of the others. Rows stand as
// they are stored, in a backend's pages. Not thread-safe, but rows of one slot
// may be imported while others are used.

#ifndef TORPOR_REPLAY_RECORD_CACHE_H_
#define TORPOR_REPLAY_RECORD_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "kernels/record_rows.h"
#include "replay/model.h"
#include "replay/model_layout.h"

namespace torpor::replay {

class RecordCache final : public Sequence {
 public:
  static constexpr uint64_t kPageRows = 64;

  // A window's ring holds a window and `max_rows` new rows beside it; an open
  // group's holds the group and what it overlaps. `ops` outlives the cache.
  RecordCache(kernels::Ops* ops, const ModelLayout& layout, uint64_t max_rows);
  ~RecordCache() override;
  RecordCache(const RecordCache&) = delete;
  RecordCache& operator=(const RecordCache&) = delete;

  absl::Status ImportRows(uint32_t slot, uint64_t row_begin,
                          std::span<const uint8_t> bytes) override;
  absl::Status ExportRows(uint32_t slot, Rows rows,
                          std::span<uint8_t> out) const override;
  uint64_t bytes() const override;

  // Where an op writes a row; makes room for it.
  uint8_t* Put(uint32_t slot, uint64_t row);
  // A row that was written or imported and is still held, for ops to read.
  [[nodiscard]] const uint8_t* Row(uint32_t slot, uint64_t row) const;
  // All of a slot's, valid until rows are put or imported.
  [[nodiscard]] kernels::RecordPages Pages(uint32_t slot) const;

  // What such a cache takes for n tokens.
  static uint64_t BytesFor(const ModelLayout& layout, uint64_t max_rows,
                           uint64_t n_tokens);

 private:
  struct Slot {
    uint64_t row_bytes = 0;
    // Rows of the ring; 0 = all are kept.
    uint64_t ring_rows = 0;
    std::vector<uint8_t*> pages;
    // One past the last row that was put.
    uint64_t end = 0;
  };

  // Makes room for rows [row, row + n), of a ring at most all.
  void Reserve(uint32_t slot, uint64_t row, uint64_t n);
  static uint64_t RingRows(const replay::Slot& slot, uint64_t max_rows);
  [[nodiscard]] absl::Status CheckSlot(uint32_t slot, const char* what) const;
  [[nodiscard]] absl::Status CheckBytes(uint32_t slot, uint64_t n_rows,
                                        size_t n_bytes, const char* what) const;

  kernels::Ops& ops_;
  std::vector<Slot> slots_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_RECORD_CACHE_H_
