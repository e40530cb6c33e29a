// SPDX-License-Identifier: Apache-2.0

#include "store/catalog.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/record.h"

namespace torpor::store {
namespace {

std::string U64Value(uint64_t n) {
  ByteWriter w;
  w.Int(n);
  return w.Take();
}

absl::StatusOr<uint64_t> GetU64(const ReadView& view, Table table,
                                std::string_view key, uint64_t fallback) {
  TORPOR_ASSIGN_OR_RETURN(const auto value, view.Get(table, key));
  if (!value.has_value()) return fallback;
  ByteReader r(*value);
  const auto n = r.Int<uint64_t>();
  if (!r.Done()) {
    return absl::DataLossError(absl::StrFormat(
        "value of key '%s': got %d bytes, wanted 8", key, value->size()));
  }
  return n;
}

// The entry of a record that loses a name or is met on a walk; nullopt when it
// is damaged or gone, which asks for a recount.
absl::StatusOr<std::optional<RecordEntry>> FindSound(WriteTxn& txn,
                                                     RecordNumber number) {
  absl::StatusOr<RecordEntry> entry = FindRecord(txn, number);
  if (entry.ok()) return *std::move(entry);
  if (!absl::IsDataLoss(entry.status())) return entry.status();
  TORPOR_RETURN_IF_ERROR(AskForRecount(txn));
  return std::nullopt;
}

// One more name for a record, whoever gives it.
absl::Status AddRef(WriteTxn& txn, RecordNumber number) {
  if (number == 0) return absl::OkStatus();
  TORPOR_ASSIGN_OR_RETURN(RecordEntry entry, FindRecord(txn, number));
  if (entry.refs == 0) {
    TORPOR_RETURN_IF_ERROR(
        txn.Delete(Table::kTrash, RecordKey(number)).status());
  }
  ++entry.refs;
  return PutRecord(txn, number, entry);
}

// One name less; the last one puts the record into the trash.
absl::Status DropRef(WriteTxn& txn, RecordNumber number) {
  if (number == 0) return absl::OkStatus();
  TORPOR_ASSIGN_OR_RETURN(std::optional<RecordEntry> entry,
                          FindSound(txn, number));
  if (!entry.has_value()) return absl::OkStatus();
  if (entry->refs == 0) return AskForRecount(txn);
  if (--entry->refs == 0) {
    TORPOR_RETURN_IF_ERROR(
        txn.Put(Table::kTrash, RecordKey(number),
                AsBytes(EncodeExtent({entry->tenant, entry->record_bytes}))));
  }
  return PutRecord(txn, number, *entry);
}

// What PublishRecord entered for lookups.
absl::Status DropChainKeys(WriteTxn& txn, RecordNumber number,
                           const RecordEntry& entry) {
  if (entry.kind != RecordKind::kBlock || entry.n_tokens == 0) {
    return absl::OkStatus();
  }
  TORPOR_RETURN_IF_ERROR(
      txn.Delete(Table::kChain, ChainKey(entry.tenant, entry.parent_chain,
                                         ChainRelation::kContinues, number))
          .status());
  if (!entry.full) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(
      txn.Delete(Table::kChain, ChainKey(entry.tenant, entry.chain,
                                         ChainRelation::kEnds, number))
          .status());
  const std::string block_key = BlockKey(entry.tenant, entry.block_id);
  TORPOR_ASSIGN_OR_RETURN(const RecordNumber holder,
                          GetU64(txn, Table::kBlocks, block_key, 0));
  if (holder != number) return absl::OkStatus();
  return txn.Delete(Table::kBlocks, block_key).status();
}

absl::Status NotTheVersion(const SessionKey& session, uint64_t expected,
                           const SessionManifest& manifest) {
  return absl::AbortedError(absl::StrFormat(
      "session '%s': expected version %d, it is at version %d, held by '%s'",
      session.id, expected, manifest.version, manifest.holder));
}

}  // namespace

absl::StatusOr<std::optional<SessionManifest>> FindSession(
    const ReadView& view, const SessionKey& session) {
  TORPOR_ASSIGN_OR_RETURN(const auto value,
                          view.Get(Table::kSessions, SessionTableKey(session)));
  if (!value.has_value()) return std::nullopt;
  absl::StatusOr<SessionManifest> manifest = DecodeManifest(*value);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrFormat("session '%s': %s", session.id,
                                        ToStd(manifest.status().message())));
  }
  return *std::move(manifest);
}

