// SPDX-License-Identifier: Apache-2.0
//
// The store's vocabulary: sessions, tokens, rows, receipts. The store knows
// bytes: a row is opaque, a fingerprint is 32 bytes, a layer is a number in a
// floor. Plain values, safe to copy between threads.

#ifndef TORPOR_STORE_TYPES_H_
#define TORPOR_STORE_TYPES_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torpor::store {

// 256-bit keyed BLAKE2b value (block ids, token-chain hashes, payload digests)
// or another 256-bit identity (fingerprints).
using Hash256 = std::array<uint8_t, 32>;

// Node-local number of a record; drawn once, never reused. 0 = none.
using RecordNumber = uint64_t;

inline constexpr size_t kMaxSessionIdBytes = 256;
inline constexpr size_t kMaxOperationIdBytes = 64;
inline constexpr size_t kMaxExtraKeyBytes = 64;
inline constexpr size_t kMaxClientStateBytes = size_t{64} * 1024;
inline constexpr size_t kMaxLabels = 64;
inline constexpr size_t kMaxLabelBytes = 256;
// Of a holder's name and of a numerics id.
inline constexpr size_t kMaxNameBytes = 256;
// Tokens without KV that a session may carry (the last sampled ones).
inline constexpr uint64_t kMaxPendingTokens = 65'536;
// Versions that somebody else names; counting on from there never wraps.
inline constexpr uint64_t kMaxGivenVersion = uint64_t{1} << 62;
// What is deleted lifts the first version of every session to come, of any
// tenant, by no more than this: a container at the largest version that can be
// given would end theirs.
inline constexpr uint64_t kMaxFloorLift = uint64_t{1} << 32;

// The highest version below which no session begins, after one of `version` was
// deleted.
inline uint64_t LiftedFloor(uint64_t floor, uint64_t version) {
  return std::max(floor, std::min(version, floor + kMaxFloorLift));
}

using Labels = std::map<std::string, std::string>;

struct SessionKey {
  // Number of the tenant; the store never maps names to it.
  uint32_t tenant = 0;
  // 1 to kMaxSessionIdBytes opaque bytes.
  std::string id;

  friend auto operator<=>(const SessionKey&, const SessionKey&) = default;
};

// Identity of tokens [begin, end) beyond their ids. Positions are absolute.
struct ExtraKeySpan {
  uint64_t begin = 0;
  uint64_t end = 0;
  // 1 to kMaxExtraKeyBytes bytes.
  std::string key;
  // No cut falls strictly inside a bidirectional span.
  bool bidirectional = false;

  friend bool operator==(const ExtraKeySpan&, const ExtraKeySpan&) = default;
};

// Appends a span to those before it. A one-way span that continues its
// neighbour under the same key becomes one with it; a bidirectional one that
// stands there already is not repeated.
inline void AppendSpan(const ExtraKeySpan& span,
                       std::vector<ExtraKeySpan>* spans) {
  if (!spans->empty()) {
    ExtraKeySpan& last = spans->back();
    if (last == span) return;
    if (!span.bidirectional && !last.bidirectional && last.end == span.begin &&
        last.key == span.key) {
      last.end = span.end;
      return;
    }
  }
  spans->push_back(span);
}

// A run of tokens that begins at a position its holder knows. Spans are
// ascending and do not overlap.
struct TokenRun {
  std::vector<uint32_t> ids;
  std::vector<ExtraKeySpan> spans;

  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

// A resume at `resume_at` re-ran rows [replay_start, resume_at) with window
// reads of layers >= layer_begin cut at replay_start (design: floor).
struct Floor {
  uint64_t resume_at = 0;
  uint64_t replay_start = 0;
  uint32_t layer_begin = 0;

  friend bool operator==(const Floor&, const Floor&) = default;
};

// Numbers are frozen: they stand in records.
enum class Provenance : uint8_t {
  kExact = 1,
  kApproximate = 2,
  kLossy = 3,
  kUnknown = 4,
};

struct ProvenanceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
  Provenance provenance = Provenance::kUnknown;

  friend bool operator==(const ProvenanceRange&,
                         const ProvenanceRange&) = default;
};

// Numbers are frozen: they stand in manifests.
enum class SessionClass : uint8_t { kDurable = 1, kCache = 2 };

// A compact slot: one row for every `tokens_per_row` tokens, written when the
// group closes.
struct SlotSpec {
  uint32_t row_bytes = 0;
  uint32_t tokens_per_row = 1;

  friend bool operator==(const SlotSpec&, const SlotSpec&) = default;
};

// How rows of one model are kept. Slot i of this list is slot i of rows.
struct RecordLayout {
  Hash256 fingerprint{};
  // Tokens of a full block; a multiple of every tokens_per_row, at least 16.
  uint32_t block_size = 0;
  std::vector<SlotSpec> slots;
};

struct RowRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  [[nodiscard]] uint64_t size() const { return end - begin; }
  friend bool operator==(const RowRange&, const RowRange&) = default;
};

// Rows of a slot that exist once `n_tokens` tokens have KV.
constexpr uint64_t RowsOf(const SlotSpec& slot, uint64_t n_tokens) {
  return n_tokens / slot.tokens_per_row;
}

