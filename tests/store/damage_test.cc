// SPDX-License-Identifier: Apache-2.0
//
// Bits flipped, parts cut, lost and swapped in a closed store, through liblmdb
// itself. Whatever is hit: an answer is right or it is an error, the usable
// prefix ends where the damage begins, nobody else notices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/store/damage_fixture.h"
#include "tests/testing/random.h"

namespace torpor::store {
namespace {

using ::testing::Contains;
using testing::HasCode;
using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
constexpr uint64_t kBlock = 16;

class BlockDamageTest : public DamageTest {
 protected:
  // `damage` hits block `b` of the victim: all before it is fine, nothing from
  // there on is promised.
  void ExpectDamagedFrom(
      uint64_t b, const std::function<void(RawEnv&, RecordNumber)>& damage) {
    ASSERT_NO_FATAL_FAILURE(After([&](RawEnv& raw) {
      damage(raw, raw.Chain(raw.Manifest(Key("victim")).tip)[b]);
    }));
    const uint64_t first = b * kBlock;
    EXPECT_EQ(ReadEverything("victim", victim_), first);
    EXPECT_EQ(store_->Stats().quarantined_records, 1);
    // Seen once, known from then on.
    ASSERT_OK_AND_ASSIGN(const SessionInfo info,
                         store_->Describe(Key("victim")));
    EXPECT_EQ(info.n_tokens, kTokens);
    EXPECT_EQ(info.usable_len, first);
    {
      ASSERT_OK_AND_ASSIGN(const PrefixHit hit,
                           store_->Lookup(0, SmallLayout(), victim_.tokens));
      EXPECT_LE(hit.hit_len, first);
    }
    // The fork has blocks 0, 1 and 2.
    EXPECT_EQ(ReadEverything("fork", fork_), std::min(first, kForkedAt));
    ExpectOthersUntouched();
    // The rest is no loss: cut there and go on.
    ASSERT_OK(store_->Rewind({Key("victim"), 1, "cut"}, first));
    ASSERT_OK(Suspend(store_.get(), Spec("victim", 2, first, 50, "on"), 7));
    const Content now = Read("victim");
    EXPECT_EQ(now.tokens.ids.size(), first + 50);
    EXPECT_TRUE(std::equal(now.rows[0].begin(),
                           now.rows[0].begin() + first * 24,
                           victim_.rows[0].begin()));
    ASSERT_OK(store_->Erase({Key("victim"), 3, "rm"}));
    ASSERT_OK(store_->Erase({Key("fork"), 1, "rm"}));
    ASSERT_OK(Settle(store_.get()));
    // With its last name the damage is gone, too.
    ExpectSound(store_.get());
  }

