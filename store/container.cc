// SPDX-License-Identifier: Apache-2.0

#include "store/container.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/manifest.h"
#include "store/record.h"

namespace torpor::store {
namespace {

// Beyond what sessions and windows come to: a lie allocates nothing.
constexpr uint64_t kMaxBlocks = uint64_t{1} << 24;
constexpr uint64_t kMaxSnapshotSlotBytes = uint64_t{1} << 36;

absl::Status Malformed(const char* what) {
  return absl::DataLossError(absl::StrFormat("%s: malformed", what));
}

absl::Status CheckHeader(const ContainerHeader& h) {
  const RecordLayout& layout = h.layout;
  if (layout.block_size == 0 || h.kv_len > h.n_tokens ||
      h.n_blocks() > kMaxBlocks) {
    return absl::DataLossError(absl::StrFormat(
        "header: got %d of %d tokens with KV in blocks of %d, wanted at most "
        "all in at most %d blocks",
        h.kv_len, h.n_tokens, layout.block_size, kMaxBlocks));
  }
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const SlotSpec& slot = layout.slots[i];
    if (slot.row_bytes == 0 || slot.tokens_per_row == 0 ||
        layout.block_size % slot.tokens_per_row != 0 ||
        RowsOf(slot, layout.block_size) * slot.row_bytes > kMaxPieceBytes) {
      return absl::DataLossError(absl::StrFormat(
          "header: slot %d has %d bytes a row of %d tokens in blocks of %d, "
          "wanted both above 0 and at most %d bytes a block",
          i, slot.row_bytes, slot.tokens_per_row, layout.block_size,
          kMaxPieceBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const ContainerManifest& m) {
  // Snapshot rows are pieces of their own; the others stand kind by kind.
  uint8_t last = 0;
  for (const AttachmentOutline& section : m.sections) {
    const auto kind = static_cast<uint8_t>(section.kind);
    if (kind == 0 || kind > static_cast<uint8_t>(AttachmentKind::kOpenGroups) ||
        section.kind == AttachmentKind::kSnapshot || kind < last ||
        section.bytes > kMaxPieceBytes) {
      return Malformed("manifest sections");
    }
    last = kind;
  }
  for (size_t i = 0; i < m.snapshot.size(); ++i) {
    const SnapshotSlot& slot = m.snapshot[i];
    if (slot.row_bytes == 0 || slot.row_bytes > kMaxPieceBytes ||
        slot.rows.begin >= slot.rows.end ||
        slot.rows.size() > kMaxSnapshotSlotBytes / slot.row_bytes ||
        (i > 0 && slot.id <= m.snapshot[i - 1].id)) {
      return Malformed("manifest snapshot slots");
    }
  }
  return absl::OkStatus();
}

}  // namespace

// ---- pieces ---------------------------------------------------------------

std::string EncodePieceHeader(const PieceHeader& piece) {
  ByteWriter w;
  w.Int(kPieceMagic);
  w.Int(kContainerFormatVersion);
  w.Int(static_cast<uint8_t>(piece.kind));
  w.Int(uint8_t{0});  // reserved
  w.Int(piece.block);
  w.Int(piece.id);
  w.Int(piece.first);
  w.Int(piece.n_rows);
  w.Int(piece.row_bytes);
  w.Int(piece.bytes);
  w.Int(piece.checksum);
  w.Int(Xxh3(AsBytes(w.str())));
  return w.Take();
}

absl::StatusOr<PieceHeader> DecodePieceHeader(std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  if (const auto magic = r.Int<uint32_t>(); magic != kPieceMagic) {
    return absl::DataLossError(
        absl::StrFormat("got magic 0x%08x, wanted 0x%08x", magic, kPieceMagic));
  }
  const auto version = r.Int<uint16_t>();
  PieceHeader piece;
  piece.kind = static_cast<PieceKind>(r.Int<uint8_t>());
  const auto reserved = r.Int<uint8_t>();
  piece.block = r.Int<uint32_t>();
  piece.id = r.Int<uint32_t>();
  piece.first = r.Int<uint64_t>();
  piece.n_rows = r.Int<uint32_t>();
  piece.row_bytes = r.Int<uint32_t>();
  piece.bytes = r.Int<uint64_t>();
  piece.checksum = r.Int<uint64_t>();
  const auto stored = r.Int<uint64_t>();
  const uint64_t got = Xxh3(bytes.first(bytes.size() - sizeof(uint64_t)));
  if (got != stored) {
    return absl::DataLossError(absl::StrFormat(
        "header has checksum %016x, wanted %016x", got, stored));
  }
  // Only now: a flipped bit of the version is damage, not another version.
  if (version != kContainerFormatVersion || reserved != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("got container format version %d, this build reads %d",
                        version, kContainerFormatVersion));
  }
  return piece;
}

std::string PieceName(const PieceHeader& piece) {
  switch (piece.kind) {
    case PieceKind::kHeader:
      return "header";
    case PieceKind::kManifest:
      return "manifest";
    case PieceKind::kTokens:
      return absl::StrFormat("tokens from %d", piece.first);
    case PieceKind::kIndex:
      return "index";
    case PieceKind::kRows:
      return absl::StrFormat("rows of slot %d in block %d", piece.id,
                             piece.block);
    case PieceKind::kAttachment:
      return absl::StrFormat("section %d of attachment %d", piece.id,
                             piece.block);
    case PieceKind::kSnapshotRows:
      return absl::StrFormat("snapshot rows of slot %d", piece.id);
    case PieceKind::kEnd:
      return "end";
  }
  return absl::StrFormat("piece of unknown kind %d",
                         static_cast<int>(piece.kind));
}

// ---- outline --------------------------------------------------------------

std::string EncodeContainerHeader(const ContainerHeader& header) {
  ByteWriter w;
  w.Bytes(header.session);
  w.Int(header.version);
  w.Bytes(header.model);
  w.Raw(header.layout.fingerprint);
  w.Bytes(header.fingerprint_fields);
  w.Bytes(header.model_layout);
  w.Int(header.layout.block_size);
  w.Int(static_cast<uint32_t>(header.layout.slots.size()));
  for (const SlotSpec& slot : header.layout.slots) {
    w.Int(slot.row_bytes);
    w.Int(slot.tokens_per_row);
  }
  w.Int(header.n_tokens);
  w.Int(header.kv_len);
  w.Int(header.n_blocks());
  return w.Take();
}

absl::StatusOr<ContainerHeader> DecodeContainerHeader(
    std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  ContainerHeader h;
  h.session = r.Bytes();
  h.version = r.Int<uint64_t>();
  h.model = r.Bytes();
  h.layout.fingerprint = r.Array<32>();
  h.fingerprint_fields = r.Bytes();
  h.model_layout = r.Bytes();
  h.layout.block_size = r.Int<uint32_t>();
  h.layout.slots.resize(r.Count(4 + 4));
  for (SlotSpec& slot : h.layout.slots) {
    slot.row_bytes = r.Int<uint32_t>();
    slot.tokens_per_row = r.Int<uint32_t>();
  }
  h.n_tokens = r.Int<uint64_t>();
  h.kv_len = r.Int<uint64_t>();
  const auto n_blocks = r.Int<uint64_t>();
  if (!r.Done()) return Malformed("header");
  TORPOR_RETURN_IF_ERROR(CheckHeader(h));
  if (n_blocks != h.n_blocks()) return Malformed("header block count");
  return h;
}

std::string EncodeContainerManifest(const ContainerManifest& m) {
  ByteWriter w;
  w.Int(static_cast<uint8_t>(m.session_class));
  w.Int(m.created_at_us);
  w.Int(m.updated_at_us);
  w.Int(m.expires_at_us);
  w.Bytes(m.numerics_id);
  w.Bytes(m.holder);
  w.Int(static_cast<uint32_t>(m.labels.size()));
  for (const auto& [key, value] : m.labels) {
    w.Bytes(key);
    w.Bytes(value);
  }
  w.Bytes(EncodeOrigin({m.provenance, m.floors}));
  w.Int(static_cast<uint32_t>(m.operations.size()));
  for (const Operation& operation : m.operations) PutOperation(operation, &w);
  w.Int(static_cast<uint32_t>(m.sections.size()));
  for (const AttachmentOutline& section : m.sections) {
    w.Int(static_cast<uint8_t>(section.kind));
    w.Int(section.id);
    w.Int(section.bytes);
  }
  w.Int(static_cast<uint32_t>(m.snapshot.size()));
  for (const SnapshotSlot& slot : m.snapshot) {
    w.Int(slot.id);
    w.Int(slot.row_bytes);
    w.Int(slot.rows.begin);
    w.Int(slot.rows.end);
  }
  return w.Take();
}

absl::StatusOr<ContainerManifest> DecodeContainerManifest(
    std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  ContainerManifest m;
  const auto session_class = r.Int<uint8_t>();
  m.session_class = static_cast<SessionClass>(session_class);
  m.created_at_us = r.Int<int64_t>();
  m.updated_at_us = r.Int<int64_t>();
  m.expires_at_us = r.Int<int64_t>();
  m.numerics_id = r.Bytes();
  m.holder = r.Bytes();
  for (uint32_t n = r.Count(4 + 4); n > 0; --n) {
    std::string key = r.Bytes();
    m.labels[std::move(key)] = r.Bytes();
  }
  const std::string origin_bytes = r.Bytes();
  m.operations.resize(r.Count(4 + 1 + kReceiptBytes));
  for (Operation& operation : m.operations) operation = GetOperation(&r);
  m.sections.resize(r.Count(1 + 4 + 8));
  for (AttachmentOutline& section : m.sections) {
    section.kind = static_cast<AttachmentKind>(r.Int<uint8_t>());
    section.id = r.Int<uint32_t>();
    section.bytes = r.Int<uint64_t>();
  }
  m.snapshot.resize(r.Count(4 + 4 + 8 + 8));
  for (SnapshotSlot& slot : m.snapshot) {
    slot.id = r.Int<uint32_t>();
    slot.row_bytes = r.Int<uint32_t>();
    slot.rows.begin = r.Int<uint64_t>();
    slot.rows.end = r.Int<uint64_t>();
  }
  if (!r.Done() || session_class < 1 || session_class > 2) {
    return Malformed("manifest");
  }
  TORPOR_ASSIGN_OR_RETURN(BlockOrigin origin,
                          DecodeOrigin(AsBytes(origin_bytes)));
  m.provenance = std::move(origin.provenance);
  m.floors = std::move(origin.floors);
  TORPOR_RETURN_IF_ERROR(CheckManifest(m));
  return m;
}

std::string EncodeTokenPiece(const TokenRun& run) {
  return EncodeTokens(run.ids) + EncodeSpans(run.spans);
}

absl::Status DecodeTokenPiece(std::span<const uint8_t> bytes, uint64_t n,
                              TokenRun* run) {
  if (bytes.size() < n * sizeof(uint32_t)) return Malformed("tokens");
  const auto id_bytes = bytes.first(n * sizeof(uint32_t));
  const std::vector<uint32_t> ids = DecodeTokens(id_bytes);
  TORPOR_ASSIGN_OR_RETURN(const std::vector<ExtraKeySpan> spans,
                          DecodeSpans(bytes.subspan(id_bytes.size())));
  run->ids.insert(run->ids.end(), ids.begin(), ids.end());
  // A span that crosses the edge of a piece was cut there: joined again.
  for (const ExtraKeySpan& span : spans) AppendSpan(span, &run->spans);
  return absl::OkStatus();
}

// ---- what follows from the outline ----------------------------------------

std::vector<PieceHeader> BlockPieces(const ContainerHeader& header,
                                     uint64_t block) {
  const RecordLayout& layout = header.layout;
  const uint64_t begin = block * layout.block_size;
  const uint64_t end = std::min(begin + layout.block_size, header.kv_len);
  std::vector<PieceHeader> pieces;
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const SlotSpec& slot = layout.slots[i];
    const RowRange rows{RowsOf(slot, begin), RowsOf(slot, end)};
    if (rows.size() == 0) continue;
    pieces.push_back({.kind = PieceKind::kRows,
                      .block = static_cast<uint32_t>(block),
                      .id = static_cast<uint32_t>(i),
                      .first = rows.begin,
                      .n_rows = static_cast<uint32_t>(rows.size()),
                      .row_bytes = slot.row_bytes,
                      .bytes = rows.size() * slot.row_bytes});
  }
  return pieces;
}

std::vector<PieceHeader> TailPieces(const ContainerManifest& manifest) {
  std::vector<PieceHeader> pieces;
  for (const AttachmentOutline& section : manifest.sections) {
    pieces.push_back({.kind = PieceKind::kAttachment,
                      .block = static_cast<uint32_t>(section.kind),
                      .id = section.id,
                      .bytes = section.bytes});
  }
  for (const SnapshotSlot& slot : manifest.snapshot) {
    const uint64_t most =
        std::max<uint64_t>(1, kSnapshotPieceBytes / slot.row_bytes);
    for (uint64_t row = slot.rows.begin; row < slot.rows.end;) {
      const uint64_t n = std::min(most, slot.rows.end - row);
      pieces.push_back({.kind = PieceKind::kSnapshotRows,
                        .id = slot.id,
                        .first = row,
                        .n_rows = static_cast<uint32_t>(n),
                        .row_bytes = slot.row_bytes,
                        .bytes = n * slot.row_bytes});
      row += n;
    }
  }
  return pieces;
}

uint64_t PieceBytes(std::span<const PieceHeader> pieces) {
  uint64_t bytes = 0;
  for (const PieceHeader& piece : pieces) {
    bytes += kPieceHeaderBytes + piece.bytes;
  }
  return bytes;
}

std::string EncodeIndex(const ContainerHeader& header) {
  ByteWriter w;
  uint64_t at = 0;
  w.Int(at);
  for (uint64_t block = 0; block < header.n_blocks(); ++block) {
    at += PieceBytes(BlockPieces(header, block));
    w.Int(at);
  }
  return w.Take();
}

}  // namespace torpor::store
