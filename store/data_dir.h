// SPDX-License-Identifier: Apache-2.0
//
// The data directory: created with mode 0700, held by one daemon at a time
// through an OS lock on `torpor.lock`. The text in that file only explains who
// holds it; the lock is what counts, and it goes with its process.

#ifndef TORPOR_STORE_DATA_DIR_H_
#define TORPOR_STORE_DATA_DIR_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace torpor::store {

class DataDir {
 public:
  // Creates the directory when absent. kFailedPrecondition when another
  // process holds it (names pid and host), or when others may read it.
  static absl::StatusOr<std::unique_ptr<DataDir>> Acquire(
      const std::string& path);
  ~DataDir();
  DataDir(const DataDir&) = delete;
  DataDir& operator=(const DataDir&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // kDataLoss when data.mdb is gone or empty although a store was here: LMDB
  // would begin a new one in its place. Where none was, a data.mdb without a
  // page beyond its two meta pages is what a first start left that did not
  // finish: it goes, since LMDB refuses such pages when they are torn.
  [[nodiscard]] absl::Status CheckData() const;
  // Leaves a note that a store is here. Durable on return.
  [[nodiscard]] absl::Status MarkData() const;

  // Bytes that the file system has left for us.
  [[nodiscard]] absl::StatusOr<uint64_t> FreeBytes() const;
  [[nodiscard]] absl::StatusOr<uint64_t> DiskBytes() const;

 private:
  DataDir(std::string path, int lock_fd)
      : path_(std::move(path)), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_DATA_DIR_H_
