// SPDX-License-Identifier: Apache-2.0

#include "store/memory_ticket.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/block_id.h"
#include "store/manifest.h"

namespace torpor::store {

MemoryTicket::MemoryTicket(MemoryCore* core, SuspendSpec spec,
                           MemorySession base)
    : core_(core), spec_(std::move(spec)), next_(std::move(base)) {
  rows_kept_ = std::min({spec_.tokens_kept, next_.info.kv_len, spec_.kv_len});
  for (const SlotSpec& slot : spec_.layout.slots) {
    wanted_.push_back({RowsOf(slot, rows_kept_), RowsOf(slot, spec_.kv_len)});
    incoming_.emplace_back(wanted_.back().size() * slot.row_bytes);
    seen_.emplace_back(incoming_.back().size());
  }
  for (const SnapshotSlot& slot : spec_.snapshot) {
    incoming_snapshot_.emplace_back(slot.rows.size() * slot.row_bytes);
    seen_snapshot_.emplace_back(incoming_snapshot_.back().size());
  }
}

MemoryTicket::~MemoryTicket() {
  MutexLock lock(&core_->mu);
  --core_->open_tickets;
}

RowRange MemoryTicket::wanted(uint32_t slot) const {
  return slot < wanted_.size() ? wanted_[slot] : RowRange{};
}

absl::Status MemoryTicket::Put(const RowPiece& piece,
                               std::span<const uint8_t> bytes,
                               const std::function<bool()>&) {
  MutexLock lock(&mu_);
  if (cancelled_) return absl::CancelledError("suspend: cancelled");
  if (spent_) return absl::FailedPreconditionError("suspend: committed");
  RowRange all;
  uint64_t row_bytes = 0;
  Bytes* out = nullptr;
  std::vector<bool>* seen = nullptr;
  if (!piece.snapshot && piece.slot < wanted_.size()) {
    all = wanted_[piece.slot];
    row_bytes = spec_.layout.slots[piece.slot].row_bytes;
    out = &incoming_[piece.slot];
    seen = &seen_[piece.slot];
  }
  for (size_t i = 0; piece.snapshot && i < spec_.snapshot.size(); ++i) {
    if (spec_.snapshot[i].id != piece.slot) continue;
    all = spec_.snapshot[i].rows;
    row_bytes = spec_.snapshot[i].row_bytes;
    out = &incoming_snapshot_[i];
    seen = &seen_snapshot_[i];
  }
  if (out == nullptr || piece.n_rows == 0 || piece.row_begin < all.begin ||
      piece.row_begin > all.end || piece.n_rows > all.end - piece.row_begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d rows from %d of slot %d: wanted some of [%d, %d)", piece.n_rows,
        piece.row_begin, piece.slot, all.begin, all.end));
  }
  if ((piece.n_shards != 1 && piece.n_shards != spec_.n_shards) ||
      piece.shard >= piece.n_shards || row_bytes % piece.n_shards != 0 ||
      bytes.size() != piece.n_rows * (row_bytes / piece.n_shards)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "rows of slot %d: impossible shard or size", piece.slot));
  }
  if (Xxh3(bytes) != piece.checksum) {
    return absl::DataLossError(
        absl::StrFormat("rows of slot %d: checksum differs", piece.slot));
  }
  const uint64_t shard_bytes = row_bytes / piece.n_shards;
  for (uint64_t r = 0; r < piece.n_rows; ++r) {
    const uint64_t at = (piece.row_begin - all.begin + r) * row_bytes +
                        piece.shard * shard_bytes;
    if ((*seen)[at]) continue;
    std::memcpy(out->data() + at, bytes.data() + r * shard_bytes, shard_bytes);
    std::fill_n(seen->begin() + static_cast<ptrdiff_t>(at), shard_bytes, true);
  }
  return absl::OkStatus();
}

absl::StatusOr<SuspendReceipt> MemoryTicket::Commit(
    std::vector<Attachment> attachments) {
  {
    MutexLock lock(&mu_);
    if (cancelled_) return absl::CancelledError("suspend: cancelled");
    if (spent_) return absl::FailedPreconditionError("suspend: committed");
    for (const auto* all : {&seen_, &seen_snapshot_}) {
      for (const std::vector<bool>& slot : *all) {
        if (std::find(slot.begin(), slot.end(), false) != slot.end()) {
          return absl::FailedPreconditionError("commit: rows are missing");
        }
      }
    }
    spent_ = true;
  }
  MutexLock lock(&core_->mu);
  if (spec_.expected_version == 0) {
    TORPOR_RETURN_IF_ERROR(core_->RequireAbsentLocked(spec_.session));
  } else {
    TORPOR_RETURN_IF_ERROR(
        core_->RequireLocked(spec_.session, spec_.expected_version).status());
  }
  const bool created = spec_.expected_version == 0;
  const bool no_new_rows = !created && rows_kept_ == spec_.kv_len &&
                           next_.info.kv_len == spec_.kv_len;
  Apply(created, no_new_rows, std::move(attachments));
  const SuspendReceipt receipt = ReceiptOf();
  next_.Remember({spec_.operation_id, spec_.verb(), receipt});
  core_->layouts[spec_.layout.fingerprint] = spec_.layout;
  core_->sessions[spec_.session] = next_;
  ++core_->commits;
  return receipt;
}

