// SPDX-License-Identifier: Apache-2.0

#include "store/record_writer.h"

#include <cstring>

#include "base/status.h"
#include "store/keys.h"
#include "store/record.h"

namespace torpor::store {

absl::Status WriteParts(WriteTxn& txn, RecordNumber number,
                        std::span<const uint8_t> record) {
  for (uint32_t part = 0; part < PartCount(record.size()); ++part) {
    const size_t n = PartSize(record.size(), part);
    TORPOR_ASSIGN_OR_RETURN(
        const std::span<uint8_t> out,
        txn.Reserve(Table::kParts, PartKey(number, part), n));
    std::memcpy(out.data(), record.data() + size_t{part} * kPartBytes, n);
  }
  return absl::OkStatus();
}

}  // namespace torpor::store
