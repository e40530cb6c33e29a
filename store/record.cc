// SPDX-License-Identifier: Apache-2.0

#include "store/record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/hash.h"
#include "store/codec.h"

namespace torpor::store {
namespace {

constexpr size_t kNonceBytes = 24;
constexpr size_t kTagBytes = 16;

constexpr uint64_t AlignUp(uint64_t n, uint64_t to) {
  return (n + to - 1) / to * to;
}

// Checks that need no checksum: what the directory says must lie inside the
// record, in order, without overlap.
absl::Status CheckSections(const RecordHeader& header) {
  uint64_t end = header.prefix_bytes();
  for (const SectionEntry& s : header.sections) {
    if (s.offset < end || s.offset % kSectionAlign != 0 ||
        s.bytes > header.record_bytes ||
        s.offset > header.record_bytes - s.bytes) {
      return absl::DataLossError(absl::StrFormat(
          "record %d: section kind %d id %d spans bytes [%d, +%d), wanted "
          "inside [%d, %d) and aligned to %d",
          header.number, static_cast<int>(s.kind), s.id, s.offset, s.bytes, end,
          header.record_bytes, kSectionAlign));
    }
    if (uint64_t{s.n_rows} * s.row_bytes != s.bytes && s.row_bytes != 0) {
      return absl::DataLossError(absl::StrFormat(
          "record %d: section kind %d id %d has %d bytes, wanted %d rows of "
          "%d bytes",
          header.number, static_cast<int>(s.kind), s.id, s.bytes, s.n_rows,
          s.row_bytes));
    }
    end = s.offset + s.bytes;
  }
  return absl::OkStatus();
}

}  // namespace

const SectionEntry* RecordHeader::Find(SectionKind section_kind,
                                       uint32_t id) const {
  const auto it = std::find_if(
      sections.begin(), sections.end(),
      [&](const auto& s) { return s.kind == section_kind && s.id == id; });
  return it == sections.end() ? nullptr : &*it;
}

void PlaceSections(RecordHeader* header) {
  uint64_t at = header->prefix_bytes();
  for (SectionEntry& s : header->sections) {
    s.offset = AlignUp(at, kSectionAlign);
    at = s.offset + s.bytes;
  }
  header->record_bytes = at;
}

std::string EncodeRecordPrefix(const RecordHeader& header) {
  const std::array<uint8_t, kNonceBytes> nonce{};
  const std::array<uint8_t, kTagBytes> tag{};
  ByteWriter w;
  w.Int(kRecordMagic);
  w.Int(kRecordFormatVersion);
  w.Int(static_cast<uint8_t>(header.kind));
  w.Int(uint8_t{0});  // codec: none
  w.Int(header.number);
  w.Int(header.tenant);
  w.Int(static_cast<uint32_t>(header.sections.size()));
  w.Int(header.record_bytes);
  w.Int(header.first_pos);
  w.Int(header.n_tokens);
  w.Int(header.n_pending);
  w.Int(uint8_t{0});   // encryption: none
  w.Int(uint8_t{0});   // reserved
  w.Int(uint16_t{0});  // reserved
  w.Int(uint32_t{0});  // key id
  w.Raw(nonce);
  w.Raw(tag);
  w.Raw(header.payload_digest);
  for (int i = 0; i < 3; ++i) w.Int(uint64_t{0});  // reserved
  ByteWriter directory;
  for (const SectionEntry& s : header.sections) {
    directory.Int(static_cast<uint16_t>(s.kind));
    directory.Int(uint16_t{0});  // reserved
    directory.Int(s.id);
    directory.Int(s.first_row);
    directory.Int(s.n_rows);
    directory.Int(s.row_bytes);
    directory.Int(s.offset);
    directory.Int(s.bytes);
    directory.Int(s.checksum);
  }
  Xxh3Stream checksum;
  checksum.Update(AsBytes(w.str()));
  checksum.Update(AsBytes(directory.str()));
  w.Int(checksum.Digest());
  return w.Take() + directory.str();
}

absl::StatusOr<size_t> RecordPrefixBytes(std::span<const uint8_t> head) {
  if (head.size() < kRecordHeaderBytes) {
    return absl::DataLossError(
        absl::StrFormat("record header: got %d bytes, wanted at least %d",
                        head.size(), kRecordHeaderBytes));
  }
  ByteReader r(head);
  if (const auto magic = r.Int<uint32_t>(); magic != kRecordMagic) {
    return absl::DataLossError(absl::StrFormat(
        "record header: got magic 0x%08x, wanted 0x%08x", magic, kRecordMagic));
  }
  r.Raw(2 + 2 + 8 + 4);
  const auto n_sections = r.Int<uint32_t>();
  if (n_sections > kMaxSections) {
    return absl::DataLossError(
        absl::StrFormat("record header: got %d sections, wanted at most %d",
                        n_sections, kMaxSections));
  }
  return kRecordHeaderBytes + size_t{n_sections} * kSectionEntryBytes;
}

absl::StatusOr<RecordHeader> DecodeRecordPrefix(
    std::span<const uint8_t> prefix) {
  const absl::StatusOr<size_t> prefix_bytes = RecordPrefixBytes(prefix);
  if (!prefix_bytes.ok()) return prefix_bytes.status();
  if (prefix.size() < *prefix_bytes) {
    return absl::DataLossError(
        absl::StrFormat("record directory: got %d bytes, wanted %d",
                        prefix.size(), *prefix_bytes));
  }
  RecordHeader h;
  ByteReader r(prefix.first(*prefix_bytes));
  r.Raw(4);
  const auto version = r.Int<uint16_t>();
  h.kind = static_cast<RecordKind>(r.Int<uint8_t>());
  const auto codec = r.Int<uint8_t>();
  h.number = r.Int<uint64_t>();
  h.tenant = r.Int<uint32_t>();
  const auto n_sections = r.Int<uint32_t>();
  h.record_bytes = r.Int<uint64_t>();
  h.first_pos = r.Int<uint64_t>();
  h.n_tokens = r.Int<uint32_t>();
  h.n_pending = r.Int<uint32_t>();
  const auto encryption = r.Int<uint8_t>();
  r.Raw(1 + 2 + 4 + kNonceBytes + kTagBytes);
  h.payload_digest = r.Array<32>();
  r.Raw(3 * 8);
  const auto stored = r.Int<uint64_t>();
  Xxh3Stream checksum;
  checksum.Update(prefix.first(kRecordHeaderBytes - sizeof(uint64_t)));
  checksum.Update(
      prefix.subspan(kRecordHeaderBytes, *prefix_bytes - kRecordHeaderBytes));
  if (checksum.Digest() != stored) {
    return absl::DataLossError(absl::StrFormat(
        "record %d: header and directory have checksum %016x, wanted %016x",
        h.number, checksum.Digest(), stored));
  }
  // Only now: a flipped bit of the version is damage, not another version.
  if (version != kRecordFormatVersion) {
    return absl::FailedPreconditionError(
        absl::StrFormat("record %d: got format version %d, this build reads %d",
                        h.number, version, kRecordFormatVersion));
  }
  if (codec != 0 || encryption != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "record %d: codec %d and encryption %d, this build reads 0 and 0",
        h.number, codec, encryption));
  }
  h.sections.resize(n_sections);
  for (SectionEntry& s : h.sections) {
    s.kind = static_cast<SectionKind>(r.Int<uint16_t>());
    r.Raw(2);
    s.id = r.Int<uint32_t>();
    s.first_row = r.Int<uint64_t>();
    s.n_rows = r.Int<uint32_t>();
    s.row_bytes = r.Int<uint32_t>();
    s.offset = r.Int<uint64_t>();
    s.bytes = r.Int<uint64_t>();
    s.checksum = r.Int<uint64_t>();
  }
  if (absl::Status s = CheckSections(h); !s.ok()) return s;
  return h;
}

