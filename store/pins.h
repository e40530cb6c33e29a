// SPDX-License-Identifier: Apache-2.0
//
// Records that open leases hold. A pin keeps the reaper from a record; its
// ancestors live because it names them. Thread-safe.
//
// Why it cannot be late: a lease takes the lock, reads the manifest in a fresh
// read transaction, pins, and lets the lock go; the reaper looks under the lock
// inside its write transaction, after the commit that put the record into the
// trash. So a lease either pins first or no longer finds the record.

#ifndef TORPOR_STORE_PINS_H_
#define TORPOR_STORE_PINS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "base/mutex.h"
#include "store/types.h"

namespace torpor::store {

class Pins {
 public:
  // Held while a lease reads what it is about to pin.
  Mutex& mu() ABSL_LOCK_RETURNED(mu_) { return mu_; }

  void PinLocked(RecordNumber number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (number != 0) ++count_[number];
  }

  void Unpin(const std::vector<RecordNumber>& numbers) {
    MutexLock lock(&mu_);
    for (const RecordNumber number : numbers) {
      const auto it = count_.find(number);
      if (it != count_.end() && --it->second == 0) count_.erase(it);
    }
  }

  bool IsPinned(RecordNumber number) {
    MutexLock lock(&mu_);
    return count_.contains(number);
  }

 private:
  Mutex mu_;
  std::map<RecordNumber, uint64_t> count_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_PINS_H_
