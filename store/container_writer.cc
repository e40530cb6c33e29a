// SPDX-License-Identifier: Apache-2.0

#include "store/container_writer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/codec.h"

namespace torpor::store {
namespace {

constexpr AttachmentKind kMoved[] = {AttachmentKind::kWitness,
                                     AttachmentKind::kClientState,
                                     AttachmentKind::kOpenGroups};

ContainerHeader HeaderOf(const SessionLease& lease, std::string model_layout) {
  const SessionInfo& info = lease.info();
  return {.session = info.key.id,
          .version = info.version,
          .model = info.model,
          .fingerprint_fields = info.fingerprint_fields,
          .model_layout = std::move(model_layout),
          .layout = lease.layout(),
          .n_tokens = info.n_tokens,
          .kv_len = info.kv_len};
}

class Writer {
 public:
  Writer(SessionLease* lease, const ContainerOptions& options,
         const ContainerSink& sink)
      : lease_(*lease),
        options_(options),
        sink_(sink),
        header_(HeaderOf(*lease, options.model_layout)) {}

  absl::Status Run() {
    TORPOR_RETURN_IF_ERROR(Check());
    TORPOR_RETURN_IF_ERROR(ReadManifest());
    const uint64_t from = options_.from_block;
    uint64_t block = from;
    if (from > 0 && options_.chain.has_value()) {
      chain_ = ContainerChain(*options_.chain);
    } else {
      silent_ = from > 0;
      TORPOR_RETURN_IF_ERROR(WriteOutline());
      block = 0;
    }
    for (; block < header_.n_blocks(); ++block) {
      if (block == from) silent_ = false;
      for (const PieceHeader& piece : BlockPieces(header_, block)) {
        TORPOR_RETURN_IF_ERROR(WriteRows(piece));
      }
      chain_.Close();
    }
    silent_ = false;
    return WriteTail();
  }

 private:
  absl::Status Check() {
    const SessionInfo& info = lease_.info();
    if (info.usable_len < info.kv_len) {
      return absl::DataLossError(absl::StrFormat(
          "export session '%s': rows of tokens from %d on are damaged",
          info.key.id, info.usable_len));
    }
    if (options_.from_block > header_.n_blocks()) {
      return absl::OutOfRangeError(absl::StrFormat(
          "export session '%s': from block %d, it has %d", info.key.id,
          options_.from_block, header_.n_blocks()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadManifest() {
    const SessionInfo& info = lease_.info();
    ContainerManifest& m = manifest_;
    m.session_class = info.session_class;
    m.created_at_us = info.created_at_us;
    m.updated_at_us = info.updated_at_us;
    m.expires_at_us = info.expires_at_us;
    m.numerics_id = info.numerics_id;
    m.holder = info.holder;
    m.labels = info.labels;
    m.provenance = info.provenance;
    m.operations = lease_.operations();
    TORPOR_ASSIGN_OR_RETURN(m.floors, lease_.Floors(0, info.kv_len));
    for (const AttachmentKind kind : kMoved) {
      absl::StatusOr<std::vector<AttachmentSection>> sections =
          lease_.ReadAttachment(kind);
      if (absl::IsNotFound(sections.status())) continue;
      TORPOR_RETURN_IF_ERROR(sections.status());
      for (AttachmentSection& section : *sections) {
        m.sections.push_back({kind, section.id, section.bytes.size()});
        attachments_.push_back(std::move(section.bytes));
      }
    }
    TORPOR_ASSIGN_OR_RETURN(m.snapshot, lease_.SnapshotSlots());
    return absl::OkStatus();
  }

  // A piece whose payload's checksum is known.
  absl::Status Emit(const PieceHeader& piece,
                    std::span<const uint8_t> payload) {
    const std::string head = EncodePieceHeader(piece);
    for (const auto bytes : {AsBytes(head), payload}) {
      chain_.Update(bytes);
      if (!silent_ && !bytes.empty() && !sink_(bytes)) {
        return absl::CancelledError("export: nobody reads it");
      }
    }
    // Of what is only read again nobody is told, but a sink may give up.
    if (silent_ && !sink_({})) {
      return absl::CancelledError("export: nobody reads it");
    }
    return absl::OkStatus();
  }
  absl::Status Emit(PieceHeader piece, const std::string& payload) {
    piece.bytes = payload.size();
    piece.checksum = Xxh3(AsBytes(payload));
    return Emit(piece, AsBytes(payload));
  }

  absl::Status WriteOutline() {
    TORPOR_RETURN_IF_ERROR(
        Emit({.kind = PieceKind::kHeader}, EncodeContainerHeader(header_)));
    TORPOR_RETURN_IF_ERROR(Emit({.kind = PieceKind::kManifest},
                                EncodeContainerManifest(manifest_)));
    for (uint64_t at = 0; at < header_.n_tokens; at += kTokensPerPiece) {
      const uint64_t end = std::min(at + kTokensPerPiece, header_.n_tokens);
      TORPOR_ASSIGN_OR_RETURN(const TokenRun run, lease_.ReadTokens(at, end));
      TORPOR_RETURN_IF_ERROR(Emit({.kind = PieceKind::kTokens,
                                   .first = at,
                                   .n_rows = static_cast<uint32_t>(end - at)},
                                  EncodeTokenPiece(run)));
    }
    TORPOR_RETURN_IF_ERROR(
        Emit({.kind = PieceKind::kIndex}, EncodeIndex(header_)));
    chain_.Close();
    return absl::OkStatus();
  }

  absl::Status WriteRows(PieceHeader piece) {
    buffer_.resize(piece.bytes);
    TORPOR_ASSIGN_OR_RETURN(
        piece.checksum,
        lease_.ReadRowsAndHash(
            piece.id, {piece.first, piece.first + piece.n_rows}, buffer_));
    return Emit(piece, buffer_);
  }

  absl::Status WriteTail() {
    size_t section = 0;
    for (PieceHeader piece : TailPieces(manifest_)) {
      if (piece.kind == PieceKind::kAttachment) {
        const std::vector<uint8_t>& bytes = attachments_[section++];
        piece.checksum = Xxh3(bytes);
        TORPOR_RETURN_IF_ERROR(Emit(piece, bytes));
        continue;
      }
      buffer_.resize(piece.bytes);
      TORPOR_RETURN_IF_ERROR(lease_.ReadSnapshot(
          piece.id, {piece.first, piece.first + piece.n_rows}, buffer_));
      piece.checksum = Xxh3(buffer_);
      TORPOR_RETURN_IF_ERROR(Emit(piece, buffer_));
    }
    const Hash256 digest = chain_.Close();
    return Emit({.kind = PieceKind::kEnd}, std::string(AsString(digest)));
  }

  SessionLease& lease_;
  const ContainerOptions& options_;
  const ContainerSink& sink_;
  const ContainerHeader header_;
  ContainerManifest manifest_;
  // In the order of manifest_.sections.
  std::vector<std::vector<uint8_t>> attachments_;
  ContainerChain chain_;
  std::vector<uint8_t> buffer_;
  // What is read for its digest alone does not leave.
  bool silent_ = false;
};

}  // namespace

absl::Status WriteContainer(SessionLease* lease,
                            const ContainerOptions& options,
                            const ContainerSink& sink) {
  return Writer(lease, options, sink).Run();
}

}  // namespace torpor::store
