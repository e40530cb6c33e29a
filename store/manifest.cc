// SPDX-License-Identifier: Apache-2.0

#include "store/manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/codec.h"

namespace torpor::store {
namespace {

constexpr uint32_t kManifestMagic = 0x4d525054;   // "TPRM"
constexpr uint32_t kEntryMagic = 0x45525054;      // "TPRE"
constexpr uint32_t kTombstoneMagic = 0x44525054;  // "TPRD"
constexpr uint32_t kLayoutMagic = 0x4c525054;     // "TPRL"

std::string Sealed(ByteWriter w) {
  std::string bytes = w.Take();
  ByteWriter seal;
  seal.Int(Xxh3(AsBytes(bytes)));
  return bytes + seal.str();
}

// The body of a sealed value, its magic and version consumed.
absl::StatusOr<ByteReader> Opened(std::string_view what, uint32_t magic,
                                  std::span<const uint8_t> bytes) {
  if (bytes.size() < 4 + 2 + 8) {
    return absl::DataLossError(
        absl::StrFormat("%s: got %d bytes, wanted more", what, bytes.size()));
  }
  ByteReader seal(bytes.last(8));
  const std::span<const uint8_t> body = bytes.first(bytes.size() - 8);
  const auto stored = seal.Int<uint64_t>();
  if (const uint64_t got = Xxh3(body); got != stored) {
    return absl::DataLossError(absl::StrFormat(
        "%s: has checksum %016x, wanted %016x", what, got, stored));
  }
  ByteReader r(body);
  if (const auto got = r.Int<uint32_t>(); got != magic) {
    return absl::DataLossError(absl::StrFormat(
        "%s: got magic 0x%08x, wanted 0x%08x", what, got, magic));
  }
  if (const auto version = r.Int<uint16_t>();
      version != kManifestFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: got format version %d, this build reads %d", what,
                        version, kManifestFormatVersion));
  }
  return r;
}

absl::Status Malformed(std::string_view what) {
  return absl::DataLossError(absl::StrFormat("%s: malformed", what));
}

void PutReceipt(const SuspendReceipt& receipt, ByteWriter* w) {
  w->Int(receipt.version);
  w->Int(receipt.n_tokens);
  w->Int(receipt.kv_len);
  w->Int(receipt.tokens_kept);
  w->Int(receipt.row_bytes_received);
  w->Int(receipt.row_bytes_copied);
  w->Int(receipt.token_bytes);
  w->Int(receipt.witness_bytes);
  w->Int(receipt.client_state_bytes);
  w->Int(receipt.snapshot_bytes);
  w->Int(receipt.blocks_shared);
  w->Int(receipt.blocks_written);
  w->Int(receipt.stored_bytes);
  w->Int(receipt.commit_us);
}

SuspendReceipt GetReceipt(ByteReader* r) {
  SuspendReceipt receipt;
  receipt.version = r->Int<uint64_t>();
  receipt.n_tokens = r->Int<uint64_t>();
  receipt.kv_len = r->Int<uint64_t>();
  receipt.tokens_kept = r->Int<uint64_t>();
  receipt.row_bytes_received = r->Int<uint64_t>();
  receipt.row_bytes_copied = r->Int<uint64_t>();
  receipt.token_bytes = r->Int<uint64_t>();
  receipt.witness_bytes = r->Int<uint64_t>();
  receipt.client_state_bytes = r->Int<uint64_t>();
  receipt.snapshot_bytes = r->Int<uint64_t>();
  receipt.blocks_shared = r->Int<uint64_t>();
  receipt.blocks_written = r->Int<uint64_t>();
  receipt.stored_bytes = r->Int<uint64_t>();
  receipt.commit_us = r->Int<uint64_t>();
  return receipt;
}

}  // namespace

void PutOperation(const Operation& operation, ByteWriter* w) {
  w->Bytes(operation.id);
  w->Int(static_cast<uint8_t>(operation.verb));
  PutReceipt(operation.receipt, w);
}

Operation GetOperation(ByteReader* r) {
  Operation operation;
  operation.id = r->Bytes();
  operation.verb = static_cast<Verb>(r->Int<uint8_t>());
  operation.receipt = GetReceipt(r);
  return operation;
}

const AttachmentRef* SessionManifest::Find(AttachmentKind kind) const {
  const auto it =
      std::find_if(attachments.begin(), attachments.end(),
                   [&](const AttachmentRef& a) { return a.kind == kind; });
  return it == attachments.end() ? nullptr : &*it;
}

