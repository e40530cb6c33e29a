// SPDX-License-Identifier: Apache-2.0
//
// What the tables mean together: manifests, the record index, reference
// counts, the chain index, the trash. Every function works inside the caller's
// transaction, so each compound change is atomic. docs/ARCHITECTURE.md draws
// the tables.

#ifndef TORPOR_STORE_CATALOG_H_
#define TORPOR_STORE_CATALOG_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/block_id.h"
#include "store/env.h"
#include "store/manifest.h"
#include "store/types.h"

namespace torpor::store {

// kDataLoss when the manifest is damaged.
absl::StatusOr<std::optional<SessionManifest>> FindSession(
    const ReadView& view, const SessionKey& session);
absl::Status PutSession(WriteTxn& txn, const SessionKey& session,
                        const SessionManifest& manifest);

// The manifest that a write finds: with `expected` 0 none, else the one of that
// version; kAborted naming the holder, or kNotFound. A damaged manifest stands
// in nobody's way when the write keeps nothing of it (`keeps_none`): then it is
// none. PutSession over it, or deleting its key, leaves counts to Recount.
absl::StatusOr<std::optional<SessionManifest>> FindBase(
    WriteTxn& txn, const SessionKey& session, uint64_t expected,
    bool keeps_none);
absl::Status CheckBase(const ReadView& view, const SessionKey& session,
                       uint64_t expected, bool keeps_none);

// The manifest whose version is `expected` (not 0). kNotFound, or kAborted
// naming the holder.
absl::StatusOr<SessionManifest> RequireVersion(const ReadView& view,
                                               const SessionKey& session,
                                               uint64_t expected);
// OK when the session does not exist; else kAborted naming the holder.
absl::Status RequireAbsent(const ReadView& view, const SessionKey& session);

// The version that a session created now begins with: above that of every
// deleted session, so that no stale writer can match it.
absl::StatusOr<uint64_t> FirstVersion(const ReadView& view);

// kDataLoss when the entry is damaged or absent.
absl::StatusOr<RecordEntry> FindRecord(const ReadView& view,
                                       RecordNumber number);
absl::Status PutRecord(WriteTxn& txn, RecordNumber number,
                       const RecordEntry& entry);

// A manifest names a record, or does so no more. The last name gone puts the
// record into the trash; the first name takes it out again. Whether ancestors
// are live follows at once. Number 0 is no record: nothing happens. A walk ends
// at an ancestor whose entry is damaged; what lies behind it waits for Recount.
absl::Status AddName(WriteTxn& txn, RecordNumber number);
absl::Status DropName(WriteTxn& txn, RecordNumber number);

// Enters a staged record into the index; it names its parent. Live once a
// manifest names it or a descendant.
absl::Status PublishRecord(WriteTxn& txn, RecordNumber number,
                           const RecordEntry& entry);

// The record that holds a full block of that id and is sound, or 0.
absl::StatusOr<RecordNumber> FindBlock(const ReadView& view, uint32_t tenant,
                                       const Hash256& block_id);

// Names of a manifest: its tip and its attachments.
absl::Status AddManifestNames(WriteTxn& txn, const SessionManifest& manifest);
absl::Status DropManifestNames(WriteTxn& txn, const SessionManifest& manifest);

// The layout under a fingerprint; nullopt when no session has used it.
absl::StatusOr<std::optional<RecordLayout>> FindLayout(
    const ReadView& view, const Hash256& fingerprint);
// Stores it on its first use. kFailedPrecondition when another layout stands
// under the same fingerprint.
absl::Status EnsureLayout(WriteTxn& txn, const RecordLayout& layout);
absl::Status RequireSameLayout(const RecordLayout& stored,
                               const RecordLayout& asked);

// What the staging and trash tables know of a record.
struct RecordExtent {
  uint32_t tenant = 0;
  uint64_t record_bytes = 0;
};
std::string EncodeExtent(const RecordExtent& extent);
absl::StatusOr<RecordExtent> DecodeExtent(std::span<const uint8_t> bytes);

// Parts whose manifest is not there yet.
absl::Status PutStaged(WriteTxn& txn, RecordNumber number,
                       const RecordExtent& extent);
absl::Status DropStaged(WriteTxn& txn, RecordNumber number);
// Hands a staged record to the reaper.
absl::Status TrashStaged(WriteTxn& txn, RecordNumber number,
                         const RecordExtent& extent);

// Records of a chain, oldest first.
struct ChainLink {
  RecordNumber number = 0;
  uint64_t first_pos = 0;
  uint32_t n_tokens = 0;
  uint32_t n_pending = 0;
  uint64_t record_bytes = 0;
  bool quarantined = false;

  [[nodiscard]] uint64_t end_pos() const { return first_pos + n_tokens; }
};
absl::StatusOr<std::vector<ChainLink>> WalkChain(const ReadView& view,
                                                 RecordNumber tip);

// Pages of a record and about what its index entries take in theirs.
uint64_t StoredBytes(uint64_t record_bytes);

// Frees one record of the trash: parts, index entries, its name for its
// parent. Returns what it occupied.
struct Reaped {
  RecordExtent extent;
  bool quarantined = false;
};
absl::StatusOr<Reaped> ReapRecord(WriteTxn& txn, RecordNumber number);

// Counts names and live ones anew, puts what has none into the trash, and drops
// keys of the chain index that lead nowhere. True when there was anything to
// correct. Waits while a manifest is damaged: its names cannot be counted.
absl::StatusOr<bool> Recount(WriteTxn& txn);
[[nodiscard]] absl::StatusOr<bool> RecountIsDue(const ReadView& view);
absl::Status AskForRecount(WriteTxn& txn);

// A record number below which everything is drawn; draws `count` more.
absl::StatusOr<RecordNumber> DrawRecordNumbers(WriteTxn& txn, uint64_t count);

}  // namespace torpor::store

#endif  // TORPOR_STORE_CATALOG_H_
