// SPDX-License-Identifier: Apache-2.0
//
// What keeps the LMDB store in order: the sweep at start-up, expiry, eviction,
// the reaper. Internal to store/.

#ifndef TORPOR_STORE_MAINTENANCE_H_
#define TORPOR_STORE_MAINTENANCE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/env.h"
#include "store/manifest.h"
#include "store/session_store.h"
#include "store/store_core.h"

namespace torpor::store {

// Checks the format version, hands staged records to the reaper, counts live
// bytes, rebuilds the eviction order. Once, before anything else.
absl::Status StartUp(StoreCore* core);

// A bounded step of expiry, reaping and tombstone removal; true when more
// waits.
absl::StatusOr<bool> RunMaintenance(StoreCore* core);

// Removes a session inside a transaction: its names go, and no later session
// begins at or below its version.
absl::Status DeleteSession(WriteTxn& txn, const SessionKey& session,
                           const SessionManifest& manifest);

// The same where the manifest cannot be read.
absl::Status DeleteDamagedSession(WriteTxn& txn, const SessionKey& session,
                                  uint64_t version);

// Applies a touch to a manifest and stores it. kResourceExhausted when a pin
// would exceed the pinned bytes allowed.
absl::Status ApplyTouch(const StoreCore& core, const TouchSpec& spec,
                        WriteTxn& txn, SessionManifest* manifest);

}  // namespace torpor::store

#endif  // TORPOR_STORE_MAINTENANCE_H_
