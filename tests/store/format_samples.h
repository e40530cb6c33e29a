// SPDX-License-Identifier: Apache-2.0
//
// One sample of everything that docs/FORMAT.md describes, the same as in
// tests/oracles/store_format/generate.py.

#ifndef TORPOR_TESTS_STORE_FORMAT_SAMPLES_H_
#define TORPOR_TESTS_STORE_FORMAT_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "store/block_id.h"
#include "store/codec.h"
#include "store/manifest.h"
#include "store/record.h"

namespace torpor::store {

inline Hash256 Pattern(uint8_t first) {
  Hash256 hash;
  for (size_t i = 0; i < hash.size(); ++i) {
    hash[i] = static_cast<uint8_t>(first + i);
  }
  return hash;
}

inline const Hash256 kSecret = Pattern(0);
inline const Hash256 kFingerprint = Pattern(0x40);
inline constexpr uint32_t kTenant = 0x0a0b0c0d;
inline constexpr uint64_t kNumber = 0x1122334455667788;

inline const std::vector<uint32_t> kIds = {0, 1, 0x01020304, 0xffffffff};
inline const std::vector<ExtraKeySpan> kSpans = {
    {4100, 4103, "adapter", false},
    {4104, 4120, std::string("im\0age", 6), true}};
inline const BlockOrigin kOrigin = {
    {{4096, 4098, Provenance::kExact}, {4098, 4100, Provenance::kApproximate}},
    {{4099, 4001, 7}}};

// Sections of the golden block: content, and what the directory says of it.
struct Section {
  SectionEntry entry;
  std::string bytes;
};
inline std::vector<Section> BlockSections() {
  std::string rows;
  for (int i = 0; i < 80; ++i) rows.push_back(static_cast<char>(7 * i + 3));
  return {
      {{.kind = SectionKind::kTokens}, EncodeTokens(kIds)},
      {{.kind = SectionKind::kSpans}, EncodeSpans(kSpans)},
      {{.kind = SectionKind::kOrigin}, EncodeOrigin(kOrigin)},
      {{.kind = SectionKind::kRows,
        .id = 2,
        .first_row = 2048,
        .n_rows = 2,
        .row_bytes = 40},
       rows},
  };
}

inline RecordHeader Header(RecordHeader header,
                           const std::vector<Section>& sections) {
  KeyedHash digest(kSecret);
  for (const Section& section : sections) {
    digest.Update(AsBytes(section.bytes));
    SectionEntry entry = section.entry;
    entry.bytes = section.bytes.size();
    entry.checksum = Xxh3(AsBytes(section.bytes));
    header.sections.push_back(entry);
  }
  header.payload_digest = digest.Finish();
  PlaceSections(&header);
  return header;
}

inline RecordHeader BlockHeader() {
  return Header({.kind = RecordKind::kBlock,
                 .number = kNumber,
                 .tenant = kTenant,
                 .first_pos = 4096,
                 .n_tokens = 3,
                 .n_pending = 1},
                BlockSections());
}

inline SuspendReceipt Receipt(uint64_t first) {
  uint64_t at = first;
  const auto next = [&at] { return at++; };
  SuspendReceipt r;
  r.version = next();
  r.n_tokens = next();
  r.kv_len = next();
  r.tokens_kept = next();
  r.row_bytes_received = next();
  r.row_bytes_copied = next();
  r.token_bytes = next();
  r.witness_bytes = next();
  r.client_state_bytes = next();
  r.snapshot_bytes = next();
  r.blocks_shared = next();
  r.blocks_written = next();
  r.stored_bytes = next();
  r.commit_us = next();
  return r;
}

inline SessionManifest Manifest() {
  SessionManifest m;
  m.session_class = SessionClass::kCache;
  m.version = 0x0102030405060708;
  m.created_at_us = 1111;
  m.updated_at_us = 2222;
  m.expires_at_us = -1;
  m.pinned_until_us = 4444;
  m.fingerprint = kFingerprint;
  m.block_size = 1024;
  m.tip = 77;
  m.n_tokens = 5000;
  m.kv_len = 4999;
  m.page_bytes = 40960;
  m.n_blocks = 5;
  m.model = "model";
  m.fingerprint_fields = "fields";
  m.numerics_id = "cpu/x";
  m.holder = "me";
  m.attachments = {{AttachmentKind::kWitness, 78, 100, 4096},
                   {AttachmentKind::kOpenGroups, 79, 200, 8192}};
  m.provenance = {{0, 4000, Provenance::kExact},
                  {4000, 5000, Provenance::kUnknown}};
  m.labels = {{"a", "1"}, {"b", ""}};
  m.operations = {{"op1", Verb::kSuspend, Receipt(100)},
                  {"op2", Verb::kRewind, Receipt(200)}};
  return m;
}

inline RecordEntry Index() {
  return {.tenant = kTenant,
          .kind = RecordKind::kBlock,
          .quarantined = true,
          .full = true,
          .refs = 3,
          .live = 2,
          .parent = 76,
          .first_pos = 4096,
          .n_tokens = 1024,
          .n_pending = 5,
          .record_bytes = 911360,
          .block_id = Pattern(0x60),
          .parent_chain = Pattern(0x80),
          .chain = Pattern(0xa0)};
}

inline Tombstone Deleted() {
  return {1'700'000'000'000'000, {"rm", Verb::kErase, Receipt(300)}};
}

inline RecordLayout Layout() {
  return {kFingerprint, 1024, {{288, 2}, {68, 2}, {288, 1}}};
}

}  // namespace torpor::store

#endif  // TORPOR_TESTS_STORE_FORMAT_SAMPLES_H_
