// SPDX-License-Identifier: Apache-2.0
//
// What LMDB's return codes and the environment's tables are called. Internal
// to env.cc and txn.cc.

#ifndef TORPOR_STORE_LMDB_ERROR_H_
#define TORPOR_STORE_LMDB_ERROR_H_

#include <array>
#include <string_view>

#include "absl/status/status.h"
#include "store/env.h"

namespace torpor::store {

// Frozen: they are on disk.
inline constexpr std::array<const char*, kTableCount> kTableNames = {
    "meta",  "sessions", "records", "parts",      "blocks",
    "chain", "staging",  "trash",   "tombstones", "models"};

// `what` says what was tried. kResourceExhausted: map or disk full, kNotFound,
// kDataLoss, kUnavailable: LMDB panicked, else kInternal.
absl::Status LmdbError(std::string_view what, int rc);

}  // namespace torpor::store

#endif  // TORPOR_STORE_LMDB_ERROR_H_
