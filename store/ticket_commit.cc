// SPDX-License-Identifier: Apache-2.0
//
// The end of a suspend: attachments, and the transaction that publishes the
// new version.

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/lmdb_ticket.h"
#include "store/record.h"
#include "store/record_writer.h"

namespace torpor::store {
namespace {

RecordEntry EntryOf(const PlannedRecord& planned, RecordNumber parent,
                    const Hash256& block_id) {
  const RecordHeader& h = planned.header;
  return {.tenant = h.tenant,
          .kind = h.kind,
          .full = planned.full,
          .parent = parent,
          .first_pos = h.first_pos,
          .n_tokens = h.n_tokens,
          .n_pending = h.n_pending,
          .record_bytes = h.record_bytes,
          .block_id = block_id,
          .parent_chain = planned.parent_chain,
          .chain = planned.chain};
}

}  // namespace

absl::Status LmdbTicket::WaitForRows() {
  MutexLock lock(&mu_);
  TORPOR_RETURN_IF_ERROR(CheckAliveLocked());
  if (committing_) {
    return absl::FailedPreconditionError("suspend: committed already");
  }
  while (puts_running_ > 0) changed_.Wait(&mu_);
  if (OldestIncompleteLocked() < n_row_records_) {
    return absl::FailedPreconditionError(
        absl::StrFormat("commit: rows are missing: %s", MissingLocked()));
  }
  committing_ = true;
  while (InFlightLocked()) changed_.Wait(&mu_);
  return CheckAliveLocked();
}

absl::Status LmdbTicket::AddAttachments(std::vector<Attachment> attachments) {
  RecordNumber number =
      records_.empty() ? 0 : records_.back()->planned.header.number + 1;
  if (records_.empty()) {
    TORPOR_ASSIGN_OR_RETURN(number, core_->DrawRecords(kSpareNumbers));
  }
  uint64_t page_bytes = 0;
  for (const Attachment& attachment : attachments) {
    if (attachment.sections.empty()) continue;
    const size_t begin = records_.size();
    uint64_t bytes = 0;
    auto record = std::make_unique<Record>();
    RecordHeader& header = record->planned.header;
    header.kind = RecordKind::kAttachment;
    header.number = number++;
    header.tenant = spec_.session.tenant;
    for (const AttachmentSection& section : attachment.sections) {
      header.sections.push_back({.kind = SectionKind::kAttachment,
                                 .id = section.id,
                                 .bytes = section.bytes.size()});
      record->planned.small_sections.push_back(
          std::string(AsString(section.bytes)));
      bytes += section.bytes.size();
    }
    PlaceSections(&header);
    record->buffer = core_->pool.Force(header.record_bytes);
    Seal(record.get());
    record->stage = Stage::kComplete;
    page_bytes += RecordPageBytes(header.record_bytes);
    records_.push_back(std::move(record));
    attachments_.push_back({attachment.kind, begin, records_.size(), bytes});
  }
  if (page_bytes == 0) return absl::OkStatus();
  TORPOR_RETURN_IF_ERROR(core_->Admit(spec_.session.tenant, page_bytes));
  MutexLock lock(&mu_);
  reserved_ += page_bytes;
  return absl::OkStatus();
}

absl::Status LmdbTicket::LeaveOut(WriteTxn& txn, size_t i,
                                  Published* published) const {
  published->unused[i] = true;
  const RecordHeader& h = records_[i]->planned.header;
  if (records_[i]->stage != Stage::kWritten) return absl::OkStatus();
  return TrashStaged(txn, h.number, {h.tenant, h.record_bytes});
}

absl::Status LmdbTicket::PublishBlocks(WriteTxn& txn, Published* published,
                                       RecordNumber* tip) {
  RecordNumber parent = parent_;
  Hash256 parent_id{};
  if (parent != 0) {
    TORPOR_ASSIGN_OR_RETURN(const RecordEntry entry, FindRecord(txn, parent));
    parent_id = entry.block_id;
  }
  for (size_t i = 0; i < n_blocks_; ++i) {
    const Record& record = *records_[i];
    const PlannedRecord& planned = record.planned;
    const RecordHeader& h = planned.header;
    const Hash256 id =
        BlockId(secret_, {.fingerprint = spec_.layout.fingerprint,
                          .parent_id = parent_id,
                          .chain_hash = planned.chain,
                          .payload_digest = h.payload_digest,
                          .provenance = planned.origin.provenance,
                          .floors = planned.origin.floors});
    parent_id = id;
    if (planned.full) {
      TORPOR_ASSIGN_OR_RETURN(const RecordNumber twin,
                              FindBlock(txn, h.tenant, id));
      if (twin != 0) {
        TORPOR_ASSIGN_OR_RETURN(const RecordEntry entry, FindRecord(txn, twin));
        // Equal bytes under the very parent we have: share them.
        if (entry.parent == parent) {
          TORPOR_RETURN_IF_ERROR(LeaveOut(txn, i, published));
          ++published->blocks_shared;
          parent = twin;
          continue;
        }
      }
    }
    if (record.stage != Stage::kWritten) {
      TORPOR_RETURN_IF_ERROR(WriteParts(txn, h.number, record.buffer.span()));
    }
    TORPOR_RETURN_IF_ERROR(
        PublishRecord(txn, h.number, EntryOf(planned, parent, id)));
    parent = h.number;
  }
  *tip = parent;
  return absl::OkStatus();
}

absl::Status LmdbTicket::PublishAttachments(WriteTxn& txn,
                                            const SessionManifest* base,
                                            Published* published) {
  SessionManifest& manifest = published->manifest;
  // Without new rows the witness and the snapshot of the first computation
  // stay: what a later wake held in its place is not what the rows say.
  const bool no_new_rows = base != nullptr && plan_.rows_kept == spec_.kv_len &&
                           base->kv_len == spec_.kv_len;
  const auto first_counts = [&](AttachmentKind kind) {
    return no_new_rows && (kind == AttachmentKind::kWitness ||
                           kind == AttachmentKind::kSnapshot);
  };
  if (no_new_rows) {
    for (const AttachmentRef& ref : base->attachments) {
      if (first_counts(ref.kind)) manifest.attachments.push_back(ref);
    }
  }
  const auto publish = [&](const AttachmentRecords& a) -> absl::Status {
    const bool leave_out =
        first_counts(a.kind) &&
        (manifest.Find(a.kind) != nullptr || !spec_.floors.empty());
    AttachmentRef ref{.kind = a.kind, .bytes = a.bytes};
    for (size_t i = a.begin; i < a.end; ++i) {
      if (leave_out) {
        TORPOR_RETURN_IF_ERROR(LeaveOut(txn, i, published));
        continue;
      }
      const Record& record = *records_[i];
      const RecordHeader& h = record.planned.header;
      if (record.stage != Stage::kWritten) {
        TORPOR_RETURN_IF_ERROR(WriteParts(txn, h.number, record.buffer.span()));
      }
      TORPOR_RETURN_IF_ERROR(
          PublishRecord(txn, h.number,
                        EntryOf(record.planned, ref.record, h.payload_digest)));
      ref.record = h.number;
      ref.page_bytes += StoredBytes(h.record_bytes);
    }
    if (!leave_out) manifest.attachments.push_back(ref);
    return absl::OkStatus();
  };
  if (n_row_records_ > n_blocks_) {
    TORPOR_RETURN_IF_ERROR(publish({AttachmentKind::kSnapshot, n_blocks_,
                                    n_row_records_, plan_.snapshot_bytes}));
  }
  for (const AttachmentRecords& a : attachments_) {
    TORPOR_RETURN_IF_ERROR(publish(a));
  }
  return absl::OkStatus();
}

SessionManifest LmdbTicket::NewManifest(const SessionManifest* base) const {
  const int64_t now = core_->Now();
  SessionManifest m;
  if (base != nullptr) {
    m.session_class = base->session_class;
    m.created_at_us = base->created_at_us;
    m.expires_at_us = base->expires_at_us;
    m.pinned_until_us = base->pinned_until_us;
    m.labels = base->labels;
    m.operations = base->operations;
    m.version = base->version + 1;
  } else {
    m.created_at_us = now;
  }
  m.updated_at_us = now;
  m.fingerprint = spec_.layout.fingerprint;
  m.block_size = spec_.layout.block_size;
  m.n_tokens = plan_.n_tokens;
  m.kv_len = spec_.kv_len;
  m.model = spec_.model;
  m.fingerprint_fields = spec_.fingerprint_fields;
  m.numerics_id = spec_.numerics_id;
  m.holder = spec_.holder;
  if (spec_.session_class.has_value()) m.session_class = *spec_.session_class;
  if (spec_.ttl_seconds.has_value()) {
    m.expires_at_us = DeadlineAfter(now, *spec_.ttl_seconds);
  }
  if (!spec_.labels.empty()) m.labels = spec_.labels;
  if (spec_.arrival.has_value()) {
    m.created_at_us = spec_.arrival->created_at_us;
    m.updated_at_us = spec_.arrival->updated_at_us;
    m.expires_at_us = spec_.arrival->expires_at_us;
    m.operations = spec_.arrival->operations;
  }
  if (base != nullptr && plan_.rows_kept > 0) {
    m.provenance = ClipProvenance(base->provenance, 0, plan_.rows_kept);
  }
  for (const ProvenanceRange& range :
       ClipProvenance(spec_.provenance, plan_.rows_kept, spec_.kv_len)) {
    AppendProvenance(range, &m.provenance);
  }
  return m;
}

SuspendReceipt LmdbTicket::Receipt(const Published& published) const {
  SuspendReceipt receipt;
  receipt.version = published.manifest.version;
  receipt.n_tokens = plan_.n_tokens;
  receipt.kv_len = spec_.kv_len;
  receipt.tokens_kept = spec_.tokens_kept;
  receipt.row_bytes_received = plan_.wanted_bytes;
  receipt.row_bytes_copied = plan_.copied_bytes;
  receipt.token_bytes = plan_.token_bytes;
  receipt.snapshot_bytes = plan_.snapshot_bytes;
  receipt.blocks_shared = published.blocks_shared;
  receipt.blocks_written = n_blocks_ - published.blocks_shared;
  for (const AttachmentRecords& a : attachments_) {
    if (a.kind == AttachmentKind::kWitness) receipt.witness_bytes = a.bytes;
    if (a.kind == AttachmentKind::kClientState) {
      receipt.client_state_bytes = a.bytes;
    }
  }
  for (size_t i = 0; i < records_.size(); ++i) {
    if (!published.unused[i]) {
      receipt.stored_bytes +=
          RecordPageBytes(records_[i]->planned.header.record_bytes);
    }
  }
  return receipt;
}

absl::Status LmdbTicket::Publish(WriteTxn& txn, Published* published) {
  *published = {};
  published->unused.resize(records_.size());
  TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> base,
                          FindBase(txn, spec_.session, spec_.expected_version,
                                   /*keeps_none=*/spec_.tokens_kept == 0));
  const SessionManifest* base_ptr = base.has_value() ? &*base : nullptr;
  TORPOR_RETURN_IF_ERROR(EnsureLayout(txn, spec_.layout));
  SessionManifest& manifest = published->manifest;
  manifest = NewManifest(base_ptr);
  if (base_ptr == nullptr) {
    TORPOR_ASSIGN_OR_RETURN(const uint64_t first, FirstVersion(txn));
    manifest.version =
        std::max(first, std::min(spec_.expected_version, kMaxGivenVersion) + 1);
    if (spec_.arrival.has_value()) manifest.version = spec_.arrival->version;
  }
  const bool unchanged = n_blocks_ == 0 && base_ptr != nullptr &&
                         base_ptr->kv_len == spec_.kv_len &&
                         base_ptr->n_tokens == plan_.n_tokens;
  if (unchanged) {
    manifest.tip = base_ptr->tip;
    manifest.page_bytes = base_ptr->page_bytes;
    manifest.n_blocks = base_ptr->n_blocks;
  } else {
    TORPOR_RETURN_IF_ERROR(PublishBlocks(txn, published, &manifest.tip));
    manifest.page_bytes = kept_page_bytes_;
    for (size_t i = 0; i < n_blocks_; ++i) {
      manifest.page_bytes +=
          StoredBytes(records_[i]->planned.header.record_bytes);
    }
    manifest.n_blocks = kept_blocks_ + n_blocks_;
  }
  TORPOR_RETURN_IF_ERROR(PublishAttachments(txn, base_ptr, published));
  TORPOR_RETURN_IF_ERROR(AddManifestNames(txn, manifest));
  if (base_ptr != nullptr) {
    TORPOR_RETURN_IF_ERROR(DropManifestNames(txn, *base_ptr));
  }
  manifest.AddOperation(
      {spec_.operation_id, spec_.verb(), Receipt(*published)});
  return PutSession(txn, spec_.session, manifest);
}