uint64_t RecordPageBytes(uint64_t record_bytes) {
  const uint64_t full = record_bytes / kPartBytes;
  const uint64_t rest = record_bytes % kPartBytes;
  // A value over about half a page lives in pages of its own, after a 16-byte
  // page header.
  const uint64_t rest_pages =
      rest == 0 ? 0 : (rest + 16 + kPageBytes - 1) / kPageBytes;
  return (full * 64 + rest_pages) * kPageBytes;
}

std::string EncodeTokens(std::span<const uint32_t> ids) {
  ByteWriter w;
  for (const uint32_t id : ids) w.Int(id);
  return w.Take();
}

std::vector<uint32_t> DecodeTokens(std::span<const uint8_t> bytes) {
  std::vector<uint32_t> ids(bytes.size() / sizeof(uint32_t));
  ByteReader r(bytes);
  for (uint32_t& id : ids) id = r.Int<uint32_t>();
  return ids;
}

std::string EncodeSpans(std::span<const ExtraKeySpan> spans) {
  ByteWriter w;
  w.Int(static_cast<uint32_t>(spans.size()));
  for (const ExtraKeySpan& span : spans) {
    w.Int(span.begin);
    w.Int(span.end);
    w.Int(static_cast<uint8_t>(span.bidirectional));
    w.Bytes(span.key);
  }
  return w.Take();
}

absl::StatusOr<std::vector<ExtraKeySpan>> DecodeSpans(
    std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  std::vector<ExtraKeySpan> spans(r.Count(8 + 8 + 1 + 4));
  for (ExtraKeySpan& span : spans) {
    span.begin = r.Int<uint64_t>();
    span.end = r.Int<uint64_t>();
    span.bidirectional = r.Int<uint8_t>() != 0;
    span.key = r.Bytes();
  }
  if (!r.Done()) {
    return absl::DataLossError("spans section: malformed");
  }
  return spans;
}

std::string EncodeOrigin(const BlockOrigin& origin) {
  ByteWriter w;
  w.Int(static_cast<uint32_t>(origin.provenance.size()));
  for (const ProvenanceRange& range : origin.provenance) {
    w.Int(range.begin);
    w.Int(range.end);
    w.Int(static_cast<uint8_t>(range.provenance));
  }
  w.Int(static_cast<uint32_t>(origin.floors.size()));
  for (const Floor& floor : origin.floors) {
    w.Int(floor.resume_at);
    w.Int(floor.replay_start);
    w.Int(floor.layer_begin);
  }
  return w.Take();
}

absl::StatusOr<BlockOrigin> DecodeOrigin(std::span<const uint8_t> bytes) {
  ByteReader r(bytes);
  BlockOrigin origin;
  origin.provenance.resize(r.Count(8 + 8 + 1));
  for (ProvenanceRange& range : origin.provenance) {
    range.begin = r.Int<uint64_t>();
    range.end = r.Int<uint64_t>();
    range.provenance = static_cast<Provenance>(r.Int<uint8_t>());
  }
  origin.floors.resize(r.Count(8 + 8 + 4));
  for (Floor& floor : origin.floors) {
    floor.resume_at = r.Int<uint64_t>();
    floor.replay_start = r.Int<uint64_t>();
    floor.layer_begin = r.Int<uint32_t>();
  }
  if (!r.Done()) {
    return absl::DataLossError("origin section: malformed");
  }
  return origin;
}

}  // namespace torpor::store
