// SPDX-License-Identifier: Apache-2.0

#include "replay/record_cache.h"

#include <algorithm>

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

RecordCache::RecordCache(kernels::Ops* ops, const ModelLayout& layout,
                         uint64_t max_rows)
    : ops_(*ops) {
  for (const replay::Slot& slot : layout.slots) {
    slots_.push_back(
        {.row_bytes = slot.row_bytes, .ring_rows = RingRows(slot, max_rows)});
  }
}

RecordCache::~RecordCache() {
  for (const Slot& slot : slots_) {
    for (uint8_t* page : slot.pages) ops_.Free(page);
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
    bytes += slot.pages.size() * kPageRows * slot.row_bytes;
  }
  return bytes;
}

void RecordCache::Reserve(uint32_t index, uint64_t row, uint64_t n) {
  Slot& slot = slots_[index];
  if (n == 0) return;
  slot.end = std::max(slot.end, row + n);
  const uint64_t at = slot.ring_rows == 0 ? row : row % slot.ring_rows;
  // One past the last place that a row takes.
  uint64_t places = at + n;
  if (slot.ring_rows != 0) places = std::min(places, slot.ring_rows);
  while (slot.pages.size() * kPageRows < places) {
    slot.pages.push_back(ops_.NewPage(kPageRows * slot.row_bytes));
  }
}

uint8_t* RecordCache::Put(uint32_t index, uint64_t row) {
  Reserve(index, row, 1);
  return Pages(index).Row(static_cast<int64_t>(row));
}

const uint8_t* RecordCache::Row(uint32_t index, uint64_t row) const {
  return Pages(index).Row(static_cast<int64_t>(row));
}

kernels::RecordPages RecordCache::Pages(uint32_t index) const {
  const Slot& slot = slots_[index];
  return {.pages = slot.pages.data(),
          .n_pages = static_cast<int64_t>(slot.pages.size()),
          .page_rows = static_cast<int64_t>(kPageRows),
          .ring_rows = static_cast<int64_t>(slot.ring_rows),
          .row_bytes = static_cast<int64_t>(slot.row_bytes)};
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
  Reserve(index, row_begin, n);
  return ops_.ImportRecords({.of = Pages(index),
                             .row = static_cast<int64_t>(row_begin),
                             .n_rows = static_cast<int64_t>(n)},
                            bytes);
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
  return ops_.ExportRecords({.of = Pages(index),
                             .row = static_cast<int64_t>(rows.begin),
                             .n_rows = static_cast<int64_t>(rows.size())},
                            out);
}

}  // namespace torpor::replay