const Operation* SessionManifest::FindOperation(std::string_view id,
                                                Verb verb) const {
  const auto it = std::find_if(
      operations.begin(), operations.end(),
      [&](const Operation& o) { return o.id == id && o.verb == verb; });
  return it == operations.end() ? nullptr : &*it;
}

void SessionManifest::AddOperation(Operation operation) {
  operations.push_back(std::move(operation));
  if (operations.size() > kOperationsKept) operations.erase(operations.begin());
}

std::string EncodeManifest(const SessionManifest& m) {
  ByteWriter w;
  w.Int(kManifestMagic);
  w.Int(kManifestFormatVersion);
  w.Int(static_cast<uint8_t>(m.session_class));
  w.Int(uint8_t{0});  // encryption: none
  w.Int(m.version);
  w.Int(m.created_at_us);
  w.Int(m.updated_at_us);
  w.Int(m.expires_at_us);
  w.Int(m.pinned_until_us);
  w.Raw(m.fingerprint);
  w.Int(m.block_size);
  w.Int(m.tip);
  w.Int(m.n_tokens);
  w.Int(m.kv_len);
  w.Int(m.page_bytes);
  w.Int(m.n_blocks);
  w.Bytes(m.model);
  w.Bytes(m.fingerprint_fields);
  w.Bytes(m.numerics_id);
  w.Bytes(m.holder);
  w.Int(static_cast<uint32_t>(m.attachments.size()));
  for (const AttachmentRef& a : m.attachments) {
    w.Int(static_cast<uint8_t>(a.kind));
    w.Int(a.record);
    w.Int(a.bytes);
    w.Int(a.page_bytes);
  }
  w.Int(static_cast<uint32_t>(m.provenance.size()));
  for (const ProvenanceRange& range : m.provenance) {
    w.Int(range.begin);
    w.Int(range.end);
    w.Int(static_cast<uint8_t>(range.provenance));
  }
  w.Int(static_cast<uint32_t>(m.labels.size()));
  for (const auto& [key, value] : m.labels) {
    w.Bytes(key);
    w.Bytes(value);
  }
  w.Int(static_cast<uint32_t>(m.operations.size()));
  for (const Operation& operation : m.operations) PutOperation(operation, &w);
  return Sealed(std::move(w));
}

absl::StatusOr<SessionManifest> DecodeManifest(std::span<const uint8_t> bytes) {
  TORPOR_ASSIGN_OR_RETURN(ByteReader r,
                          Opened("manifest", kManifestMagic, bytes));
  SessionManifest m;
  m.session_class = static_cast<SessionClass>(r.Int<uint8_t>());
  r.Raw(1);
  m.version = r.Int<uint64_t>();
  m.created_at_us = r.Int<int64_t>();
  m.updated_at_us = r.Int<int64_t>();
  m.expires_at_us = r.Int<int64_t>();
  m.pinned_until_us = r.Int<int64_t>();
  m.fingerprint = r.Array<32>();
  m.block_size = r.Int<uint32_t>();
  m.tip = r.Int<uint64_t>();
  m.n_tokens = r.Int<uint64_t>();
  m.kv_len = r.Int<uint64_t>();
  m.page_bytes = r.Int<uint64_t>();
  m.n_blocks = r.Int<uint64_t>();
  m.model = r.Bytes();
  m.fingerprint_fields = r.Bytes();
  m.numerics_id = r.Bytes();
  m.holder = r.Bytes();
  m.attachments.resize(r.Count(1 + 8 + 8 + 8));
  for (AttachmentRef& a : m.attachments) {
    a.kind = static_cast<AttachmentKind>(r.Int<uint8_t>());
    a.record = r.Int<uint64_t>();
    a.bytes = r.Int<uint64_t>();
    a.page_bytes = r.Int<uint64_t>();
  }
  m.provenance.resize(r.Count(8 + 8 + 1));
  for (ProvenanceRange& range : m.provenance) {
    range.begin = r.Int<uint64_t>();
    range.end = r.Int<uint64_t>();
    range.provenance = static_cast<Provenance>(r.Int<uint8_t>());
  }
  const uint32_t n_labels = r.Count(4 + 4);
  for (uint32_t i = 0; i < n_labels; ++i) {
    std::string key = r.Bytes();
    m.labels[std::move(key)] = r.Bytes();
  }
  m.operations.resize(r.Count(4 + 1 + kReceiptBytes));
  for (Operation& operation : m.operations) operation = GetOperation(&r);
  if (!r.Done()) return Malformed("manifest");
  return m;
}

