// SPDX-License-Identifier: Apache-2.0

#include "replay/record_cache.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {

uint64_t RecordCache::RingRows(const replay::Slot& slot, uint64_t max_rows) {
  if (slot.come_back == ComeBack::kPersist) return 0;
  if (slot.kind == SlotKind::kOpenGroup) {
    return slot.tokens_per_row + slot.overlap_tokens;
  }
  return slot.reach() + max_rows;
}

RecordCache::RecordCache(const ModelLayout& layout, uint64_t max_rows) {
  for (const replay::Slot& slot : layout.slots) {
    slots_.push_back(
        {.row_bytes = slot.row_bytes, .ring_rows = RingRows(slot, max_rows)});
  }
}

uint64_t RecordCache::BytesFor(const ModelLayout& layout, uint64_t max_rows,
                               uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const replay::Slot& slot : layout.slots) {
    const uint64_t ring = RingRows(slot, max_rows);
    const uint64_t rows = ring != 0 ? ring : n_tokens / slot.tokens_per_row;
    bytes += (rows + kPageRows - 1) / kPageRows * kPageRows * slot.row_bytes;
  }
  return bytes;
}

uint64_t RecordCache::bytes() const {
  uint64_t bytes = 0;
  for (const Slot& slot : slots_) {
    bytes += slot.memory.size() * kPageRows * slot.row_bytes;
  }
  return bytes;
}

uint8_t* RecordCache::Put(uint32_t index, uint64_t row) {
  Slot& slot = slots_[index];
  slot.end = std::max(slot.end, row + 1);
  const uint64_t at = slot.ring_rows == 0 ? row : row % slot.ring_rows;
  while (slot.memory.size() <= at / kPageRows) {
    slot.memory.emplace_back(kPageRows * slot.row_bytes);
    slot.pages.push_back(slot.memory.back().data());
  }
  return slot.memory[at / kPageRows].data() + at % kPageRows * slot.row_bytes;
}

const uint8_t* RecordCache::Row(uint32_t index, uint64_t row) const {
  const Slot& slot = slots_[index];
  const uint64_t at = slot.ring_rows == 0 ? row : row % slot.ring_rows;
  return slot.pages[at / kPageRows] + at % kPageRows * slot.row_bytes;
}

absl::Status RecordCache::CheckSlot(uint32_t slot, const char* what) const {
  if (slot < slots_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s rows: the sequence has no slot %d", what, slot));
}

absl::Status RecordCache::CheckBytes(uint32_t slot, uint64_t n_rows,
                                     size_t n_bytes, const char* what) const {
  if (n_bytes != n_rows * slots_[slot].row_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s rows of slot %d: got %d bytes, wanted %d rows of %d", what, slot,
        n_bytes, n_rows, slots_[slot].row_bytes));
  }
  return absl::OkStatus();
}

absl::Status RecordCache::ImportRows(uint32_t index, uint64_t row_begin,
                                     std::span<const uint8_t> bytes) {
  TORPOR_RETURN_IF_ERROR(CheckSlot(index, "import"));
  const Slot& slot = slots_[index];
  const uint64_t n = bytes.size() / slot.row_bytes;
  TORPOR_RETURN_IF_ERROR(CheckBytes(index, n, bytes.size(), "import"));
  if (slot.ring_rows != 0 && n > slot.ring_rows) {
    return absl::OutOfRangeError(
        absl::StrFormat("import rows of slot %d: %d rows into a ring of %d",
                        index, n, slot.ring_rows));
  }
  for (uint64_t i = 0; i < n; ++i) {
    std::memcpy(Put(index, row_begin + i), bytes.data() + i * slot.row_bytes,
                slot.row_bytes);
  }
  return absl::OkStatus();
}

absl::Status RecordCache::ExportRows(uint32_t index, Rows rows,
                                     std::span<uint8_t> out) const {
  TORPOR_RETURN_IF_ERROR(CheckSlot(index, "export"));
  const Slot& slot = slots_[index];
  const uint64_t oldest = slot.ring_rows == 0 || slot.end < slot.ring_rows
                              ? 0
                              : slot.end - slot.ring_rows;
  // Of a group that is closed no row is held, and none is wanted.
  const bool none = rows.begin == rows.end;
  if (rows.begin > rows.end ||
      (!none && (rows.end > slot.end || rows.begin < oldest))) {
    return absl::OutOfRangeError(
        absl::StrFormat("export rows [%d, %d) of slot %d: [%d, %d) are held",
                        rows.begin, rows.end, index, oldest, slot.end));
  }
  TORPOR_RETURN_IF_ERROR(CheckBytes(index, rows.size(), out.size(), "export"));
  for (uint64_t row = rows.begin; row < rows.end; ++row) {
    std::memcpy(out.data() + (row - rows.begin) * slot.row_bytes,
                Row(index, row), slot.row_bytes);
  }
  return absl::OkStatus();
}

}  // namespace torpor::replay
