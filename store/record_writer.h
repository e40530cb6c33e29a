// SPDX-License-Identifier: Apache-2.0
//
// Puts records into the environment, part by part (store/record_reader.h reads
// them).

#ifndef TORPOR_STORE_RECORD_WRITER_H_
#define TORPOR_STORE_RECORD_WRITER_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "store/env.h"
#include "store/types.h"

namespace torpor::store {

// The parts of a whole record, header included. kAlreadyExists when the number
// is not new.
absl::Status WriteParts(WriteTxn& txn, RecordNumber number,
                        std::span<const uint8_t> record);

}  // namespace torpor::store

#endif  // TORPOR_STORE_RECORD_WRITER_H_