std::string EncodeRecordEntry(const RecordEntry& e) {
  ByteWriter w;
  w.Int(kEntryMagic);
  w.Int(kManifestFormatVersion);
  w.Int(static_cast<uint8_t>(e.kind));
  w.Int(static_cast<uint8_t>((e.quarantined ? 1 : 0) | (e.full ? 2 : 0)));
  w.Int(e.tenant);
  w.Int(e.refs);
  w.Int(e.live);
  w.Int(e.parent);
  w.Int(e.first_pos);
  w.Int(e.n_tokens);
  w.Int(e.n_pending);
  w.Int(e.record_bytes);
  w.Raw(e.block_id);
  w.Raw(e.parent_chain);
  w.Raw(e.chain);
  return Sealed(std::move(w));
}

absl::StatusOr<RecordEntry> DecodeRecordEntry(std::span<const uint8_t> bytes) {
  TORPOR_ASSIGN_OR_RETURN(ByteReader r,
                          Opened("record entry", kEntryMagic, bytes));
  RecordEntry e;
  e.kind = static_cast<RecordKind>(r.Int<uint8_t>());
  const auto flags = r.Int<uint8_t>();
  e.quarantined = (flags & 1) != 0;
  e.full = (flags & 2) != 0;
  e.tenant = r.Int<uint32_t>();
  e.refs = r.Int<uint32_t>();
  e.live = r.Int<uint32_t>();
  e.parent = r.Int<uint64_t>();
  e.first_pos = r.Int<uint64_t>();
  e.n_tokens = r.Int<uint32_t>();
  e.n_pending = r.Int<uint32_t>();
  e.record_bytes = r.Int<uint64_t>();
  e.block_id = r.Array<32>();
  e.parent_chain = r.Array<32>();
  e.chain = r.Array<32>();
  if (!r.Done()) return Malformed("record entry");
  return e;
}

std::string EncodeLayout(const RecordLayout& layout) {
  ByteWriter w;
  w.Int(kLayoutMagic);
  w.Int(kManifestFormatVersion);
  w.Int(layout.block_size);
  w.Int(static_cast<uint32_t>(layout.slots.size()));
  for (const SlotSpec& slot : layout.slots) {
    w.Int(slot.row_bytes);
    w.Int(slot.tokens_per_row);
  }
  return Sealed(std::move(w));
}

absl::StatusOr<RecordLayout> DecodeLayout(const Hash256& fingerprint,
                                          std::span<const uint8_t> bytes) {
  TORPOR_ASSIGN_OR_RETURN(ByteReader r, Opened("layout", kLayoutMagic, bytes));
  RecordLayout layout;
  layout.fingerprint = fingerprint;
  layout.block_size = r.Int<uint32_t>();
  layout.slots.resize(r.Count(4 + 4));
  for (SlotSpec& slot : layout.slots) {
    slot.row_bytes = r.Int<uint32_t>();
    slot.tokens_per_row = r.Int<uint32_t>();
  }
  if (!r.Done()) return Malformed("layout");
  return layout;
}

std::string EncodeTombstone(const Tombstone& tombstone) {
  ByteWriter w;
  w.Int(kTombstoneMagic);
  w.Int(kManifestFormatVersion);
  w.Int(tombstone.deleted_at_us);
  PutOperation(tombstone.operation, &w);
  return Sealed(std::move(w));
}

absl::StatusOr<Tombstone> DecodeTombstone(std::span<const uint8_t> bytes) {
  TORPOR_ASSIGN_OR_RETURN(ByteReader r,
                          Opened("tombstone", kTombstoneMagic, bytes));
  Tombstone tombstone;
  tombstone.deleted_at_us = r.Int<int64_t>();
  tombstone.operation = GetOperation(&r);
  if (!r.Done()) return Malformed("tombstone");
  return tombstone;
}

void AppendProvenance(const ProvenanceRange& more,
                      std::vector<ProvenanceRange>* ranges) {
  if (more.begin == more.end) return;
  if (!ranges->empty() && ranges->back().end == more.begin &&
      ranges->back().provenance == more.provenance) {
    ranges->back().end = more.end;
    return;
  }
  ranges->push_back(more);
}

std::vector<ProvenanceRange> ClipProvenance(
    std::span<const ProvenanceRange> ranges, uint64_t begin, uint64_t end) {
  std::vector<ProvenanceRange> out;
  uint64_t at = begin;
  for (const ProvenanceRange& range : ranges) {
    const uint64_t from = std::max(range.begin, at);
    const uint64_t to = std::min(range.end, end);
    if (from >= to) continue;
    AppendProvenance({at, from, Provenance::kUnknown}, &out);
    AppendProvenance({from, to, range.provenance}, &out);
    at = to;
  }
  AppendProvenance({at, std::max(at, end), Provenance::kUnknown}, &out);
  return out;
}

}  // namespace torpor::store
