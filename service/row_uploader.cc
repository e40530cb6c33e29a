// SPDX-License-Identifier: Apache-2.0

#include "service/row_uploader.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/hash.h"
#include "base/status.h"
#include "service/row_codec.h"

namespace torpor::service {

absl::Status RowUploader::Run() {
  uint64_t begin = UINT64_MAX;
  uint64_t end = 0;
  for (const OutgoingSlot& slot : call_.slots) {
    if (slot.row_begin == slot.row_end) continue;
    begin = std::min(begin, slot.row_begin * slot.tokens_per_row);
    end = std::max(end, slot.row_end * slot.tokens_per_row);
  }
  const uint64_t step = call_.block_size;
  for (uint64_t at = begin == UINT64_MAX ? end : begin / step * step; at < end;
       at += step) {
    for (const OutgoingSlot& slot : call_.slots) {
      const uint64_t from = std::max(at / slot.tokens_per_row, slot.row_begin);
      const uint64_t to =
          std::min((at + step) / slot.tokens_per_row, slot.row_end);
      TORPOR_RETURN_IF_ERROR(SendSlot(slot, from, to));
    }
  }
  for (const OutgoingSlot& slot : call_.snapshot) {
    TORPOR_RETURN_IF_ERROR(SendSlot(slot, slot.row_begin, slot.row_end));
  }
  return outlet_.Flush();
}

absl::Status RowUploader::SendSlot(const OutgoingSlot& slot, uint64_t begin,
                                   uint64_t end) {
  const uint64_t most =
      std::max<uint64_t>(1, kMaxRowBytesPerMessage / slot.row_bytes);
  for (uint64_t row = begin; row < end;) {
    const uint64_t stop = std::min(end, row + most);
    TORPOR_ASSIGN_OR_RETURN(const std::span<uint8_t> out,
                            outlet_.Append((stop - row) * slot.row_bytes));
    TORPOR_RETURN_IF_ERROR(call_.rows(slot.slot, row, stop, out));
    v1::RowPiece piece;
    piece.set_slot(slot.slot);
    piece.set_row_begin(row);
    piece.set_n_rows(static_cast<uint32_t>(stop - row));
    piece.set_checksum(Xxh3(out));
    piece.set_row_bytes(slot.row_bytes);
    outlet_.Describe(std::move(piece));
    row = stop;
  }
  return absl::OkStatus();
}

}  // namespace torpor::service
