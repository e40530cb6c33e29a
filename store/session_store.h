// SPDX-License-Identifier: Apache-2.0
//
// Durable sessions of opaque rows. One contract, two implementations: LMDB on
// disk and a plain in-memory twin, under one conformance suite
// (tests/store/session_store_conformance.h).
//
// Suspend is atomic: Begin, Put in any order, Commit; a failed or abandoned
// ticket leaves the previous version whole. An acknowledged Commit is durable
// and visible to every later call. Nothing here changes stored rows. All
// classes are thread-safe unless they say otherwise; tickets and leases do not
// outlive their store.

#ifndef TORPOR_STORE_SESSION_STORE_H_
#define TORPOR_STORE_SESSION_STORE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "store/types.h"

namespace torpor::store {

// What a session brings along that comes from another store.
struct Arrival {
  // Its number there, and here: a client that follows the session holds it.
  uint64_t version = 0;
  int64_t created_at_us = 0;
  int64_t updated_at_us = 0;
  // Unix microseconds; 0 = never.
  int64_t expires_at_us = 0;
  // Those that the session remembers, oldest first.
  std::vector<Operation> operations;
};

struct SuspendSpec {
  SessionKey session;
  // 0 = the session must not exist.
  uint64_t expected_version = 0;
  std::string operation_id;
  std::string model;
  std::string fingerprint_fields;
  std::string numerics_id;
  std::string holder;
  RecordLayout layout;
  // Tokens of the previous version that stay, and those that follow.
  uint64_t tokens_kept = 0;
  TokenRun new_tokens;
  // Tokens with rows afterwards; at most all tokens, the rest are pending.
  uint64_t kv_len = 0;
  // Of the wakes since the previous version.
  std::vector<Floor> floors;
  // Of the new rows.
  std::vector<ProvenanceRange> provenance;
  // Parts that arrive for head-sharded slots; all slots of n_shards > 1
  // pieces must agree with it.
  uint32_t n_shards = 1;
  // nullopt keeps what the session has (durable when created).
  std::optional<SessionClass> session_class;
  // Seconds from the commit; nullopt keeps, 0 clears.
  std::optional<int64_t> ttl_seconds;
  // Replaces the labels when not empty.
  Labels labels;
  std::vector<SnapshotSlot> snapshot;
  // Set for an import (store/session_import.h); the session must not exist.
  std::optional<Arrival> arrival;

  // The verb under which the operation is remembered.
  [[nodiscard]] Verb verb() const {
    return arrival.has_value() ? Verb::kImport : Verb::kSuspend;
  }
};

class SuspendTicket {
 public:
  // Abandons what was not committed.
  virtual ~SuspendTicket() = default;

  // Rows of compact slot `slot` that Put must bring before Commit.
  [[nodiscard]] virtual RowRange wanted(uint32_t slot) const = 0;

  // Takes rows. May wait for buffer space; a piece more than 64 MiB ahead of
  // the oldest incomplete block waits for it, and after the store's put
  // timeout fails with kFailedPrecondition naming what is missing.
  // kInvalidArgument when the piece lies outside what is wanted, or its size
  // is not n_rows x row bytes; kDataLoss when its checksum differs from the
  // bytes. Rows that came before are taken again only as whole pieces.
  // `give_up`, polled while waiting, ends this call alone with kCancelled.
  virtual absl::Status Put(const RowPiece& piece,
                           std::span<const uint8_t> bytes,
                           const std::function<bool()>& give_up) = 0;
  absl::Status Put(const RowPiece& piece, std::span<const uint8_t> bytes) {
    return Put(piece, bytes, nullptr);
  }

  // Publishes; durable on return. kFailedPrecondition when rows are missing
  // (named; they may still be put, then committed); kAborted when the version
  // moved on; kResourceExhausted when the disk is full. Otherwise the ticket is
  // spent.
  virtual absl::StatusOr<SuspendReceipt> Commit(
      std::vector<Attachment> attachments) = 0;

