// SPDX-License-Identifier: Apache-2.0

#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/random.h"

namespace torpor {
namespace {

std::span<const uint8_t> Bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// Published test values of xxHash: the hash of nothing.
TEST(HashTest, EmptyInputHasThePublishedValue) {
  EXPECT_EQ(Xxh3({}), 0x2d06800538d394c2ULL);
  const Digest128 expected = {0x99, 0xaa, 0x06, 0xd3, 0x01, 0x47, 0x98, 0xd8,
                              0x60, 0x01, 0xc3, 0x24, 0x46, 0x8d, 0x49, 0x7f};
  EXPECT_EQ(Xxh3Digest128({}), expected);
}

TEST(HashTest, StreamEqualsOneShotForAnySplit) {
  testing::Random random;
  for (int round = 0; round < 50; ++round) {
    std::vector<uint8_t> bytes(random.Between(0, 5000));
    random.Fill(bytes);
    Xxh3Stream stream;
    std::span<const uint8_t> rest = bytes;
    while (!rest.empty()) {
      const size_t n = random.Between(1, rest.size());
      stream.Update(rest.first(n));
      rest = rest.subspan(n);
    }
    EXPECT_EQ(stream.Digest(), Xxh3(bytes));
    stream.Reset();
    EXPECT_EQ(stream.Digest(), Xxh3({}));
  }
}

// The stream is libxxhash's; one shot takes the widest path of the processor.
TEST(HashTest, EveryLengthAndAlignmentEqualsTheLibrary) {
  testing::Random random;
  std::vector<uint8_t> bytes(8192 + 64);
  random.Fill(bytes);
  const auto check = [&](size_t at, size_t n) {
    const auto some = std::span(bytes).subspan(at, n);
    Xxh3Stream stream;
    stream.Update(some);
    ASSERT_EQ(Xxh3(some), stream.Digest()) << n << " bytes from " << at;
  };
  for (size_t n = 0; n <= 1200; ++n) check(n % 64, n);
  for (size_t n = 1201; n <= 8192; n += random.Between(1, 97)) {
    check(random.Between(0, 63), n);
  }
}

TEST(HashTest, OneFlippedBitChangesTheHash) {
  const std::string text = "the session sleeps";
  std::string flipped = text;
  flipped[3] ^= 1;
  EXPECT_NE(Xxh3(Bytes(text)), Xxh3(Bytes(flipped)));
  EXPECT_NE(Xxh3Digest128(Bytes(text)), Xxh3Digest128(Bytes(flipped)));
}

}  // namespace
}  // namespace torpor