absl::StatusOr<SuspendReceipt> LmdbTicket::Commit(
    std::vector<Attachment> attachments) {
  const auto begin = std::chrono::steady_clock::now();
  TORPOR_RETURN_IF_ERROR(WaitForRows());
  TORPOR_RETURN_IF_ERROR(AddAttachments(std::move(attachments)));
  uint64_t bytes = 0;
  for (const auto& record : records_) {
    if (record->stage == Stage::kComplete) {
      bytes += record->planned.header.record_bytes;
    }
  }
  Published published;
  TORPOR_RETURN_IF_ERROR(core_->writer.Run(
      bytes, [&](WriteTxn& txn) { return Publish(txn, &published); },
      Room::kTakes, [&] { core_->Track(spec_.session, published.manifest); }));

  SuspendReceipt receipt = Receipt(published);
  receipt.commit_us = std::chrono::duration_cast<std::chrono::microseconds>(
                          std::chrono::steady_clock::now() - begin)
                          .count();
  uint64_t live = 0;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < records_.size(); ++i) {
    Record& record = *records_[i];
    if (record.stage == Stage::kComplete && !published.unused[i]) {
      live += RecordPageBytes(record.planned.header.record_bytes);
    }
    // Published or in the trash: nothing is left for the destructor.
    record.stage = Stage::kComplete;
    record.buffer.Release();
  }
  core_->budget.AddLive(spec_.session.tenant, live, live);
  reserved_ -= live;
  return receipt;
}

}  // namespace torpor::store