  // Makes waiting and later calls fail with kCancelled.
  virtual void Cancel() = 0;
};

// Either a ticket or, for an operation that was committed before, its receipt.
struct BeginResult {
  std::unique_ptr<SuspendTicket> ticket;
  std::optional<SuspendReceipt> receipt;
};

// Pins what it names: nothing is freed under a lease.
class SessionLease {
 public:
  virtual ~SessionLease() = default;

  // For a lease by prefix, the key is empty and n_tokens == kv_len == the hit.
  [[nodiscard]] virtual const SessionInfo& info() const = 0;
  [[nodiscard]] virtual const RecordLayout& layout() const = 0;
  // What the session remembers, oldest first; none for a lease by prefix.
  [[nodiscard]] virtual std::vector<Operation> operations() const = 0;

  // Tokens [begin, end), pending ones included. kDataLoss when damaged.
  virtual absl::StatusOr<TokenRun> ReadTokens(uint64_t begin, uint64_t end) = 0;

  // Rows [rows.begin, rows.end) of compact slot `slot` into `out`, whose size
  // is rows.size() x row bytes. Verified after the copy; kDataLoss names the
  // record, which is quarantined. kOutOfRange beyond the rows there are.
  virtual absl::Status ReadRows(uint32_t slot, RowRange rows,
                                std::span<uint8_t> out) = 0;

  // Like ReadRows; returns the XXH3-64 of the bytes, which costs nothing where
  // they are one stored section, verified just now.
  virtual absl::StatusOr<uint64_t> ReadRowsAndHash(uint32_t slot, RowRange rows,
                                                   std::span<uint8_t> out);

  // Like ReadRows, for a snapshot slot.
  virtual absl::Status ReadSnapshot(uint32_t id, RowRange rows,
                                    std::span<uint8_t> out) = 0;

  // The slots of the stored snapshot, ascending; empty without one.
  virtual absl::StatusOr<std::vector<SnapshotSlot>> SnapshotSlots() = 0;

  // The sections of an attachment; kNotFound when the session has none.
  virtual absl::StatusOr<std::vector<AttachmentSection>> ReadAttachment(
      AttachmentKind kind) = 0;

  // Every floor with resume_at in [begin, end), oldest first.
  virtual absl::StatusOr<std::vector<Floor>> Floors(uint64_t begin,
                                                    uint64_t end) = 0;
};

struct MutateSpec {
  SessionKey session;
  uint64_t expected_version = 0;
  std::string operation_id;
};

struct ForkSpec {
  SessionKey source;
  // 0 = whatever is current.
  uint64_t source_version = 0;
  // The target; its expected_version 0 = must not exist.
  MutateSpec target;
  std::optional<uint64_t> at;
};

struct TouchSpec {
  SessionKey session;
  std::optional<SessionClass> session_class;
  // Seconds from now; 0 clears.
  std::optional<int64_t> ttl_seconds;
  std::optional<int64_t> pin_seconds;
  // Merged; an empty value removes.
  Labels labels;
};

struct ListResult {
  std::vector<SessionInfo> sessions;
  // Pass as `after` for the next page; empty on the last.
  std::string next;
};

struct PrefixHit {
  uint64_t hit_len = 0;
  // Null when hit_len is 0.
  std::unique_ptr<SessionLease> lease;
};

struct VerifyReport {
  uint64_t records_checked = 0;
  uint64_t records_total = 0;
  uint64_t sessions_checked = 0;
  std::vector<std::string> problems;
};

struct BackupReport {
  uint64_t sessions_copied = 0;
  uint64_t records_copied = 0;
  uint64_t bytes_copied = 0;
  // Sessions that could not be copied, and why.
  std::vector<std::string> problems;
};

// Polled between short steps; false stops the walk with kCancelled.
template <typename Report>
using Progress = std::function<bool(const Report&)>;

class SessionStore {
 public:
  virtual ~SessionStore() = default;