absl::Status PutSession(WriteTxn& txn, const SessionKey& session,
                        const SessionManifest& manifest) {
  return txn.Put(Table::kSessions, SessionTableKey(session),
                 AsBytes(EncodeManifest(manifest)));
}

absl::StatusOr<SessionManifest> RequireVersion(const ReadView& view,
                                               const SessionKey& session,
                                               uint64_t expected) {
  TORPOR_ASSIGN_OR_RETURN(std::optional<SessionManifest> manifest,
                          FindSession(view, session));
  if (!manifest.has_value()) {
    return absl::NotFoundError(
        absl::StrFormat("session '%s': unknown", session.id));
  }
  if (manifest->version != expected) {
    return NotTheVersion(session, expected, *manifest);
  }
  return *std::move(manifest);
}

absl::Status RequireAbsent(const ReadView& view, const SessionKey& session) {
  TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> manifest,
                          FindSession(view, session));
  return manifest.has_value() ? NotTheVersion(session, 0, *manifest)
                              : absl::OkStatus();
}

absl::Status CheckBase(const ReadView& view, const SessionKey& session,
                       uint64_t expected, bool keeps_none) {
  const absl::Status status =
      expected == 0 ? RequireAbsent(view, session)
                    : RequireVersion(view, session, expected).status();
  return keeps_none && absl::IsDataLoss(status) ? absl::OkStatus() : status;
}

absl::StatusOr<std::optional<SessionManifest>> FindBase(
    WriteTxn& txn, const SessionKey& session, uint64_t expected,
    bool keeps_none) {
  TORPOR_RETURN_IF_ERROR(CheckBase(txn, session, expected, keeps_none));
  absl::StatusOr<std::optional<SessionManifest>> manifest =
      FindSession(txn, session);
  if (manifest.ok()) return manifest;
  TORPOR_RETURN_IF_ERROR(AskForRecount(txn));
  return std::nullopt;
}

absl::StatusOr<uint64_t> FirstVersion(const ReadView& view) {
  TORPOR_ASSIGN_OR_RETURN(const uint64_t floor,
                          GetU64(view, Table::kMeta, kMetaVersionFloor, 0));
  return floor + 1;
}

absl::StatusOr<RecordEntry> FindRecord(const ReadView& view,
                                       RecordNumber number) {
  TORPOR_ASSIGN_OR_RETURN(const auto value,
                          view.Get(Table::kRecords, RecordKey(number)));
  if (!value.has_value()) {
    return absl::DataLossError(
        absl::StrFormat("record %d: not in the index", number));
  }
  absl::StatusOr<RecordEntry> entry = DecodeRecordEntry(*value);
  if (!entry.ok()) {
    return absl::Status(entry.status().code(),
                        absl::StrFormat("record %d: %s", number,
                                        ToStd(entry.status().message())));
  }
  return entry;
}

absl::Status PutRecord(WriteTxn& txn, RecordNumber number,
                       const RecordEntry& entry) {
  return txn.Put(Table::kRecords, RecordKey(number),
                 AsBytes(EncodeRecordEntry(entry)));
}

absl::Status AddName(WriteTxn& txn, RecordNumber number) {
  TORPOR_RETURN_IF_ERROR(AddRef(txn, number));
  // Up the chain until an ancestor was live already.
  while (number != 0) {
    TORPOR_ASSIGN_OR_RETURN(std::optional<RecordEntry> entry,
                            FindSound(txn, number));
    if (!entry.has_value()) break;
    const bool was_live = entry->live++ > 0;
    TORPOR_RETURN_IF_ERROR(PutRecord(txn, number, *entry));
    if (was_live) break;
    number = entry->parent;
  }
  return absl::OkStatus();
}

absl::Status DropName(WriteTxn& txn, RecordNumber number) {
  for (RecordNumber at = number; at != 0;) {
    TORPOR_ASSIGN_OR_RETURN(std::optional<RecordEntry> entry,
                            FindSound(txn, at));
    if (!entry.has_value()) break;
    if (entry->live == 0) {
      TORPOR_RETURN_IF_ERROR(AskForRecount(txn));
      break;
    }
    const bool still_live = --entry->live > 0;
    TORPOR_RETURN_IF_ERROR(PutRecord(txn, at, *entry));
    if (still_live) break;
    at = entry->parent;
  }
  return DropRef(txn, number);
}

