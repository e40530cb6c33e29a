// SPDX-License-Identifier: Apache-2.0
//
// Which rows have come, whatever the order of their pieces.

#ifndef TORPOR_STORE_ROW_SET_H_
#define TORPOR_STORE_ROW_SET_H_

#include <cstdint>
#include <map>

#include "store/types.h"

namespace torpor::store {

// Disjoint, sorted, merged ranges of rows.
class RowSet {
 public:
  enum class Added { kNew, kAlready, kOverlaps };
  // Adds a range that is wholly new, or says that it is there already, or that
  // it overlaps in part (nothing is added then).
  Added Add(RowRange range);
  [[nodiscard]] uint64_t size() const { return size_; }
  // The first row of [all.begin, all.end) that is not in the set.
  [[nodiscard]] uint64_t FirstMissing(RowRange all) const;

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end
  uint64_t size_ = 0;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_ROW_SET_H_
