// SPDX-License-Identifier: Apache-2.0
//
// Reads records out of the environment: copies first, verifies the copy, never
// hands out the map. Thread-safe; each call opens and closes its own short
// read transaction.

#ifndef TORPOR_STORE_RECORD_READER_H_
#define TORPOR_STORE_RECORD_READER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/env.h"
#include "store/record.h"
#include "store/types.h"

namespace torpor::store {

class RecordReader {
 public:
  explicit RecordReader(Env* env) : env_(env) {}

  // Header and directory, verified. kDataLoss when damaged or absent.
  absl::StatusOr<RecordHeader> ReadHeader(RecordNumber number) const;

  // Copies a whole section and verifies the copy.
  // REQUIRES: out.size() == section.bytes; `section` is of `header`.
  absl::Status ReadSection(const RecordHeader& header,
                           const SectionEntry& section,
                           std::span<uint8_t> out) const;
  absl::StatusOr<std::vector<uint8_t>> ReadSection(
      const RecordHeader& header, const SectionEntry& section) const;

  // Hints that a byte range of a record is about to be read.
  void WillNeed(RecordNumber number, uint64_t begin, uint64_t end) const;
  // Whether all of a record is in memory.
  [[nodiscard]] bool Resident(RecordNumber number, uint64_t record_bytes) const;

 private:
  // Bytes [begin, end) of a record, part by part, while `take` wants more;
  // whether it took all.
  bool ForEachPart(
      RecordNumber number, uint64_t begin, uint64_t end,
      const std::function<bool(std::span<const uint8_t>)>& take) const;

  Env* const env_;
};

// Copies bytes [offset, offset + out.size()) of a record, unverified. kDataLoss
// when a part is absent or has another size than the record's.
absl::Status CopyRecordBytes(const ReadView& view, RecordNumber number,
                             uint64_t offset, std::span<uint8_t> out);

}  // namespace torpor::store

#endif  // TORPOR_STORE_RECORD_READER_H_
