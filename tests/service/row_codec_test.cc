// SPDX-License-Identifier: Apache-2.0

#include "service/row_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "torpor/v1/session_service.pb.h"

namespace torpor::service {
namespace {

using ::torpor::testing::HasCode;

// The bytes as a transport may hand them over: cut into slices anywhere.
grpc::ByteBuffer InSlices(const std::string& bytes,
                          const std::vector<size_t>& cuts) {
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  for (const size_t cut : cuts) {
    slices.emplace_back(bytes.substr(at, cut - at));
    at = cut;
  }
  slices.emplace_back(bytes.substr(at));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

std::string Text(std::span<const uint8_t> bytes) {
  return {bytes.begin(), bytes.end()};
}

v1::SuspendRequest Sample() {
  v1::SuspendRequest message;
  for (uint32_t i = 0; i < 3; ++i) {
    v1::RowPiece* piece = message.add_pieces();
    piece->set_slot(i);
    piece->set_row_begin(uint64_t{1} << (20 * i));
    piece->set_n_rows(i + 1);
    piece->set_row_bytes(100);
    piece->set_checksum(0x0123456789abcdef + i);
  }
  for (int i = 0; i < 600; ++i) {
    message.mutable_data()->push_back(static_cast<char>(i * 7));
  }
  message.mutable_header()->set_session(std::string("a\0b", 3));
  message.mutable_tokens()->add_ids(77);
  return message;
}

TEST(RowCodecTest, DecodesWhatProtobufWrites) {
  const v1::SuspendRequest message = Sample();
  const auto decoded =
      DecodeRowMessage(InSlices(message.SerializeAsString(), {}));
  ASSERT_OK(decoded);
  ASSERT_EQ(decoded->pieces.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(decoded->pieces[static_cast<size_t>(i)].SerializeAsString(),
              message.pieces(i).SerializeAsString());
  }
  EXPECT_EQ(Text(decoded->data), message.data());
  v1::SuspendRequest rest;
  ASSERT_TRUE(rest.ParseFromString(decoded->rest));
  EXPECT_EQ(rest.pieces_size(), 0);
  EXPECT_EQ(rest.data(), "");
  EXPECT_EQ(rest.header().session(), message.header().session());
  EXPECT_EQ(rest.tokens().ids(0), 77);
}

TEST(RowCodecTest, WhereverTheSlicesAreCut) {
  const v1::SuspendRequest message = Sample();
  const std::string bytes = message.SerializeAsString();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const auto decoded = DecodeRowMessage(InSlices(bytes, {cut}));
    ASSERT_OK(decoded);
    ASSERT_EQ(Text(decoded->data), message.data()) << cut;
    ASSERT_EQ(decoded->pieces.size(), 3) << cut;
  }
  testing::Random random;
  for (int i = 0; i < 200; ++i) {
    std::vector<size_t> cuts(random.Between(2, 12));
    for (size_t& cut : cuts) cut = random.Between(0, bytes.size());
    std::sort(cuts.begin(), cuts.end());
    const auto decoded = DecodeRowMessage(InSlices(bytes, cuts));
    ASSERT_OK(decoded);
    ASSERT_EQ(Text(decoded->data), message.data());
  }
}

TEST(RowCodecTest, FieldsInAnyOrderAndTheLastDataCounts) {
  v1::SuspendRequest first;
  first.set_data("first");
  first.mutable_header()->set_session("s");
  v1::SuspendRequest second = Sample();
  const auto decoded = DecodeRowMessage(
      InSlices(first.SerializeAsString() + second.SerializeAsString(), {}));
  ASSERT_OK(decoded);
  EXPECT_EQ(Text(decoded->data), second.data());
  EXPECT_EQ(decoded->pieces.size(), 3);
}

TEST(RowCodecTest, EmptyMessagesAreMessages) {
  const auto decoded = DecodeRowMessage(InSlices("", {}));
  ASSERT_OK(decoded);
  EXPECT_TRUE(decoded->pieces.empty());
  EXPECT_TRUE(decoded->data.empty());
  EXPECT_EQ(decoded->rest, "");
}

TEST(RowCodecTest, CutMessagesAreRefused) {
  v1::SuspendRequest message = Sample();
  message.clear_header();
  message.clear_tokens();
  const std::string bytes = message.SerializeAsString();
  // Between fields a shorter message is one, too: at those ends alone.
  size_t decodable = 0;
  for (size_t n = 0; n < bytes.size(); ++n) {
    const auto decoded = DecodeRowMessage(InSlices(bytes.substr(0, n), {}));
    if (decoded.ok()) {
      ++decodable;
    } else {
      EXPECT_THAT(decoded, HasCode(absl::StatusCode::kInvalidArgument));
    }
  }
  // Before the data: none, one, two or three pieces.
  EXPECT_EQ(decodable, 4);
}

TEST(RowCodecTest, LengthsThatLieAreRefused) {
  for (const std::string& bytes :
       {std::string("\x0a\x05\x08\x01"),
        std::string("\x0a\xff\xff\xff\xff\x0f"),
        std::string("\x0a\xff\xff\xff\xff\x07\x08\x01"),
        std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        std::string("\x12\x05xyz"), std::string("\x12\xff\xff\xff\xff\x0f"),
        std::string("\x12\xff\xff\xff\xff\x07"), std::string("\x12"),
        std::string("\x0a"), std::string("\x0a\x02\x52\x7f"),
        std::string("\x1a\x05x"), std::string(1, '\0'), std::string("\x07"),
        std::string(3000, '\x1b'), std::string("\x1c")}) {
    EXPECT_THAT(DecodeRowMessage(InSlices(bytes, {})),
                HasCode(absl::StatusCode::kInvalidArgument))
        << bytes.size();
  }
}

TEST(RowCodecTest, RandomBytesNeverReachBeyondTheMessage) {
  testing::Random random(1);
  const std::string good = Sample().SerializeAsString();
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = good;
    for (uint64_t n = random.Between(1, 4); n > 0; --n) {
      bytes[random.Between(0, std::min<size_t>(bytes.size(), 120) - 1)] =
          static_cast<char>(random.Between(0, 255));
    }
    const auto decoded =
        DecodeRowMessage(InSlices(bytes, {random.Between(0, bytes.size())}));
    if (decoded.ok()) {
      EXPECT_LE(decoded->data.size(), bytes.size());
    } else {
      EXPECT_THAT(decoded, HasCode(absl::StatusCode::kInvalidArgument));
    }
  }
}

TEST(RowCodecTest, ProtobufReadsWhatTheBuilderWrites) {
  RowMessageBuilder builder;
  EXPECT_TRUE(builder.empty());
  for (int round = 0; round < 3; ++round) {
    std::string all;
    for (uint32_t i = 1; i <= 4; ++i) {
      const std::span<uint8_t> out = builder.Append(1000 * i);
      std::fill(out.begin(), out.end(), static_cast<uint8_t>(i + round));
      all += Text(out);
      v1::RowPiece piece;
      piece.set_slot(i);
      piece.set_n_rows(i);
      piece.set_row_bytes(1000);
      builder.Describe(piece);
    }
    EXPECT_EQ(builder.data_bytes(), all.size());
    v1::SuspendRequest rest;
    rest.mutable_header()->set_session("s");
    const std::string bytes =
        BytesOf(builder.Finish(round == 0 ? nullptr : &rest));
    v1::SuspendRequest parsed;
    ASSERT_TRUE(parsed.ParseFromString(bytes));
    EXPECT_EQ(parsed.pieces_size(), 4);
    EXPECT_EQ(parsed.pieces(3).slot(), 4);
    EXPECT_TRUE(parsed.data() == all);
    EXPECT_EQ(parsed.has_header(), round != 0);
    EXPECT_TRUE(builder.empty());
  }
  // A whole MiB fits.
  EXPECT_EQ(builder.Append(kMaxRowBytesPerMessage).size(),
            kMaxRowBytesPerMessage);
}

}  // namespace
}  // namespace torpor::service
