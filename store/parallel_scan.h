// SPDX-License-Identifier: Apache-2.0
//
// A walk over a whole table from several threads, for start-up. The map is
// opened without read-ahead, so one thread waits for the disk at every page
// that is not in memory; many threads have as many pages on their way.

#ifndef TORPOR_STORE_PARALLEL_SCAN_H_
#define TORPOR_STORE_PARALLEL_SCAN_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "store/env.h"

namespace torpor::store {

// Calls `visit` once for every entry, on several threads at once, each with a
// read transaction of its own over a range of keys. REQUIRES: nobody writes to
// the table meanwhile.
absl::Status ParallelScan(Env* env, Table table,
                          const std::function<void(const Entry&)>& visit);

// At most n - 1 keys, ascending, that part the keys from `first` to `last` into
// ranges: evenly by the eight bytes after their common beginning, since how
// many keys lie between is not known.
std::vector<std::string> PartKeys(std::string_view first, std::string_view last,
                                  size_t n);

}  // namespace torpor::store

#endif  // TORPOR_STORE_PARALLEL_SCAN_H_
