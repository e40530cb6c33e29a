// SPDX-License-Identifier: Apache-2.0

#include "kernels/record_rows.h"

#include <cstring>

namespace torpor::kernels {

void ImportRecordsRef(const RecordRange& to, const uint8_t* from) {
  const auto row_bytes = static_cast<size_t>(to.of.row_bytes);
  for (int64_t i = 0; i < to.n_rows; ++i, from += row_bytes) {
    std::memcpy(to.of.Row(to.row + i), from, row_bytes);
  }
}

void ExportRecordsRef(const RecordRange& from, uint8_t* to) {
  const auto row_bytes = static_cast<size_t>(from.of.row_bytes);
  for (int64_t i = 0; i < from.n_rows; ++i, to += row_bytes) {
    std::memcpy(to, from.of.Row(from.row + i), row_bytes);
  }
}

}  // namespace torpor::kernels