void MemoryTicket::Cancel() {
  MutexLock lock(&mu_);
  cancelled_ = true;
}

void MemoryTicket::Apply(bool created, bool no_new_rows,
                         std::vector<Attachment> attachments) {
  const int64_t now = core_->clock();
  next_.layout = spec_.layout;
  next_.rows.resize(spec_.layout.slots.size());
  // Keep the rows, then the tokens, that stay.
  const uint64_t tokens_kept = spec_.tokens_kept;
  for (size_t i = 0; i < next_.rows.size(); ++i) {
    const SlotSpec& slot = spec_.layout.slots[i];
    next_.rows[i].resize(RowsOf(slot, rows_kept_) * slot.row_bytes);
    next_.rows[i].insert(next_.rows[i].end(), incoming_[i].begin(),
                         incoming_[i].end());
  }
  next_.tokens.ids.resize(tokens_kept);
  next_.tokens.spans = ClipSpans(next_.tokens.spans, 0, tokens_kept);
  next_.tokens.ids.insert(next_.tokens.ids.end(), spec_.new_tokens.ids.begin(),
                          spec_.new_tokens.ids.end());
  for (const ExtraKeySpan& span : spec_.new_tokens.spans) {
    AppendSpan(span, &next_.tokens.spans);
  }
  std::erase_if(next_.floors,
                [&](const Floor& f) { return f.resume_at >= rows_kept_; });
  for (const Floor& floor : spec_.floors) {
    if (floor.resume_at < spec_.kv_len) next_.floors.push_back(floor);
  }
  std::vector<ProvenanceRange> provenance;
  if (rows_kept_ > 0) {
    provenance = ClipProvenance(next_.info.provenance, 0, rows_kept_);
  }
  for (const ProvenanceRange& range :
       ClipProvenance(spec_.provenance, rows_kept_, spec_.kv_len)) {
    AppendProvenance(range, &provenance);
  }
  ApplyAttachments(no_new_rows, std::move(attachments));

  SessionInfo& info = next_.info;
  info.key = spec_.session;
  info.version = created ? core_->version_floor + 1 : info.version + 1;
  info.n_tokens = next_.tokens.ids.size();
  info.kv_len = spec_.kv_len;
  info.model = spec_.model;
  info.fingerprint = spec_.layout.fingerprint;
  info.fingerprint_fields = spec_.fingerprint_fields;
  info.numerics_id = spec_.numerics_id;
  info.holder = spec_.holder;
  info.provenance = std::move(provenance);
  if (spec_.session_class.has_value()) {
    info.session_class = *spec_.session_class;
  }
  if (spec_.ttl_seconds.has_value()) {
    info.expires_at_us = DeadlineAfter(now, *spec_.ttl_seconds);
  }
  if (!spec_.labels.empty()) info.labels = spec_.labels;
  if (created) info.created_at_us = now;
  info.updated_at_us = now;
  if (spec_.arrival.has_value()) {
    info.version = spec_.arrival->version;
    info.created_at_us = spec_.arrival->created_at_us;
    info.updated_at_us = spec_.arrival->updated_at_us;
    info.expires_at_us = spec_.arrival->expires_at_us;
    next_.operations = spec_.arrival->operations;
  }
  next_.Recount();
}

void MemoryTicket::ApplyAttachments(bool no_new_rows,
                                    std::vector<Attachment> attachments) {
  const bool keeps_snapshot =
      no_new_rows && (!next_.snapshot_slots.empty() || !spec_.floors.empty());
  std::map<AttachmentKind, std::vector<AttachmentSection>> kept;
  if (no_new_rows && next_.attachments.contains(AttachmentKind::kWitness)) {
    kept[AttachmentKind::kWitness] =
        next_.attachments[AttachmentKind::kWitness];
  }
  for (Attachment& a : attachments) {
    if (a.sections.empty()) continue;
    const bool first_counts = no_new_rows &&
                              a.kind == AttachmentKind::kWitness &&
                              (kept.contains(a.kind) || !spec_.floors.empty());
    if (!first_counts) kept[a.kind] = std::move(a.sections);
  }
  next_.attachments = std::move(kept);
  if (keeps_snapshot) return;
  next_.snapshot_slots = spec_.snapshot;
  next_.snapshot_rows = incoming_snapshot_;
}

SuspendReceipt MemoryTicket::ReceiptOf() const {
  SuspendReceipt receipt;
  receipt.version = next_.info.version;
  receipt.n_tokens = next_.info.n_tokens;
  receipt.kv_len = next_.info.kv_len;
  receipt.tokens_kept = spec_.tokens_kept;
  for (const Bytes& slot : incoming_) {
    receipt.row_bytes_received += slot.size();
  }
  receipt.token_bytes = uint64_t{4} * spec_.new_tokens.ids.size();
  receipt.snapshot_bytes = next_.info.snapshot_bytes;
  receipt.witness_bytes = next_.info.witness_bytes;
  receipt.client_state_bytes = next_.info.client_state_bytes;
  receipt.stored_bytes = receipt.row_bytes_received + receipt.token_bytes +
                         receipt.snapshot_bytes + receipt.witness_bytes +
                         receipt.client_state_bytes;
  return receipt;
}

}  // namespace torpor::store
