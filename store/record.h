// SPDX-License-Identifier: Apache-2.0
//
// A record: header, directory, sections, written once and never changed. It is
// cut into parts of kPartBytes, each one LMDB value. docs/FORMAT.md gives the
// bytes; tests/store/format_golden_test.cc holds the golden ones. All functions
// are pure.

#ifndef TORPOR_STORE_RECORD_H_
#define TORPOR_STORE_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "store/types.h"

namespace torpor::store {

inline constexpr uint16_t kRecordFormatVersion = 1;
inline constexpr uint32_t kRecordMagic = 0x52525054;  // "TPRR"
inline constexpr size_t kPageBytes = 4096;
// 64 pages less LMDB's own 16-byte page header: the value fills them exactly.
inline constexpr size_t kPartBytes = 64 * kPageBytes - 16;
inline constexpr size_t kRecordHeaderBytes = 160;
inline constexpr size_t kSectionEntryBytes = 48;
// Sections begin at multiples of this, so that rows are aligned for loads.
inline constexpr size_t kSectionAlign = 64;
// A directory longer than this is a lie: a layout has a few hundred slots.
inline constexpr uint32_t kMaxSections = 65'536;

// Numbers are frozen.
enum class RecordKind : uint8_t { kBlock = 1, kAttachment = 2 };

// What a section holds. Numbers are frozen.
enum class SectionKind : uint16_t {
  // u32 token ids: those with rows, then those without (pending).
  kTokens = 1,
  // Extra-key spans of those tokens.
  kSpans = 2,
  // Provenance ranges, then floors, of the block.
  kOrigin = 3,
  // Rows of compact slot `id`.
  kRows = 4,
  // Rows of snapshot slot `id`.
  kSnapshotRows = 5,
  // Bytes of an attachment; `id` is its writer's.
  kAttachment = 6,
};

struct SectionEntry {
  SectionKind kind = SectionKind::kTokens;
  uint32_t id = 0;
  uint64_t first_row = 0;
  uint32_t n_rows = 0;
  uint32_t row_bytes = 0;
  // From the start of the record.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  // XXH3-64 of the section's bytes.
  uint64_t checksum = 0;

  friend bool operator==(const SectionEntry&, const SectionEntry&) = default;
};

struct RecordHeader {
  RecordKind kind = RecordKind::kBlock;
  RecordNumber number = 0;
  uint32_t tenant = 0;
  uint64_t record_bytes = 0;
  // Block: position of its first token. Attachment: 0.
  uint64_t first_pos = 0;
  // Tokens with rows, and tokens after them without.
  uint32_t n_tokens = 0;
  uint32_t n_pending = 0;
  // Keyed BLAKE2b-256 over all section bytes, in directory order.
  Hash256 payload_digest{};
  std::vector<SectionEntry> sections;

  // Bytes of header and directory together.
  [[nodiscard]] size_t prefix_bytes() const {
    return kRecordHeaderBytes + sections.size() * kSectionEntryBytes;
  }
  // The section of that kind and id, or nullptr.
  [[nodiscard]] const SectionEntry* Find(SectionKind kind, uint32_t id) const;
};

// Gives the sections their offsets, in order, and the record its size.
// REQUIRES: kind, id, n_rows, row_bytes and bytes of every section are set.
void PlaceSections(RecordHeader* header);

// Header and directory as bytes, their checksum included.
std::string EncodeRecordPrefix(const RecordHeader& header);

// Total bytes of header and directory, from the first kRecordHeaderBytes of a
// record. kDataLoss when the magic or a size is impossible.
absl::StatusOr<size_t> RecordPrefixBytes(std::span<const uint8_t> head);

// Decodes and verifies header and directory; `prefix` may be longer. kDataLoss
// when the checksum differs or a section lies outside the record;
// kFailedPrecondition when a newer version, a codec or an encryption that this
// build does not read.
absl::StatusOr<RecordHeader> DecodeRecordPrefix(
    std::span<const uint8_t> prefix);

// Number of parts of a record, and bytes of part `i`.
constexpr uint32_t PartCount(uint64_t record_bytes) {
  return static_cast<uint32_t>((record_bytes + kPartBytes - 1) / kPartBytes);
}
constexpr size_t PartSize(uint64_t record_bytes, uint32_t part) {
  const uint64_t begin = uint64_t{part} * kPartBytes;
  const uint64_t left = record_bytes - begin;
  return left < kPartBytes ? left : kPartBytes;
}

// Bytes that a record occupies in LMDB pages.
uint64_t RecordPageBytes(uint64_t record_bytes);

// Encodings of the small sections.
std::string EncodeTokens(std::span<const uint32_t> ids);
std::vector<uint32_t> DecodeTokens(std::span<const uint8_t> bytes);
std::string EncodeSpans(std::span<const ExtraKeySpan> spans);
absl::StatusOr<std::vector<ExtraKeySpan>> DecodeSpans(
    std::span<const uint8_t> bytes);

struct BlockOrigin {
  std::vector<ProvenanceRange> provenance;
  std::vector<Floor> floors;

  friend bool operator==(const BlockOrigin&, const BlockOrigin&) = default;
};
std::string EncodeOrigin(const BlockOrigin& origin);
absl::StatusOr<BlockOrigin> DecodeOrigin(std::span<const uint8_t> bytes);

}  // namespace torpor::store

#endif  // TORPOR_STORE_RECORD_H_
