// SPDX-License-Identifier: Apache-2.0
//
// Every decoder of docs/FORMAT.md, given less than everything, flipped bits,
// and lies under a valid checksum: an error, never a crash, never an
// allocation of the size that a lie asks for.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "tests/store/format_samples.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"

namespace {

// The largest single allocation since it was last set to 0.
std::atomic<size_t> largest_allocation = 0;

}  // namespace

// The whole family is replaced, so that each new meets its own delete.
void* operator new(size_t bytes) {
  size_t seen = largest_allocation.load();
  while (bytes > seen &&
         !largest_allocation.compare_exchange_weak(seen, bytes)) {
  }
  if (void* const p = std::malloc(std::max<size_t>(bytes, 1))) return p;
  throw std::bad_alloc();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t /*bytes*/) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete[](void* p, size_t /*bytes*/) noexcept { std::free(p); }

namespace torpor::store {
namespace {

using ::testing::AnyOf;
using testing::HasCode;
using testing::IsOk;

// Far above what any sample needs, far below what a lying count asks for.
constexpr size_t kBigAllocation = 1 << 20;

auto IsRefused() {
  return AnyOf(HasCode(absl::StatusCode::kDataLoss),
               HasCode(absl::StatusCode::kFailedPrecondition));
}

struct Sample {
  const char* name;
  std::string bytes;
  std::function<absl::Status(std::span<const uint8_t>)> decode;
};

std::vector<Sample> SealedSamples() {
  return {
      {"manifest", EncodeManifest(Manifest()),
       [](auto b) { return DecodeManifest(b).status(); }},
      {"record entry", EncodeRecordEntry(Index()),
       [](auto b) { return DecodeRecordEntry(b).status(); }},
      {"tombstone", EncodeTombstone(Deleted()),
       [](auto b) { return DecodeTombstone(b).status(); }},
      {"layout", EncodeLayout(Layout()),
       [](auto b) { return DecodeLayout(kFingerprint, b).status(); }},
  };
}

Sample PrefixSample() {
  return {"record prefix", EncodeRecordPrefix(BlockHeader()),
          [](auto b) { return DecodeRecordPrefix(b).status(); }};
}

// Sections carry no checksum of their own; the directory holds it.
std::vector<Sample> SectionSamples() {
  return {
      {"spans", EncodeSpans(kSpans),
       [](auto b) { return DecodeSpans(b).status(); }},
      {"origin", EncodeOrigin(kOrigin),
       [](auto b) { return DecodeOrigin(b).status(); }},
  };
}

// Decodes a copy of exactly this size, so that a sanitizer sees a read beyond.
absl::Status Decode(const Sample& sample, std::string_view bytes) {
  const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
  largest_allocation = 0;
  const absl::Status status = sample.decode(exact);
  EXPECT_LT(largest_allocation, kBigAllocation) << sample.name;
  return status;
}

void PutChecksum(uint64_t checksum, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(checksum >> (8 * i));
}

// Makes the checksum of a sealed value true again.
void Reseal(std::string* bytes) {
  const size_t body = bytes->size() - 8;
  PutChecksum(Xxh3(AsBytes(bytes->substr(0, body))), bytes->data() + body);
}

// The same of header and directory: it covers all but itself.
void ResealPrefix(std::string* bytes) {
  std::string covered = *bytes;
  covered.erase(kRecordHeaderBytes - 8, 8);
  PutChecksum(Xxh3(AsBytes(covered)), bytes->data() + kRecordHeaderBytes - 8);
}

TEST(FormatRefusalTest, TheSamplesThemselvesAreFine) {
  for (const Sample& sample : SealedSamples()) {
    EXPECT_OK(Decode(sample, sample.bytes)) << sample.name;
    std::string resealed = sample.bytes;
    Reseal(&resealed);
    EXPECT_EQ(resealed, sample.bytes) << sample.name;
  }
  for (const Sample& sample : SectionSamples()) {
    EXPECT_OK(Decode(sample, sample.bytes)) << sample.name;
  }
  const Sample prefix = PrefixSample();
  EXPECT_OK(Decode(prefix, prefix.bytes));
  EXPECT_OK(Decode(prefix, prefix.bytes + std::string(100, 'x')));
  std::string resealed = prefix.bytes;
  ResealPrefix(&resealed);
  EXPECT_EQ(resealed, prefix.bytes);
}

TEST(FormatRefusalTest, EveryTruncationIsRefused) {
  std::vector<Sample> samples = SealedSamples();
  samples.push_back(PrefixSample());
  for (const Sample& sample : SectionSamples()) samples.push_back(sample);
  for (const Sample& sample : samples) {
    for (size_t n = 0; n < sample.bytes.size(); ++n) {
      EXPECT_THAT(Decode(sample, sample.bytes.substr(0, n)), IsRefused())
          << sample.name << " of " << n << " bytes";
    }
  }
}

TEST(FormatRefusalTest, BytesAfterTheEndOfAValueAreRefused) {
  for (const Sample& sample : SealedSamples()) {
    EXPECT_THAT(Decode(sample, sample.bytes + '\0'), IsRefused())
        << sample.name;
    // With a checksum over the longer value, too.
    std::string longer = sample.bytes + '\0';
    Reseal(&longer);
    EXPECT_THAT(Decode(sample, longer), IsRefused()) << sample.name;
  }
  for (const Sample& sample : SectionSamples()) {
    EXPECT_THAT(Decode(sample, sample.bytes + '\0'), IsRefused())
        << sample.name;
  }
}

TEST(FormatRefusalTest, EveryFlippedBitIsRefused) {
  std::vector<Sample> samples = SealedSamples();
  samples.push_back(PrefixSample());
  for (const Sample& sample : samples) {
    for (size_t bit = 0; bit < 8 * sample.bytes.size(); ++bit) {
      std::string bytes = sample.bytes;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      EXPECT_THAT(Decode(sample, bytes), IsRefused())
          << sample.name << ", bit " << bit;
    }
  }
}

TEST(FormatRefusalTest, ANewerVersionIsToldFromDamage) {
  for (const Sample& sample : SealedSamples()) {
    std::string bytes = sample.bytes;
    bytes[4] = 2;
    Reseal(&bytes);
    EXPECT_THAT(Decode(sample, bytes),
                HasCode(absl::StatusCode::kFailedPrecondition))
        << sample.name;
    bytes = sample.bytes;
    bytes[3] = 'x';
    Reseal(&bytes);
    EXPECT_THAT(Decode(sample, bytes), HasCode(absl::StatusCode::kDataLoss))
        << sample.name;
  }
  const Sample prefix = PrefixSample();
  // Version, codec and encryption of the header.
  for (const size_t offset : {4, 7, 48}) {
    std::string bytes = prefix.bytes;
    bytes[offset] = 2;
    ResealPrefix(&bytes);
    EXPECT_THAT(Decode(prefix, bytes),
                HasCode(absl::StatusCode::kFailedPrecondition))
        << "offset " << offset;
  }
}

// Whatever stands in a value, true checksum included: no crash and no big
// allocation. Decode looks at the allocations.
TEST(FormatRefusalTest, LyingCountsAllocateNothing) {
  for (const uint32_t lie : {0xffffffffu, 0x7fffffffu, 0x10000000u, 65'536u}) {
    const auto overwrite = [lie](std::string* bytes, size_t at) {
      for (int i = 0; i < 4; ++i) {
        (*bytes)[at + i] = static_cast<char>(lie >> (8 * i));
      }
    };
    for (const Sample& sample : SealedSamples()) {
      for (size_t at = 6; at + 4 + 8 <= sample.bytes.size(); ++at) {
        std::string bytes = sample.bytes;
        overwrite(&bytes, at);
        Reseal(&bytes);
        (void)Decode(sample, bytes);
      }
    }
    for (const Sample& sample : SectionSamples()) {
      for (size_t at = 0; at + 4 <= sample.bytes.size(); ++at) {
        std::string bytes = sample.bytes;
        overwrite(&bytes, at);
        (void)Decode(sample, bytes);
      }
      std::string bytes = sample.bytes;
      overwrite(&bytes, 0);
      EXPECT_THAT(Decode(sample, bytes), IsRefused()) << sample.name;
    }
  }
}

TEST(FormatRefusalTest, ADecodedDirectoryLiesInsideItsRecord) {
  const Sample prefix = PrefixSample();
  testing::Random random;
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = prefix.bytes;
    // The sizes of the header and the whole directory, but for checksums.
    const size_t at = random.OneIn(4) ? random.Between(20, 31)
                                      : random.Between(160, bytes.size() - 9);
    for (int i = 0; i < 8; ++i) {
      if (at + i == kRecordHeaderBytes - 8) break;
      const uint64_t lie = random.OneIn(2) ? 0xff : random.Between(0, 255);
      bytes[at + i] = static_cast<char>(lie);
      if (random.OneIn(3)) break;
    }
    ResealPrefix(&bytes);
    largest_allocation = 0;
    const auto header = DecodeRecordPrefix(AsBytes(bytes));
    EXPECT_LT(largest_allocation, kBigAllocation);
    if (!header.ok()) {
      EXPECT_THAT(header, IsRefused());
      ++refused;
      continue;
    }
    uint64_t end = header->prefix_bytes();
    for (const SectionEntry& section : header->sections) {
      ASSERT_GE(section.offset, end);
      ASSERT_EQ(section.offset % kSectionAlign, 0);
      ASSERT_LE(section.bytes, header->record_bytes);
      ASSERT_LE(section.offset, header->record_bytes - section.bytes);
      if (section.row_bytes != 0) {
        ASSERT_EQ(section.bytes, uint64_t{section.n_rows} * section.row_bytes);
      }
      end = section.offset + section.bytes;
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(FormatRefusalTest, NoiseIsRefused) {
  std::vector<Sample> samples = SealedSamples();
  samples.push_back(PrefixSample());
  testing::Random random(1);
  for (const Sample& sample : samples) {
    for (int round = 0; round < 1000; ++round) {
      std::string bytes(random.Between(0, 400), '\0');
      for (char& c : bytes) c = static_cast<char>(random.Between(0, 255));
      EXPECT_THAT(Decode(sample, bytes), IsRefused()) << sample.name;
    }
  }
}

}  // namespace
}  // namespace torpor::store
