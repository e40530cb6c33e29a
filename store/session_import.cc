// SPDX-License-Identifier: Apache-2.0

#include "store/session_import.h"

#include <string>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::store {

SuspendSpec ImportSpec(const ContainerOutline& outline) {
  const ContainerHeader& h = outline.header;
  const ContainerManifest& m = outline.manifest;
  SuspendSpec spec;
  spec.session.id = h.session;
  spec.model = h.model;
  spec.fingerprint_fields = h.fingerprint_fields;
  spec.numerics_id = m.numerics_id;
  // Only shown to the loser of a race.
  spec.holder = m.holder.substr(0, kMaxNameBytes);
  spec.layout = h.layout;
  spec.new_tokens = outline.tokens;
  spec.kv_len = h.kv_len;
  spec.floors = m.floors;
  spec.provenance = m.provenance;
  spec.session_class = m.session_class;
  spec.labels = m.labels;
  spec.snapshot = m.snapshot;
  spec.arrival = Arrival{.version = h.version,
                         .created_at_us = m.created_at_us,
                         .updated_at_us = m.updated_at_us,
                         .expires_at_us = m.expires_at_us,
                         .operations = m.operations};
  return spec;
}

absl::Status SessionImport::Feed(std::span<const uint8_t> bytes,
                                 const std::function<bool()>& give_up) {
  give_up_ = &give_up;
  const absl::Status status = reader_.Feed(bytes);
  give_up_ = nullptr;
  // Nothing more is wanted of an operation that was done before.
  return repeated_ ? absl::OkStatus() : status;
}

absl::Status SessionImport::Finish() const {
  return receipt_.has_value() ? absl::OkStatus() : reader_.Finish();
}

absl::Status SessionImport::OnOutline(ContainerOutline outline) {
  TORPOR_ASSIGN_OR_RETURN(SuspendSpec spec,
                          admit_(outline, ImportSpec(outline)));
  outline = {};
  if (spec.layout.slots != reader_.header().layout.slots) {
    return absl::InvalidArgumentError(
        "import: the container's slots are not those of the model here");
  }
  session_ = spec.session;
  TORPOR_ASSIGN_OR_RETURN(BeginResult begun, store_->Begin(std::move(spec)));
  ticket_ = std::move(begun.ticket);
  if (!begun.receipt.has_value()) return absl::OkStatus();
  receipt_ = begun.receipt;
  repeated_ = true;
  return absl::CancelledError("import: done before");
}

absl::Status SessionImport::PutRows(const PieceHeader& piece,
                                    std::span<const uint8_t> payload) {
  const bool snapshot = piece.kind == PieceKind::kSnapshotRows;
  const auto [put, fresh] = put_.try_emplace(
      {uint64_t{snapshot} << 32 | piece.id, piece.first}, piece.checksum);
  if (!fresh && put->second != piece.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: came again with checksum %016x, had %016x before",
                        PieceName(piece), piece.checksum, put->second));
  }
  return ticket_->Put({.slot = piece.id,
                       .snapshot = snapshot,
                       .row_begin = piece.first,
                       .n_rows = piece.n_rows,
                       .checksum = piece.checksum},
                      payload, *give_up_);
}

absl::Status SessionImport::OnPiece(const PieceHeader& piece,
                                    std::span<const uint8_t> payload) {
  if (piece.kind != PieceKind::kAttachment) return PutRows(piece, payload);
  const auto kind = static_cast<AttachmentKind>(piece.block);
  if (attachments_.empty() || attachments_.back().kind != kind) {
    attachments_.push_back({kind, {}});
  }
  attachments_.back().sections.push_back(
      {piece.id, {payload.begin(), payload.end()}});
  return absl::OkStatus();
}

absl::Status SessionImport::OnBlock(uint64_t) {
  put_.clear();
  return absl::OkStatus();
}

absl::Status SessionImport::OnEnd() {
  for (const Attachment& attachment : attachments_) {
    TORPOR_RETURN_IF_ERROR(check_(attachment));
  }
  TORPOR_ASSIGN_OR_RETURN(receipt_, ticket_->Commit(std::move(attachments_)));
  return absl::OkStatus();
}

}  // namespace torpor::store