  // kAborted when the version is not the expected one (names the holder);
  // kNotFound when a version is expected of a session that is not there;
  // kFailedPrecondition for another fingerprint; kInvalidArgument for an
  // impossible spec; kResourceExhausted when the rows would not fit the budget
  // or the disk. Every mutating verb judges versions the same way.
  virtual absl::StatusOr<BeginResult> Begin(SuspendSpec spec) = 0;

  // A lease on the current version. kNotFound; kAborted when `version` is not
  // 0 and not current; kDataLoss when its manifest is damaged.
  virtual absl::StatusOr<std::unique_ptr<SessionLease>> Open(
      const SessionKey& session, uint64_t version = 0) = 0;

  // The longest stored prefix of `tokens` under that fingerprint. May find rows
  // that no session names any more until maintenance has freed them: of tokens
  // that a rewind cut off, of sessions that expired.
  virtual absl::StatusOr<PrefixHit> Lookup(uint32_t tenant,
                                           const RecordLayout& layout,
                                           const TokenRun& tokens) = 0;

  virtual absl::StatusOr<SessionInfo> Describe(const SessionKey& session) = 0;
  // Sessions of `tenant` whose id begins with `prefix`, after id `after`.
  virtual absl::StatusOr<ListResult> List(uint32_t tenant,
                                          std::string_view prefix,
                                          std::string_view after,
                                          size_t limit) = 0;

  virtual absl::StatusOr<SessionInfo> Fork(const ForkSpec& spec) = 0;
  // kOutOfRange beyond n_tokens; kInvalidArgument inside a bidirectional span.
  virtual absl::StatusOr<SessionInfo> Rewind(const MutateSpec& spec,
                                             uint64_t at) = 0;
  // The version that was deleted.
  virtual absl::StatusOr<uint64_t> Erase(const MutateSpec& spec) = 0;
  virtual absl::StatusOr<SessionInfo> Touch(const TouchSpec& spec) = 0;

  // Named opaque values (the model registry). An absent value is nullopt.
  virtual absl::Status PutModel(std::string_view name,
                                std::string_view value) = 0;
  virtual absl::StatusOr<std::vector<std::pair<std::string, std::string>>>
  Models() = 0;

  // Expires, evicts, reaps, sweeps: bounded work per call; true when more
  // waits. Called on a timer.
  virtual absl::StatusOr<bool> Maintain() = 0;

  [[nodiscard]] virtual StoreStats Stats() = 0;

  // Walks everything; `deep` recomputes digests and ids as well. Damage found
  // is quarantined, as if a reader had met it; nothing is repaired.
  virtual absl::StatusOr<VerifyReport> Verify(
      bool deep, const Progress<VerifyReport>& progress) = 0;
  // A consistent copy into an empty or absent directory.
  virtual absl::StatusOr<BackupReport> Backup(
      const std::string& directory, const Progress<BackupReport>& progress) = 0;
};

// How many tokens of `stored`, whose first stands at `pos`, equal those of
// `asked` (which begins at 0) from there on, extra keys included.
uint64_t CommonLength(const TokenRun& stored, const TokenRun& asked,
                      uint64_t pos);

// Now, in Unix microseconds; tests pass their own.
using Clock = std::function<int64_t()>;
Clock SystemClock();

// Checks of specs that both implementations share. kInvalidArgument.
absl::Status ValidateSession(const SessionKey& session);
// kInvalidArgument beyond kMaxLabels or kMaxLabelBytes.
absl::Status ValidateLabels(const Labels& labels);
// Applies changes, an empty value removing its key; leaves `labels` as they
// were when the result would not be valid.
absl::Status MergeLabels(const Labels& changes, Labels* labels);
absl::Status ValidateMutation(const MutateSpec& spec);
absl::Status ValidateFork(const ForkSpec& spec);
absl::Status ValidateSuspend(const SuspendSpec& spec);
// kInvalidArgument when a cut at `at` falls inside a bidirectional span.
absl::Status ValidateCut(std::span<const ExtraKeySpan> spans, uint64_t at);

}  // namespace torpor::store

#endif  // TORPOR_STORE_SESSION_STORE_H_
