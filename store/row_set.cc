// SPDX-License-Identifier: Apache-2.0

#include "store/row_set.h"

#include <algorithm>
#include <iterator>

namespace torpor::store {

RowSet::Added RowSet::Add(RowRange range) {
  auto next = ranges_.upper_bound(range.begin);
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= range.end) return Added::kAlready;
    if (before->second > range.begin) return Added::kOverlaps;
  }
  if (next != ranges_.end() && next->first < range.end) return Added::kOverlaps;
  size_ += range.size();
  // Merge with the neighbours that touch.
  if (next != ranges_.end() && next->first == range.end) {
    range.end = next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    const auto before = std::prev(next);
    if (before->second == range.begin) {
      before->second = range.end;
      return Added::kNew;
    }
  }
  ranges_.emplace(range.begin, range.end);
  return Added::kNew;
}

uint64_t RowSet::FirstMissing(RowRange all) const {
  uint64_t row = all.begin;
  for (const auto& [begin, end] : ranges_) {
    if (begin > row) break;
    row = std::max(row, end);
  }
  return std::min(row, all.end);
}

}  // namespace torpor::store
