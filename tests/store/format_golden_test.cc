// SPDX-License-Identifier: Apache-2.0
//
// The bytes of docs/FORMAT.md. tests/oracles/store_format/golden.txt was
// computed by generate.py there, which shares no code with the store. A test
// that fails here means a new format version.

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "store/container_reader.h"
#include "store/container_writer.h"
#include "store/keys.h"
#include "tests/store/format_samples.h"
#include "tests/testing/golden.h"
#include "tests/testing/status_matchers.h"

namespace torpor::store {
namespace {

std::string Hex(std::string_view bytes) {
  return testing::Hex(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}
std::string Hex(const Hash256& hash) { return testing::Hex(std::span(hash)); }

std::string Golden(const std::string& name) {
  static const testing::GoldenFile file(
      TORPOR_SOURCE_DIR "/tests/oracles/store_format/golden.txt");
  return file.Get(name);
}

TEST(FormatGoldenTest, SectionsHaveTheirBytes) {
  EXPECT_EQ(Hex(EncodeTokens(kIds)), Golden("tokens"));
  EXPECT_EQ(Hex(EncodeSpans(kSpans)), Golden("spans"));
  EXPECT_EQ(Hex(EncodeSpans({})), Golden("spans_none"));
  EXPECT_EQ(Hex(EncodeOrigin(kOrigin)), Golden("origin"));
  EXPECT_EQ(DecodeTokens(AsBytes(EncodeTokens(kIds))), kIds);
  ASSERT_OK_AND_ASSIGN(const auto spans,
                       DecodeSpans(AsBytes(EncodeSpans(kSpans))));
  EXPECT_EQ(spans, kSpans);
  ASSERT_OK_AND_ASSIGN(const auto origin,
                       DecodeOrigin(AsBytes(EncodeOrigin(kOrigin))));
  EXPECT_EQ(origin, kOrigin);
}

TEST(FormatGoldenTest, ARecordPrefixHasItsBytes) {
  const RecordHeader block = BlockHeader();
  EXPECT_EQ(Hex(block.payload_digest), Golden("block_digest"));
  EXPECT_EQ(Hex(EncodeRecordPrefix(block)), Golden("block_prefix"));
  ASSERT_OK_AND_ASSIGN(const RecordHeader read,
                       DecodeRecordPrefix(AsBytes(EncodeRecordPrefix(block))));
  EXPECT_EQ(read.kind, block.kind);
  EXPECT_EQ(read.number, block.number);
  EXPECT_EQ(read.tenant, block.tenant);
  EXPECT_EQ(read.record_bytes, block.record_bytes);
  EXPECT_EQ(read.first_pos, block.first_pos);
  EXPECT_EQ(read.n_tokens, block.n_tokens);
  EXPECT_EQ(read.n_pending, block.n_pending);
  EXPECT_EQ(read.payload_digest, block.payload_digest);
  EXPECT_EQ(read.sections, block.sections);
  const RecordHeader attachment =
      Header({.kind = RecordKind::kAttachment, .number = 9, .tenant = 1},
             {{{.kind = SectionKind::kAttachment, .id = 7}, "witness"},
              {{.kind = SectionKind::kAttachment, .id = 8}, ""}});
  EXPECT_EQ(Hex(EncodeRecordPrefix(attachment)), Golden("attachment_prefix"));
}

TEST(FormatGoldenTest, SectionsStandWhereTheDirectorySays) {
  const RecordHeader block = BlockHeader();
  std::string record = EncodeRecordPrefix(block);
  const std::vector<Section> sections = BlockSections();
  for (size_t i = 0; i < sections.size(); ++i) {
    record.resize(block.sections[i].offset);
    record += sections[i].bytes;
  }
  EXPECT_EQ(record.size(), block.record_bytes);
  EXPECT_EQ(Hex(record), Golden("block_record"));
}

TEST(FormatGoldenTest, SealedValuesHaveTheirBytes) {
  EXPECT_EQ(Hex(EncodeManifest(Manifest())), Golden("manifest"));
  EXPECT_EQ(Hex(EncodeManifest(SessionManifest())), Golden("manifest_empty"));
  EXPECT_EQ(Hex(EncodeRecordEntry(Index())), Golden("record_entry"));
  EXPECT_EQ(Hex(EncodeTombstone(Deleted())), Golden("tombstone"));
  EXPECT_EQ(Hex(EncodeLayout(Layout())), Golden("layout"));
}

TEST(FormatGoldenTest, SealedValuesReadBack) {
  ASSERT_OK_AND_ASSIGN(const SessionManifest manifest,
                       DecodeManifest(AsBytes(EncodeManifest(Manifest()))));
  EXPECT_EQ(Hex(EncodeManifest(manifest)), Golden("manifest"));
  EXPECT_EQ(manifest.expires_at_us, -1);
  EXPECT_EQ(manifest.attachments, Manifest().attachments);
  EXPECT_EQ(manifest.provenance, Manifest().provenance);
  EXPECT_EQ(manifest.labels, Manifest().labels);
  ASSERT_EQ(manifest.operations.size(), 2);
  EXPECT_EQ(manifest.operations[1].receipt, Receipt(200));
  ASSERT_OK_AND_ASSIGN(const RecordEntry entry,
                       DecodeRecordEntry(AsBytes(EncodeRecordEntry(Index()))));
  EXPECT_EQ(entry, Index());
  ASSERT_OK_AND_ASSIGN(const Tombstone tombstone,
                       DecodeTombstone(AsBytes(EncodeTombstone(Deleted()))));
  EXPECT_EQ(tombstone.deleted_at_us, Deleted().deleted_at_us);
  EXPECT_EQ(tombstone.operation.id, "rm");
  EXPECT_EQ(tombstone.operation.verb, Verb::kErase);
  EXPECT_EQ(tombstone.operation.receipt, Receipt(300));
  ASSERT_OK_AND_ASSIGN(
      const RecordLayout layout,
      DecodeLayout(kFingerprint, AsBytes(EncodeLayout(Layout()))));
  EXPECT_EQ(layout.fingerprint, kFingerprint);
  EXPECT_EQ(layout.block_size, 1024);
  EXPECT_EQ(layout.slots, Layout().slots);
}

TEST(FormatGoldenTest, IdentitiesAreKeyedBlake2bOfTheirFields) {
  const Hash256 root = ChainRoot(kSecret, kFingerprint);
  EXPECT_EQ(Hex(root), Golden("chain_root"));
  EXPECT_EQ(Hex(ChainHash(kSecret, root, 0, {})), Golden("chain_empty"));
  const Hash256 first = ChainHash(kSecret, root, 0, {{5, 6, 7}, {}});
  EXPECT_EQ(Hex(first), Golden("chain_first"));
  const Hash256 second = ChainHash(kSecret, first, 3, {kIds, kSpans});
  EXPECT_EQ(Hex(second), Golden("chain_second"));
  const Hash256 digest = BlockHeader().payload_digest;
  const Hash256 id = BlockId(kSecret, {.fingerprint = kFingerprint,
                                       .chain_hash = first,
                                       .payload_digest = digest});
  EXPECT_EQ(Hex(id), Golden("block_id_first"));
  EXPECT_EQ(Hex(BlockId(kSecret, {kFingerprint, id, second, digest,
                                  kOrigin.provenance, kOrigin.floors})),
            Golden("block_id_second"));
  EXPECT_EQ(Hex(Blake2b(AsBytes("abc"))), Golden("blake2b_unkeyed"));
}

TEST(FormatGoldenTest, KeysAreBigEndianFields) {
  const SessionKey session = {kTenant, std::string("s\0id", 4)};
  const Hash256 chain = Pattern(0xa0);
  EXPECT_EQ(Hex(TenantSecretKey(kTenant)), Golden("key_secret"));
  EXPECT_EQ(Hex(LayoutKey(kFingerprint)), Golden("key_layout"));
  EXPECT_EQ(Hex(SessionTableKey(session)), Golden("key_session"));
  EXPECT_EQ(Hex(RecordKey(kNumber)), Golden("key_record"));
  EXPECT_EQ(Hex(PartKey(kNumber, 0x99aabbcc)), Golden("key_part"));
  EXPECT_EQ(Hex(BlockKey(kTenant, Pattern(0x60))), Golden("key_block"));
  const std::string ends =
      ChainKey(kTenant, chain, ChainRelation::kEnds, kNumber);
  EXPECT_EQ(Hex(ends), Golden("key_chain_ends"));
  EXPECT_EQ(RecordOfChainKey(ends), kNumber);
  EXPECT_EQ(Hex(ChainKey(kTenant, chain, ChainRelation::kContinues, kNumber)),
            Golden("key_chain_continues"));
  EXPECT_EQ(Hex(TombstoneKey(session, "op")), Golden("key_tombstone"));
  EXPECT_EQ(kMetaFormat, "format");
  EXPECT_EQ(kMetaNextRecord, "next_record");
  EXPECT_EQ(kMetaVersionFloor, "version_floor");
  // The longest keys stay under LMDB's limit.
  const SessionKey longest = {kTenant, std::string(kMaxSessionIdBytes, 'x')};
  EXPECT_LE(
      TombstoneKey(longest, std::string(kMaxOperationIdBytes, 'y')).size(),
      511);
}

// A session of which every byte is known.
class GoldenLease final : public SessionLease {
 public:
  GoldenLease() {
    info_.key.id = std::string("s\0id", 4);
    info_.version = 7;
    info_.n_tokens = 20;
    info_.kv_len = info_.usable_len = 18;
    info_.model = "model";
    info_.fingerprint_fields = "fields";
    info_.numerics_id = "cpu/x";
    info_.holder = "me";
    info_.session_class = SessionClass::kCache;
    info_.created_at_us = 1111;
    info_.updated_at_us = 2222;
    info_.expires_at_us = 3333;
    info_.labels = {{"a", "1"}, {"b", ""}};
    info_.provenance = {{0, 10, Provenance::kExact},
                        {10, 18, Provenance::kApproximate}};
  }
  const SessionInfo& info() const override { return info_; }
  const RecordLayout& layout() const override { return layout_; }
  std::vector<Operation> operations() const override {
    return {{"op1", Verb::kImport, Receipt(100)}};
  }
  absl::StatusOr<TokenRun> ReadTokens(uint64_t, uint64_t) override {
    TokenRun run;
    for (uint32_t i = 0; i < 20; ++i) run.ids.push_back(100 + i);
    run.spans = {{2, 5, "adapter", false},
                 {6, 9, std::string("im\0age", 6), true}};
    return run;
  }
  absl::Status ReadRows(uint32_t slot, RowRange rows,
                        std::span<uint8_t> out) override {
    return Fill(slot == 0 ? 7 : 11, rows.begin * layout_.slots[slot].row_bytes,
                out);
  }
  absl::Status ReadSnapshot(uint32_t, RowRange rows,
                            std::span<uint8_t> out) override {
    return Fill(5, rows.begin * 5, out);
  }
  absl::StatusOr<std::vector<SnapshotSlot>> SnapshotSlots() override {
    return std::vector<SnapshotSlot>{{9, 5, {16, 18}}};
  }
  absl::StatusOr<std::vector<AttachmentSection>> ReadAttachment(
      AttachmentKind kind) override {
    if (kind == AttachmentKind::kWitness) {
      return std::vector<AttachmentSection>{{0, {'w', 'i', 't'}}, {5, {}}};
    }
    if (kind == AttachmentKind::kClientState) {
      return std::vector<AttachmentSection>{{0, {'s', 't', 'a', 't', 'e'}}};
    }
    return absl::NotFoundError("none");
  }
  absl::StatusOr<std::vector<Floor>> Floors(uint64_t, uint64_t) override {
    return std::vector<Floor>{{12, 4, 7}};
  }

 private:
  static absl::Status Fill(uint64_t step, uint64_t at, std::span<uint8_t> out) {
    for (uint8_t& b : out) b = static_cast<uint8_t>(step * at++ + 3);
    return absl::OkStatus();
  }
  const RecordLayout layout_{kFingerprint, 16, {{4, 1}, {6, 2}}};
  SessionInfo info_;
};

TEST(FormatGoldenTest, AContainerHasItsBytes) {
  GoldenLease lease;
  std::string bytes;
  ASSERT_OK(WriteContainer(&lease, {.model_layout = "layout"},
                           [&](std::span<const uint8_t> part) {
                             bytes += AsString(part);
                             return true;
                           }));
  EXPECT_EQ(Hex(bytes), Golden("container"));
  ContainerReader reader(nullptr);
  EXPECT_OK(reader.Feed(AsBytes(bytes)));
  EXPECT_OK(reader.Finish());
  EXPECT_EQ(reader.total_bytes(), bytes.size());
}

TEST(FormatGoldenTest, PartsFillTheirPages) {
  EXPECT_EQ(kPartBytes, 262'128);
  EXPECT_EQ(PartCount(1), 1);
  EXPECT_EQ(PartCount(kPartBytes), 1);
  EXPECT_EQ(PartCount(kPartBytes + 1), 2);
  EXPECT_EQ(PartSize(kPartBytes + 1, 0), kPartBytes);
  EXPECT_EQ(PartSize(kPartBytes + 1, 1), 1);
  EXPECT_EQ(RecordPageBytes(kPartBytes), 262'144);
  EXPECT_EQ(RecordPageBytes(2 * kPartBytes + 1), 2 * 262'144 + 4096);
  EXPECT_EQ(RecordPageBytes(4096 - 16), 4096);
  EXPECT_EQ(RecordPageBytes(4096 - 15), 8192);
}

}  // namespace
}  // namespace torpor::store
