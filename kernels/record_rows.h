// SPDX-License-Identifier: Apache-2.0
//
// Rows that are records of bytes, in pages: where a row stands, and whole rows
// in and out. Row r stands in place r, or r % ring_rows of a ring; place i in
// page i / page_rows. Floor: each row read once and written once.

#ifndef TORPOR_KERNELS_RECORD_ROWS_H_
#define TORPOR_KERNELS_RECORD_ROWS_H_

#include <cstdint>

#include "kernels/device_function.h"

namespace torpor::kernels {

struct RecordPages {
  // The host's list of pages in a backend's memory, page_rows * row_bytes each.
  uint8_t* const* pages = nullptr;
  int64_t n_pages = 0;
  int64_t page_rows = 0;
  // 0 = every row is kept.
  int64_t ring_rows = 0;
  int64_t row_bytes = 0;

  [[nodiscard]] TORPOR_DEVICE uint8_t* Row(int64_t row) const {
    const int64_t at = ring_rows == 0 ? row : row % ring_rows;
    return pages[at / page_rows] + at % page_rows * row_bytes;
  }
};

// Rows [row, row + n_rows): of a ring at most ring_rows.
struct RecordRange {
  RecordPages of;
  int64_t row = 0;
  int64_t n_rows = 0;
};

// [n_rows, row_bytes] of any alignment. One row at a time.
void ImportRecordsRef(const RecordRange& to, const uint8_t* from);
void ExportRecordsRef(const RecordRange& from, uint8_t* to);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RECORD_ROWS_H_
