// SPDX-License-Identifier: Apache-2.0
//
// What the kernel does with as many bytes: the limits that benchmarks name.

#ifndef TORPOR_BENCH_RAW_IO_H_
#define TORPOR_BENCH_RAW_IO_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace torpor::bench {

// Writes `bytes` to a new file in 1 MiB steps and fdatasyncs it.
absl::Status RawWrite(const std::string& path, std::span<const uint8_t> bytes);

// Sends `bytes` through a unix socket pair in 1 MiB writes, to a thread that
// reads them into `out`, which is as large.
absl::Status RawSocketCopy(std::span<const uint8_t> bytes,
                           std::span<uint8_t> out);

// Bytes [begin, end) of a file.
struct FileRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Where the rows of all records lie in data_dir's data.mdb: slot after slot,
// each in the order of the records, as a resume reads them. REQUIRES: no store
// has it open.
absl::StatusOr<std::vector<FileRange>> RowRanges(const std::string& data_dir);

// Bytes of all pages that are reachable in data_dir's data.mdb: every table's
// branch, leaf and overflow pages and the two of the file's head; free pages
// are not. REQUIRES: no store has it open.
absl::StatusOr<uint64_t> ReachablePageBytes(const std::string& data_dir);

// Reads the ranges one after the other with pread.
absl::Status RawRead(const std::string& path, std::span<const FileRange> ranges,
                     std::span<uint8_t> buffer);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_RAW_IO_H_
