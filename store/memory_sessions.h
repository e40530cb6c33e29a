// SPDX-License-Identifier: Apache-2.0
//
// What a MemorySessionStore holds: whole sessions under one lock. Internal to
// it.

#ifndef TORPOR_STORE_MEMORY_SESSIONS_H_
#define TORPOR_STORE_MEMORY_SESSIONS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "store/block_id.h"
#include "store/manifest.h"
#include "store/session_store.h"

namespace torpor::store {

// Rows of a slot, one after the other.
using Bytes = std::vector<uint8_t>;

// One session as it stands.
struct MemorySession {
  SessionInfo info;
  RecordLayout layout;
  TokenRun tokens;
  std::vector<Bytes> rows;  // per slot, rows [0, RowsOf(kv_len))
  std::vector<Floor> floors;
  std::map<AttachmentKind, std::vector<AttachmentSection>> attachments;
  std::vector<SnapshotSlot> snapshot_slots;
  std::vector<Bytes> snapshot_rows;
  std::vector<Operation> operations;

  [[nodiscard]] const Operation* Find(std::string_view id, Verb verb) const {
    for (const Operation& o : operations) {
      if (o.id == id && o.verb == verb) return &o;
    }
    return nullptr;
  }

  void Remember(Operation operation) {
    operations.push_back(std::move(operation));
    if (operations.size() > kOperationsKept) {
      operations.erase(operations.begin());
    }
  }

  // Attachments speak of the cut they were made at.
  void DropAttachments(bool client_state_only) {
    attachments.erase(AttachmentKind::kClientState);
    if (client_state_only) return;
    attachments.clear();
    snapshot_slots.clear();
    snapshot_rows.clear();
  }

  void Truncate(uint64_t at) {
    if (at >= info.n_tokens) return;
    tokens.ids.resize(at);
    tokens.spans = ClipSpans(tokens.spans, 0, at);
    info.n_tokens = at;
    const uint64_t kv_len = std::min(at, info.kv_len);
    DropAttachments(/*client_state_only=*/kv_len == info.kv_len);
    info.kv_len = kv_len;
    info.provenance = ClipProvenance(info.provenance, 0, kv_len);
    std::erase_if(floors,
                  [&](const Floor& f) { return f.resume_at >= kv_len; });
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].resize(RowsOf(layout.slots[i], kv_len) *
                     layout.slots[i].row_bytes);
    }
    Recount();
  }

  void Recount() {
    info.usable_len = info.kv_len;
    info.token_bytes = uint64_t{4} * info.n_tokens;
    info.compact_bytes = 0;
    for (const Bytes& slot : rows) info.compact_bytes += slot.size();
    const auto bytes_of = [&](AttachmentKind kind) {
      uint64_t bytes = 0;
      const auto it = attachments.find(kind);
      if (it == attachments.end()) return bytes;
      for (const AttachmentSection& s : it->second) bytes += s.bytes.size();
      return bytes;
    };
    info.witness_bytes = bytes_of(AttachmentKind::kWitness);
    info.client_state_bytes = bytes_of(AttachmentKind::kClientState);
    info.snapshot_bytes = 0;
    for (const Bytes& slot : snapshot_rows) info.snapshot_bytes += slot.size();
    const uint64_t block = layout.block_size;
    info.n_blocks = (info.kv_len + block - 1) / block;
    // Tokens without rows stand in a tail of their own after a full block.
    if (info.n_tokens > info.kv_len && info.kv_len % block == 0) {
      ++info.n_blocks;
    }
    info.stored_bytes = info.compact_bytes + info.token_bytes +
                        info.witness_bytes + info.client_state_bytes +
                        info.snapshot_bytes;
  }
};

// All sessions, and what outlives them.
struct MemoryCore {
  Clock clock;
  Mutex mu;
  std::map<SessionKey, MemorySession> sessions ABSL_GUARDED_BY(mu);
  std::map<std::pair<SessionKey, std::string>, uint64_t> erased
      ABSL_GUARDED_BY(mu);
  std::map<Hash256, RecordLayout> layouts ABSL_GUARDED_BY(mu);
  std::map<std::string, std::string> models ABSL_GUARDED_BY(mu);
  uint64_t version_floor ABSL_GUARDED_BY(mu) = 0;
  uint64_t commits ABSL_GUARDED_BY(mu) = 0;
  uint64_t open_tickets ABSL_GUARDED_BY(mu) = 0;
  uint64_t open_leases ABSL_GUARDED_BY(mu) = 0;

  MemorySession* FindLocked(const SessionKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = sessions.find(key);
    if (it == sessions.end()) return nullptr;
    const SessionInfo& info = it->second.info;
    if (info.expires_at_us != 0 && info.expires_at_us <= clock()) {
      return nullptr;
    }
    return &it->second;
  }

  // A session whose time is over is gone; a write to its name finds none.
  void DropIfExpiredLocked(const SessionKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto it = sessions.find(key);
    if (it == sessions.end() || FindLocked(key) != nullptr) return;
    version_floor = LiftedFloor(version_floor, it->second.info.version);
    sessions.erase(it);
  }

  absl::StatusOr<MemorySession*> RequireLocked(const SessionKey& key,
                                               uint64_t expected)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    MemorySession* session = FindLocked(key);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", key.id));
    }
    if (session->info.version != expected) {
      return absl::AbortedError(absl::StrFormat(
          "session '%s': expected version %d, it is at version %d, held by "
          "'%s'",
          key.id, expected, session->info.version, session->info.holder));
    }
    return session;
  }

  absl::Status RequireAbsentLocked(const SessionKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const MemorySession* session = FindLocked(key);
    if (session == nullptr) return absl::OkStatus();
    return absl::AbortedError(absl::StrFormat(
        "session '%s': expected version 0, it is at version %d, held by '%s'",
        key.id, session->info.version, session->info.holder));
  }
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_MEMORY_SESSIONS_H_
