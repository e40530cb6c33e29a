// SPDX-License-Identifier: Apache-2.0
//
// SessionStore in memory, written for being right: every session holds whole
// copies of its rows, one lock guards everything. The twin that the LMDB
// store is compared with, and a store for tests of what sits above it. Bytes
// are not durable; budgets are not kept.

#ifndef TORPOR_STORE_MEMORY_SESSION_STORE_H_
#define TORPOR_STORE_MEMORY_SESSION_STORE_H_

#include <memory>

#include "store/session_store.h"

namespace torpor::store {

// `clock` null = SystemClock().
std::unique_ptr<SessionStore> MakeMemorySessionStore(Clock clock = nullptr);

}  // namespace torpor::store

#endif  // TORPOR_STORE_MEMORY_SESSION_STORE_H_