absl::Status PublishRecord(WriteTxn& txn, RecordNumber number,
                           const RecordEntry& entry) {
  TORPOR_RETURN_IF_ERROR(DropStaged(txn, number));
  TORPOR_RETURN_IF_ERROR(AddRef(txn, entry.parent));
  TORPOR_RETURN_IF_ERROR(PutRecord(txn, number, entry));
  if (entry.kind != RecordKind::kBlock || entry.n_tokens == 0) {
    return absl::OkStatus();
  }
  TORPOR_RETURN_IF_ERROR(txn.Put(Table::kChain,
                                 ChainKey(entry.tenant, entry.parent_chain,
                                          ChainRelation::kContinues, number),
                                 {}));
  if (!entry.full) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(txn.Put(
      Table::kChain,
      ChainKey(entry.tenant, entry.chain, ChainRelation::kEnds, number), {}));
  return txn.Put(Table::kBlocks, BlockKey(entry.tenant, entry.block_id),
                 AsBytes(U64Value(number)));
}

absl::StatusOr<RecordNumber> FindBlock(const ReadView& view, uint32_t tenant,
                                       const Hash256& block_id) {
  TORPOR_ASSIGN_OR_RETURN(
      const RecordNumber number,
      GetU64(view, Table::kBlocks, BlockKey(tenant, block_id), 0));
  if (number == 0) return RecordNumber{0};
  const absl::StatusOr<RecordEntry> entry = FindRecord(view, number);
  // A damaged twin is not shared; the new record takes its place in the index.
  if (!entry.ok() || entry->quarantined || entry->block_id != block_id) {
    return RecordNumber{0};
  }
  return number;
}

absl::Status AddManifestNames(WriteTxn& txn, const SessionManifest& manifest) {
  TORPOR_RETURN_IF_ERROR(AddName(txn, manifest.tip));
  for (const AttachmentRef& a : manifest.attachments) {
    TORPOR_RETURN_IF_ERROR(AddName(txn, a.record));
  }
  return absl::OkStatus();
}

absl::Status DropManifestNames(WriteTxn& txn, const SessionManifest& manifest) {
  TORPOR_RETURN_IF_ERROR(DropName(txn, manifest.tip));
  for (const AttachmentRef& a : manifest.attachments) {
    TORPOR_RETURN_IF_ERROR(DropName(txn, a.record));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<RecordLayout>> FindLayout(
    const ReadView& view, const Hash256& fingerprint) {
  TORPOR_ASSIGN_OR_RETURN(const auto value,
                          view.Get(Table::kMeta, LayoutKey(fingerprint)));
  if (!value.has_value()) return std::nullopt;
  TORPOR_ASSIGN_OR_RETURN(RecordLayout layout,
                          DecodeLayout(fingerprint, *value));
  return layout;
}

absl::Status RequireSameLayout(const RecordLayout& stored,
                               const RecordLayout& asked) {
  if (stored.block_size != asked.block_size) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "layout under this fingerprint: got block size %d, sessions have %d",
        asked.block_size, stored.block_size));
  }
  if (stored.slots != asked.slots) {
    return absl::FailedPreconditionError(
        "layout under this fingerprint: its slots differ from those that "
        "sessions have");
  }
  return absl::OkStatus();
}

absl::Status EnsureLayout(WriteTxn& txn, const RecordLayout& layout) {
  TORPOR_ASSIGN_OR_RETURN(const std::optional<RecordLayout> stored,
                          FindLayout(txn, layout.fingerprint));
  if (stored.has_value()) return RequireSameLayout(*stored, layout);
  return txn.Put(Table::kMeta, LayoutKey(layout.fingerprint),
                 AsBytes(EncodeLayout(layout)));
}

std::string EncodeExtent(const RecordExtent& extent) {
  ByteWriter w;
  w.Int(extent.tenant);
  w.Int(extent.record_bytes);
  return w.Take();
}

absl::StatusOr<RecordExtent> DecodeExtent(std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  RecordExtent extent;
  extent.tenant = r.Int<uint32_t>();
  extent.record_bytes = r.Int<uint64_t>();
  if (!r.Done()) {
    return absl::DataLossError(absl::StrFormat(
        "staged or trashed record: got %d bytes, wanted 12", bytes.size()));
  }
  return extent;
}