  void FlipInSection(SectionKind kind, uint32_t id) {
    for (const uint64_t b : {0, 2, 5}) {
      SCOPED_TRACE("block " + std::to_string(b));
      ExpectDamagedFrom(b, [&](RawEnv& raw, RecordNumber number) {
        const RecordHeader header = raw.Header(number);
        const SectionEntry* section = header.Find(kind, id);
        ASSERT_NE(section, nullptr);
        raw.FlipRecordBit(number, section->offset + section->bytes - 1, 7);
      });
    }
  }
};

TEST_F(BlockDamageTest, AFlippedBitOfTheRecordHeaderIsSeen) {
  // Magic, version, codec, number, first token, encryption, digest, checksum.
  for (const uint64_t offset : {0, 4, 7, 8, 32, 48, 96, 159}) {
    SCOPED_TRACE("offset " + std::to_string(offset));
    ExpectDamagedFrom(1, [&](RawEnv& raw, RecordNumber number) {
      raw.FlipRecordBit(number, offset, 3);
    });
  }
}

TEST_F(BlockDamageTest, AFlippedBitOfTheDirectoryIsSeen) {
  ExpectDamagedFrom(1, [](RawEnv& raw, RecordNumber number) {
    raw.FlipRecordBit(number, kRecordHeaderBytes + 48 + 24, 6);
  });
}

TEST_F(BlockDamageTest, AFlippedBitOfTheTokensIsSeen) {
  FlipInSection(SectionKind::kTokens, 0);
}

TEST_F(BlockDamageTest, AFlippedBitOfTheOriginIsSeen) {
  FlipInSection(SectionKind::kOrigin, 0);
}

TEST_F(BlockDamageTest, AFlippedBitOfRowsIsSeen) {
  FlipInSection(SectionKind::kRows, 0);
  FlipInSection(SectionKind::kRows, 3);
}

TEST_F(BlockDamageTest, AFlippedBitOfSpansIsSeen) {
  ExpectDamagedFrom(2, [](RawEnv& raw, RecordNumber number) {
    const RecordHeader header = raw.Header(number);
    const SectionEntry* section = header.Find(SectionKind::kSpans, 0);
    ASSERT_NE(section, nullptr);
    raw.FlipRecordBit(number, section->offset + 4, 0);
  });
}

TEST_F(BlockDamageTest, APartThatIsShorterOrGoneIsSeen) {
  for (const size_t left : {0, 100, 159, 400, 700}) {
    SCOPED_TRACE(std::to_string(left) + " bytes left");
    ExpectDamagedFrom(2, [&](RawEnv& raw, RecordNumber number) {
      const std::string key = PartKey(number, 0);
      raw.Put("parts", key, raw.Get("parts", key).substr(0, left));
    });
  }
  ExpectDamagedFrom(2, [](RawEnv& raw, RecordNumber number) {
    raw.Delete("parts", PartKey(number, 0));
  });
}

TEST_F(BlockDamageTest, AnOlderRecordInThePlaceOfAPartIsSeen) {
  ExpectDamagedFrom(2, [](RawEnv& raw, RecordNumber number) {
    const RecordNumber parent = raw.Index(number).parent;
    raw.Put("parts", PartKey(number, 0), raw.Get("parts", PartKey(parent, 0)));
  });
}

TEST_F(DamageTest, PartsOfTwoBlocksSwappedAreBothSeen) {
  ASSERT_NO_FATAL_FAILURE(After([](RawEnv& raw) {
    const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
    raw.Swap("parts", PartKey(chain[1], 0), PartKey(chain[3], 0));
  }));
  EXPECT_EQ(ReadEverything("victim", victim_), kBlock);
  EXPECT_EQ(store_->Stats().quarantined_records, 2);
  ExpectOthersUntouched();
}

TEST_F(DamageTest, PartsOfOneRecordSwappedAreSeen) {
  // Records of five parts.
  RecordLayout layout = SmallLayout();
  layout.fingerprint.fill(0x33);
  layout.slots = {{32'768, 1}, {32'768, 1}};
  ASSERT_NO_FATAL_FAILURE(Create());
  Open();
  SuspendSpec spec = Spec("big", 0, 0, 33, "create");
  spec.layout = layout;
  ASSERT_OK(Suspend(store_.get(), spec, 4));
  store_.reset();
  {
    RawEnv raw(dir_->path());
    const RecordNumber second = raw.Chain(raw.Manifest(Key("big")).tip)[1];
    ASSERT_EQ(PartCount(raw.Header(second).record_bytes), 5);
    raw.Swap("parts", PartKey(second, 2), PartKey(second, 3));
  }
  Open();
  {
    ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("big")));
    std::vector<uint8_t> rows(16 * 32'768);
    ASSERT_OK(lease->ReadRows(1, {0, 16}, rows));
    EXPECT_EQ(rows, Rows(4, 1, {0, 16}, 32'768));
    EXPECT_THAT(lease->ReadRows(1, {16, 32}, rows), HasCode(kDataLoss));
  }
  ASSERT_OK_AND_ASSIGN(const SessionInfo info, store_->Describe(Key("big")));
  EXPECT_EQ(info.usable_len, 16);
  ExpectOthersUntouched();
}

TEST_F(DamageTest, AFlippedBitOfAnAttachmentCostsTheAttachmentAlone) {
  for (const bool header : {false, true}) {
    ASSERT_NO_FATAL_FAILURE(After([&](RawEnv& raw) {
      const AttachmentRef* ref = nullptr;
      const SessionManifest manifest = raw.Manifest(Key("victim"));
      ref = manifest.Find(AttachmentKind::kWitness);
      ASSERT_NE(ref, nullptr);
      const SectionEntry section = raw.Header(ref->record).sections[0];
      raw.FlipRecordBit(ref->record, header ? 100 : section.offset, 0);
    }));
    {
      ASSERT_OK_AND_ASSIGN(const auto lease, store_->Open(Key("victim")));
      EXPECT_THAT(lease->ReadAttachment(AttachmentKind::kWitness),
                  HasCode(kDataLoss));
      ASSERT_OK_AND_ASSIGN(const auto state,
                           lease->ReadAttachment(AttachmentKind::kClientState));
      EXPECT_EQ(state, Bytes(AttachmentKind::kClientState, "state").sections);
    }
    EXPECT_EQ(ReadEverything("victim", victim_), kTokens);
    ASSERT_OK_AND_ASSIGN(const SessionInfo info,
                         store_->Describe(Key("victim")));
    EXPECT_EQ(info.usable_len, kTokens);
    ExpectOthersUntouched();
    // The next suspend brings its own.
    ASSERT_OK(Suspend(store_.get(), Spec("victim", 1, kTokens, 1, "on"), 1,
                      {Bytes(AttachmentKind::kWitness, "new")}));
    EXPECT_EQ(Read("victim").attachments[0],
              Bytes(AttachmentKind::kWitness, "new").sections);
  }
}

TEST_F(DamageTest, AFlippedBitOfAManifestCostsItsSessionAlone) {
  for (const size_t bit : {0, 100, 500, 1000}) {
    SCOPED_TRACE("bit " + std::to_string(bit));
    ASSERT_NO_FATAL_FAILURE(After([&](RawEnv& raw) {
      raw.FlipBit("sessions", SessionTableKey(Key("victim")), bit);
    }));
    EXPECT_THAT(store_->Open(Key("victim")), HasCode(kDataLoss));
    EXPECT_THAT(store_->Describe(Key("victim")), HasCode(kDataLoss));
    // Its name is still there to be seen.
    ASSERT_OK_AND_ASSIGN(const ListResult list, store_->List(0, "", "", 10));
    ASSERT_EQ(list.sessions.size(), 3);
    EXPECT_EQ(list.sessions[2].key, Key("victim"));
    EXPECT_EQ(list.sessions[2].version, 0);
    EXPECT_TRUE(Read("fork") == fork_);
    EXPECT_THAT(Problems(), Contains(HasSubstr("victim")));
    ExpectOthersUntouched();
  }
}

TEST_F(DamageTest, AFlippedBitOfARecordEntryIsNeverServed) {
  for (const uint64_t b : {0, 2, 5}) {
    for (const size_t bit : {55, 300, 600}) {
      SCOPED_TRACE("block " + std::to_string(b) + ", bit " +
                   std::to_string(bit));
      ASSERT_NO_FATAL_FAILURE(After([&](RawEnv& raw) {
        const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
        raw.FlipBit("records", RecordKey(chain[b]), bit);
      }));
      EXPECT_LE(ReadEverything("victim", victim_), b * kBlock);
      const uint64_t forked = ReadEverything("fork", fork_);
      EXPECT_TRUE(b == 5 ? forked == kForkedAt : forked <= b * kBlock)
          << forked;
      ExpectOthersUntouched();
    }
  }
}

TEST_F(DamageTest, RecordEntriesSwappedNeverServeWrongBytes) {
  ASSERT_NO_FATAL_FAILURE(After([](RawEnv& raw) {
    const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
    raw.Swap("records", RecordKey(chain[1]), RecordKey(chain[2]));
  }));
  EXPECT_LE(ReadEverything("victim", victim_), kBlock);
  ExpectOthersUntouched();
}

TEST_F(DamageTest, AFlippedBitOfALayoutCostsItsSessionsAlone) {
  ASSERT_NO_FATAL_FAILURE(After([](RawEnv& raw) {
    raw.FlipBit("meta", LayoutKey(SmallLayout().fingerprint), 100);
  }));
  EXPECT_THAT(store_->Open(Key("victim")), HasCode(kDataLoss));
  EXPECT_THAT(store_->Open(Key("fork")), HasCode(kDataLoss));
  EXPECT_TRUE(Read("other") == other_);
  EXPECT_THAT(Problems(), Contains(HasSubstr("layout")));
}

TEST_F(DamageTest, AnyFlippedBitOfAnyRecordIsSeenOrIsPadding) {
  testing::Random random;
  int seen = 0;
  for (int round = 0; round < 60; ++round) {
    bool padding = true;
    uint64_t offset = 0;
    ASSERT_NO_FATAL_FAILURE(After([&](RawEnv& raw) {
      const auto chain = raw.Chain(raw.Manifest(Key("victim")).tip);
      const RecordNumber number = chain[random.Between(0, chain.size() - 1)];
      const RecordHeader header = raw.Header(number);
      offset = random.Between(0, header.record_bytes - 1);
      padding = offset >= header.prefix_bytes();
      for (const SectionEntry& s : header.sections) {
        if (offset >= s.offset && offset < s.offset + s.bytes) padding = false;
      }
      raw.FlipRecordBit(number, offset, static_cast<int>(round % 8));
    }));
    SCOPED_TRACE("round " + std::to_string(round) + ", byte " +
                 std::to_string(offset));
    const uint64_t good = ReadEverything("victim", victim_);
    EXPECT_EQ(good == kTokens, padding);
    EXPECT_TRUE(Read("other") == other_);
    if (!padding) {
      ++seen;
      EXPECT_FALSE(Problems().empty());
    }
  }
  EXPECT_GT(seen, 30);
}

}  // namespace
}  // namespace torpor::store
