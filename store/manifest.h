// SPDX-License-Identifier: Apache-2.0
//
// The values of the small tables: a session's manifest, a record's index
// entry, a delete's tombstone. Each ends in the XXH3-64 of what precedes it.
// docs/FORMAT.md gives the bytes. All functions are pure.

#ifndef TORPOR_STORE_MANIFEST_H_
#define TORPOR_STORE_MANIFEST_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/codec.h"
#include "store/record.h"
#include "store/types.h"

namespace torpor::store {

inline constexpr uint16_t kManifestFormatVersion = 1;
// Operations whose receipts stay with the session.
inline constexpr size_t kOperationsKept = 16;

struct AttachmentRef {
  AttachmentKind kind = AttachmentKind::kWitness;
  // The last record of the attachment; earlier ones are its ancestors.
  RecordNumber record = 0;
  // Payload bytes, and pages of its records, index entries included.
  uint64_t bytes = 0;
  uint64_t page_bytes = 0;

  friend bool operator==(const AttachmentRef&, const AttachmentRef&) = default;
};

struct SessionManifest {
  uint64_t version = 0;
  SessionClass session_class = SessionClass::kDurable;
  int64_t created_at_us = 0;
  int64_t updated_at_us = 0;
  int64_t expires_at_us = 0;
  int64_t pinned_until_us = 0;
  Hash256 fingerprint{};
  uint32_t block_size = 0;
  // The last record of the chain; 0 when no token has a record.
  RecordNumber tip = 0;
  uint64_t n_tokens = 0;
  uint64_t kv_len = 0;
  // Pages of the chain's records, index entries included.
  uint64_t page_bytes = 0;
  uint64_t n_blocks = 0;
  std::string model;
  std::string fingerprint_fields;
  std::string numerics_id;
  std::string holder;
  std::vector<AttachmentRef> attachments;
  std::vector<ProvenanceRange> provenance;
  std::map<std::string, std::string> labels;
  // Oldest first, at most kOperationsKept.
  std::vector<Operation> operations;

  [[nodiscard]] const AttachmentRef* Find(AttachmentKind kind) const;
  // Two verbs may have taken the same id; each is an operation of its own.
  [[nodiscard]] const Operation* FindOperation(std::string_view id,
                                               Verb verb) const;
  // Appends, and drops the oldest beyond kOperationsKept.
  void AddOperation(Operation operation);
};

// An operation as it stands in manifests; kReceiptBytes of it are its receipt.
inline constexpr size_t kReceiptBytes = size_t{14} * 8;
void PutOperation(const Operation& operation, ByteWriter* w);
Operation GetOperation(ByteReader* r);

std::string EncodeManifest(const SessionManifest& manifest);
// kDataLoss when the bytes or their checksum are wrong; kFailedPrecondition
// when a newer version.
absl::StatusOr<SessionManifest> DecodeManifest(std::span<const uint8_t> bytes);

// What the index knows of a published record, without reading its parts.
struct RecordEntry {
  uint32_t tenant = 0;
  RecordKind kind = RecordKind::kBlock;
  // Damage was seen: nothing reads it again.
  bool quarantined = false;
  // A full block: listed by id and by chain hash.
  bool full = false;
  // Manifests and child records that name it: at 0 it may be freed.
  uint32_t refs = 0;
  // Of those, manifests and live children: at 0 no session reaches it, and no
  // lookup finds it.
  uint32_t live = 0;
  RecordNumber parent = 0;
  uint64_t first_pos = 0;
  uint32_t n_tokens = 0;
  uint32_t n_pending = 0;
  uint64_t record_bytes = 0;
  Hash256 block_id{};
  // Token chain before this block, and with it.
  Hash256 parent_chain{};
  Hash256 chain{};

  [[nodiscard]] uint64_t end_pos() const { return first_pos + n_tokens; }
  friend bool operator==(const RecordEntry&, const RecordEntry&) = default;
};

std::string EncodeRecordEntry(const RecordEntry& entry);
absl::StatusOr<RecordEntry> DecodeRecordEntry(std::span<const uint8_t> bytes);

// Block size and slots of a model's records, under its fingerprint.
std::string EncodeLayout(const RecordLayout& layout);
absl::StatusOr<RecordLayout> DecodeLayout(const Hash256& fingerprint,
                                          std::span<const uint8_t> bytes);

// What stays of a deleted session for 24 h.
struct Tombstone {
  int64_t deleted_at_us = 0;
  Operation operation;
};

std::string EncodeTombstone(const Tombstone& tombstone);
absl::StatusOr<Tombstone> DecodeTombstone(std::span<const uint8_t> bytes);

// Appends `more` to `ranges`, merging neighbours of equal provenance.
void AppendProvenance(const ProvenanceRange& more,
                      std::vector<ProvenanceRange>* ranges);

// The part of `ranges` inside [begin, end), gaps filled with kUnknown.
std::vector<ProvenanceRange> ClipProvenance(
    std::span<const ProvenanceRange> ranges, uint64_t begin, uint64_t end);

}  // namespace torpor::store

#endif  // TORPOR_STORE_MANIFEST_H_