// Window KV or recurrent state that a suspend stores beside the compact rows.
struct SnapshotSlot {
  // The writer's number for it; ascending within a suspend.
  uint32_t id = 0;
  uint32_t row_bytes = 0;
  RowRange rows;

  friend bool operator==(const SnapshotSlot&, const SnapshotSlot&) = default;
};

// Reference-counted data that a manifest names and forks share. Numbers are
// frozen: they stand in manifests.
enum class AttachmentKind : uint8_t {
  kWitness = 1,
  kClientState = 2,
  // Window KV and recurrent states at the suspended cut.
  kSnapshot = 3,
  // Rows of pooled groups that are not complete at the cut.
  kOpenGroups = 4,
};

// One named run of bytes of an attachment, checksummed alone.
struct AttachmentSection {
  // Meaning is the writer's: a window slot's index, for example.
  uint32_t id = 0;
  std::vector<uint8_t> bytes;

  friend bool operator==(const AttachmentSection&,
                         const AttachmentSection&) = default;
};

struct Attachment {
  AttachmentKind kind = AttachmentKind::kWitness;
  std::vector<AttachmentSection> sections;
};

// Where a run of rows belongs. A shard's row is its contiguous part of the
// unsharded row: bytes [shard, shard + 1) * row_bytes / n_shards.
struct RowPiece {
  // Index of a compact slot, or the id of a snapshot slot.
  uint32_t slot = 0;
  bool snapshot = false;
  uint32_t shard = 0;
  uint32_t n_shards = 1;
  uint64_t row_begin = 0;
  uint32_t n_rows = 0;
  // XXH3-64 of the piece's bytes, computed by its producer.
  uint64_t checksum = 0;
};

// Times a suspend spent in the store.
struct SuspendReceipt {
  uint64_t version = 0;
  uint64_t n_tokens = 0;
  uint64_t kv_len = 0;
  uint64_t tokens_kept = 0;
  uint64_t row_bytes_received = 0;
  uint64_t row_bytes_copied = 0;
  uint64_t token_bytes = 0;
  uint64_t witness_bytes = 0;
  uint64_t client_state_bytes = 0;
  uint64_t snapshot_bytes = 0;
  uint64_t blocks_shared = 0;
  uint64_t blocks_written = 0;
  // Records written by this suspend, headers included, in whole pages.
  uint64_t stored_bytes = 0;
  uint64_t commit_us = 0;

  friend bool operator==(const SuspendReceipt&,
                         const SuspendReceipt&) = default;
};

// Verb of a stored operation. Numbers are frozen: they stand in manifests.
enum class Verb : uint8_t {
  kSuspend = 1,
  kFork = 2,
  kRewind = 3,
  kErase = 4,
  kImport = 5,
};

// A committed operation and the receipt that its repetition returns.
struct Operation {
  std::string id;
  Verb verb = Verb::kSuspend;
  SuspendReceipt receipt;

  friend bool operator==(const Operation&, const Operation&) = default;
};

// `seconds` after `now_us`, in Unix microseconds; 0 (never) for 0 seconds, and
// the end of time for what lies beyond it.
constexpr int64_t DeadlineAfter(int64_t now_us, int64_t seconds) {
  if (seconds == 0) return 0;
  if (seconds < 0) return now_us;
  constexpr int64_t kMicros = 1'000'000;
  if (seconds > (INT64_MAX - now_us) / kMicros) return INT64_MAX;
  return now_us + seconds * kMicros;
}

// What a session is, without its rows.
struct SessionInfo {
  SessionKey key;
  uint64_t version = 0;
  uint64_t n_tokens = 0;
  uint64_t kv_len = 0;
  // Tokens before the first damaged block; kv_len when sound.
  uint64_t usable_len = 0;
  std::string model;
  Hash256 fingerprint{};
  // Opaque to the store: the fingerprint's fields, to name one that differs.
  std::string fingerprint_fields;
  std::string numerics_id;
  std::string holder;
  SessionClass session_class = SessionClass::kDurable;
  // Unix microseconds; 0 = never.
  int64_t expires_at_us = 0;
  int64_t pinned_until_us = 0;
  int64_t created_at_us = 0;
  int64_t updated_at_us = 0;
  Labels labels;
  std::vector<ProvenanceRange> provenance;
  uint64_t n_blocks = 0;
  uint64_t compact_bytes = 0;
  // Pages reachable from the session x page size, shared ones in full.
  uint64_t stored_bytes = 0;
  uint64_t token_bytes = 0;
  uint64_t witness_bytes = 0;
  uint64_t client_state_bytes = 0;
  uint64_t snapshot_bytes = 0;

  [[nodiscard]] bool has_witness() const { return witness_bytes != 0; }
  [[nodiscard]] bool has_snapshot() const { return snapshot_bytes != 0; }
};

struct StoreStats {
  uint64_t sessions = 0;
  uint64_t records = 0;
  uint64_t live_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t max_bytes = 0;
  uint64_t file_bytes = 0;
  uint64_t disk_free_bytes = 0;
  uint64_t staged_records = 0;
  uint64_t trashed_records = 0;
  uint64_t quarantined_records = 0;
  uint64_t open_tickets = 0;
  uint64_t open_leases = 0;
  uint64_t commits = 0;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_TYPES_H_