absl::Status PutStaged(WriteTxn& txn, RecordNumber number,
                       const RecordExtent& extent) {
  return txn.Put(Table::kStaging, RecordKey(number),
                 AsBytes(EncodeExtent(extent)));
}

absl::Status DropStaged(WriteTxn& txn, RecordNumber number) {
  return txn.Delete(Table::kStaging, RecordKey(number)).status();
}

absl::Status TrashStaged(WriteTxn& txn, RecordNumber number,
                         const RecordExtent& extent) {
  TORPOR_RETURN_IF_ERROR(DropStaged(txn, number));
  return txn.Put(Table::kTrash, RecordKey(number),
                 AsBytes(EncodeExtent(extent)));
}

absl::StatusOr<std::vector<ChainLink>> WalkChain(const ReadView& view,
                                                 RecordNumber tip) {
  std::vector<ChainLink> links;
  for (RecordNumber number = tip; number != 0;) {
    TORPOR_ASSIGN_OR_RETURN(const RecordEntry entry, FindRecord(view, number));
    links.push_back({.number = number,
                     .first_pos = entry.first_pos,
                     .n_tokens = entry.n_tokens,
                     .n_pending = entry.n_pending,
                     .record_bytes = entry.record_bytes,
                     .quarantined = entry.quarantined});
    if (links.size() > view.Count(Table::kRecords)) {
      return absl::DataLossError(
          absl::StrFormat("record %d: its chain of parents never ends", tip));
    }
    number = entry.parent;
  }
  std::reverse(links.begin(), links.end());
  return links;
}

uint64_t StoredBytes(uint64_t record_bytes) {
  // Per record its entry, two chain keys and a block key; per part a leaf
  // node. Half-full B-tree pages double that.
  constexpr uint64_t kRecordIndexBytes = 2 * (178 + 2 * 61 + 52);
  constexpr uint64_t kPartIndexBytes = 2 * 30;
  return RecordPageBytes(record_bytes) + kRecordIndexBytes +
         PartCount(record_bytes) * kPartIndexBytes;
}

absl::StatusOr<Reaped> ReapRecord(WriteTxn& txn, RecordNumber number) {
  const std::string key = RecordKey(number);
  Reaped reaped;
  TORPOR_ASSIGN_OR_RETURN(const auto trash, txn.Get(Table::kTrash, key));
  if (!trash.has_value()) return reaped;
  // A damaged length is not believed: what is there is counted.
  const absl::StatusOr<RecordExtent> extent = DecodeExtent(*trash);
  if (extent.ok()) reaped.extent.tenant = extent->tenant;
  TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kTrash, key).status());
  std::vector<std::string> parts;
  TORPOR_RETURN_IF_ERROR(
      txn.Scan(Table::kParts, PartKey(number, 0), [&](const Entry& entry) {
        if (!entry.key.starts_with(key)) return false;
        parts.emplace_back(entry.key);
        reaped.extent.record_bytes += entry.value.size();
        return true;
      }));
  for (const std::string& part : parts) {
    TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kParts, part).status());
  }
  TORPOR_ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kRecords, key));
  // Staged records that were given up have no entry.
  if (!value.has_value()) return reaped;
  const absl::StatusOr<RecordEntry> entry = DecodeRecordEntry(*value);
  TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kRecords, key).status());
  if (!entry.ok()) {
    // Its keys in the chain index and its parent are not known.
    TORPOR_RETURN_IF_ERROR(AskForRecount(txn));
    return reaped;
  }
  reaped.quarantined = entry->quarantined;
  TORPOR_RETURN_IF_ERROR(DropChainKeys(txn, number, *entry));
  TORPOR_RETURN_IF_ERROR(DropRef(txn, entry->parent));
  return reaped;
}

absl::StatusOr<RecordNumber> DrawRecordNumbers(WriteTxn& txn, uint64_t count) {
  TORPOR_ASSIGN_OR_RETURN(const RecordNumber next,
                          GetU64(txn, Table::kMeta, kMetaNextRecord, 1));
  TORPOR_RETURN_IF_ERROR(
      txn.Put(Table::kMeta, kMetaNextRecord, AsBytes(U64Value(next + count))));
  return next;
}

}  // namespace torpor::store
