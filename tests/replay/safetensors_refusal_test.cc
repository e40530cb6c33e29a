// SPDX-License-Identifier: Apache-2.0
//
// safetensors files that lie, stop early or were damaged: refused with a
// message that names the file and the thing, or read as a sound file. Run
// under AddressSanitizer as well.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "replay/safetensors.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/random.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {
namespace {

using ::testing::HasSubstr;
using torpor::testing::HasStatus;
using torpor::testing::Random;
using torpor::testing::TempDir;

constexpr char kSound[] =
    R"({"__metadata__":{"format":"pt"},)"
    R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}} )";

class SafetensorsRefusalTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      std::string_view bytes) {
    WriteFile(path_, bytes);
    return SafetensorsFile::Open(path_);
  }

  // kDataLoss with the file's path and `thing`.
  void ExpectLying(std::string_view bytes, const std::string& thing) {
    const auto file = Open(bytes);
    EXPECT_THAT(file, HasStatus(absl::StatusCode::kDataLoss, path_))
        << std::string(bytes.substr(0, 200));
    EXPECT_THAT(file, HasStatus(absl::StatusCode::kDataLoss, thing))
        << std::string(bytes.substr(0, 200));
  }

  TempDir dir_;
  const std::string path_ = dir_.File("a.safetensors");
};

TEST_F(SafetensorsRefusalTest, TheFileThatOthersDamageIsSound) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open(RawFile(kSound, SomeBytes(12))));
  ExpectSound(*file);
  EXPECT_EQ(file->tensors().size(), 2);
}

TEST_F(SafetensorsRefusalTest, AbsentIsNotFound) {
  EXPECT_THAT(SafetensorsFile::Open(path_),
              HasStatus(absl::StatusCode::kNotFound, path_));
}

TEST_F(SafetensorsRefusalTest, WhatIsNoRegularFileIsRefused) {
  const auto directory = SafetensorsFile::Open(dir_.path());
  EXPECT_THAT(directory, HasStatus(absl::StatusCode::kDataLoss, dir_.path()));
  // A pipe without a writer: an open that waits for one would hang here.
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(SafetensorsFile::Open(path_),
              HasStatus(absl::StatusCode::kDataLoss, path_));
  EXPECT_THAT(SafetensorsFile::Open("/dev/null"),
              HasStatus(absl::StatusCode::kDataLoss, "/dev/null"));
}

TEST_F(SafetensorsRefusalTest, EveryTruncationIsRefused) {
  const std::string whole = RawFile(kSound, SomeBytes(12));
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_THAT(Open(std::string_view(whole).substr(0, n)),
                HasStatus(absl::StatusCode::kDataLoss, path_))
        << n;
  }
}

TEST_F(SafetensorsRefusalTest, TrailingBytesAreRefused) {
  const std::string whole = RawFile(kSound, SomeBytes(12));
  for (size_t n = 1; n < 10; ++n) ExpectLying(whole + SomeBytes(n), "byte 12");
  ExpectLying(RawFile("{}", "x"), "byte 0");
}

TEST_F(SafetensorsRefusalTest, AHeaderLongerThanTheFileIsRefused) {
  const std::string header = kSound;
  for (const uint64_t length :
       {header.size() + 13, size_t{100'000'000}, size_t{100'000'001},
        size_t{1} << 32, size_t{1} << 63, ~size_t{0}, ~size_t{0} - 7,
        ~size_t{0} - 8}) {
    ExpectLying(LengthPrefix(length) + header + SomeBytes(12),
                std::to_string(length));
  }
}

// safetensors' own limit is 100 MB, so that a header cannot be a whole disk.
TEST_F(SafetensorsRefusalTest, AHeaderOverTheLimitIsRefusedUnread) {
  ASSERT_OK(SafetensorsFile::Open([&] {
    WriteFile(path_, RawFile(kSound, SomeBytes(12)));
    return path_;
  }()));
  WriteFile(path_, LengthPrefix(100'000'001) + "{}");
  std::filesystem::resize_file(path_, 8 + 100'000'001);
  EXPECT_THAT(SafetensorsFile::Open(path_),
              HasStatus(absl::StatusCode::kDataLoss, "100000001"));
}

TEST_F(SafetensorsRefusalTest, AHeaderThatIsNoJsonObjectIsRefused) {
  for (const std::string header :
       {"", "{", "}", "[]", "null", "5", "\"x\"", "{}x", "{}{}", "{,}",
        "{\"a\":}", "{'a':1}", "\xff\xfe", "{\"\xff\":1}", "// {}"}) {
    ExpectLying(RawFile(header, ""), "header");
  }
  // A NUL ends no JSON text.
  using namespace std::string_literals;
  ExpectLying(RawFile("{}\0"s, ""), "header");
  ExpectLying(RawFile("{}\0{\"a\":1}"s, ""), "header");
}

TEST_F(SafetensorsRefusalTest, NestingIsLimited) {
  for (const size_t depth : {size_t{1000}, size_t{1} << 20}) {
    ExpectLying(RawFile("{\"a\":" + std::string(depth, '['), ""), "header");
    ExpectLying(RawFile("{\"a\":" + std::string(depth, '[') +
                            std::string(depth, ']') + "}",
                        ""),
                path_);
    std::string objects;
    for (size_t i = 0; i < depth; ++i) objects += "{\"a\":";
    ExpectLying(RawFile(objects + "1" + std::string(depth, '}'), ""), path_);
    ExpectLying(
        RawFile(R"({"a":{"dtype":"U8","data_offsets":[0,1],"shape":)" +
                    std::string(depth, '[') + std::string(depth, ']') + "}}",
                "x"),
        path_);
  }
}

TEST_F(SafetensorsRefusalTest, AnEntryThatIsNoTensorIsRefused) {
  for (const std::string entry :
       {"null",
        "[]",
        "5",
        "\"x\"",
        "{}",
        R"({"dtype":"U8","shape":[4]})",
        R"({"dtype":"U8","data_offsets":[0,4]})",
        R"({"shape":[4],"data_offsets":[0,4]})",
        R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})",
        R"({"dtype":null,"shape":[4],"data_offsets":[0,4]})",
        R"({"dtype":["U8"],"shape":[4],"data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":"4","data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":{"0":4},"data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":null,"data_offsets":[0,4]})",
        R"({"dtype":"U8","shape":[4],"data_offsets":4})",
        R"({"dtype":"U8","shape":[4],"data_offsets":"0,4"})",
        R"({"dtype":"U8","shape":[4],"data_offsets":[4]})",
        R"({"dtype":"U8","shape":[4],"data_offsets":[]})",
        R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,4]})",
        R"({"dtype":"U8","shape":[4],"data_offsets":{"0":0,"1":4}})"}) {
    ExpectLying(RawFile("{\"the name\":" + entry + "}", "abcd"), "the name");
  }
}

TEST_F(SafetensorsRefusalTest, AnUnknownDtypeIsNamed) {
  for (const std::string dtype :
       {"F31", "f32", "", "F32 ", "float32", "bf16"}) {
    ExpectLying(RawFile(R"({"t":{"dtype":")" + dtype +
                            R"(","shape":[1],"data_offsets":[0,4]}})",
                        "abcd"),
                "dtype " + dtype);
  }
}

TEST_F(SafetensorsRefusalTest, AShapeThatCannotBeIsRefused) {
  for (const std::string shape :
       {"-4", "4.0", "4e0", "true", "null", "\"4\"", "[4]", "-0", "4,-1",
        // More than the file, and products that pass 2^64 in elements or bytes.
        "5", "3", "1000000000000", "18446744073709551615",
        "18446744073709551616", "9223372036854775808", "4294967296,4294967296",
        "4294967296,4294967297", "2305843009213693952,8",
        "4611686018427387905,4", "65536,65536,65536,65536",
        "65536,65536,65536,65536,4",
        // Dimensions that are no int64_t, though the tensor is empty.
        "0,18446744073709551615", "18446744073709551615,0",
        "9223372036854775808,0"}) {
    const bool empty =
        shape.find(",0") != std::string::npos || shape.starts_with("0,");
    ExpectLying(
        RawFile(R"({"t":{"dtype":"U8","shape":[)" + shape +
                    R"(],"data_offsets":[0,)" + (empty ? "0" : "4") + "]}}",
                empty ? "" : "abcd"),
        "'t'");
  }
  // Bytes, not elements, pass 2^64 and come out right again.
  for (const std::string shape :
       {"4611686018427387905", "2305843009213693953"}) {
    ExpectLying(RawFile(R"({"t":{"dtype":"F32","shape":[)" + shape +
                            R"(],"data_offsets":[0,4]}})",
                        "abcd"),
                "'t'");
  }
}

TEST_F(SafetensorsRefusalTest, OffsetsThatCannotBeAreRefused) {
  for (const std::string offsets :
       {"-4,0",
        "0,-4",
        "-4,-4",
        "0.0,4",
        "0,4.0",
        "0,4e0",
        "-0,4",
        "true,4",
        "null,4",
        "\"0\",\"4\"",
        "[0],4",
        "4,0",
        "0,5",
        "0,3",
        "1,4",
        "4,8",
        "1,5",
        "18446744073709551615,3",
        "18446744073709551612,0",
        "0,18446744073709551616",
        "9223372036854775808,9223372036854775812",
        "18446744073709551612,18446744073709551616"}) {
    ExpectLying(RawFile(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[)" +
                            offsets + "]}}",
                        "abcd"),
                "'t'");
  }
}

TEST_F(SafetensorsRefusalTest, OverlapsAndHolesAreRefused) {
  const auto two = [](const char* a, const char* a_shape, const char* b,
                      const char* b_shape) {
    return std::string(R"({"a":{"dtype":"U8","shape":[)") + a_shape +
           R"(],"data_offsets":[)" + a + R"(]},"b":{"dtype":"U8","shape":[)" +
           b_shape + R"(],"data_offsets":[)" + b + "]}}";
  };
  ASSERT_OK(Open(RawFile(two("0,4", "4", "4,8", "4"), SomeBytes(8))));
  // Each has the data bytes of two sound tensors.
  ExpectLying(RawFile(two("0,4", "4", "0,4", "4"), SomeBytes(4)), "byte 0");
  ExpectLying(RawFile(two("0,5", "5", "4,8", "4"), SomeBytes(8)), "byte 4");
  ExpectLying(RawFile(two("4,8", "4", "0,5", "5"), SomeBytes(8)), "byte 4");
  ExpectLying(RawFile(two("0,8", "8", "2,4", "2"), SomeBytes(8)), "byte 2");
  ExpectLying(RawFile(two("0,3", "3", "4,8", "4"), SomeBytes(8)), "byte 3");
  ExpectLying(RawFile(two("1,4", "3", "4,8", "4"), SomeBytes(8)), "byte 0");
  ExpectLying(RawFile(two("0,4", "4", "4,7", "3"), SomeBytes(8)), "byte 7");
  // An empty tensor outside the data, or between two of its bytes.
  ExpectLying(RawFile(two("0,4", "4", "8,8", "0"), SomeBytes(4)), "'b'");
}

TEST_F(SafetensorsRefusalTest, NamesThatComeTwiceAreRefused) {
  const std::string entry =
      R"("twin":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  ExpectLying(RawFile("{" + entry + "," + entry + "}", "abcd"), "twin");
  ExpectLying(RawFile("{" + entry +
                          R"(,"tw\u0069n":{"dtype":"U8","shape":[4],)"
                          R"("data_offsets":[4,8]}})",
                      "abcdefgh"),
              "twin");
  ExpectLying(RawFile(R"({"t":{"dtype":"U8","dtype":"I8","shape":[4],)"
                      R"("data_offsets":[0,4]}})",
                      "abcd"),
              "dtype");
  ExpectLying(RawFile(R"({"__metadata__":{"k":"1","k":"2"}})", ""), "k");
  ExpectLying(RawFile(R"({"__metadata__":{},"__metadata__":{}})", ""),
              "__metadata__");
  // The same name in different objects is none that comes twice.
  EXPECT_OK(Open(RawFile(
      R"({"__metadata__":{"dtype":"1","twin":"2"},)" + entry + "}", "abcd")));
}

TEST_F(SafetensorsRefusalTest, MetadataThatIsNoTextIsRefused) {
  for (const std::string metadata :
       {"5", "\"x\"", "[]", "[\"x\"]", "true", R"({"k":1})", R"({"k":null})",
        R"({"k":{}})", R"({"k":["x"]})", R"({"a":"x","k":true})"}) {
    ExpectLying(RawFile(R"({"__metadata__":)" + metadata + "}", ""),
                "metadata");
  }
}

// Damage to the header ends in a refusal or in a file that is sound by what
// its header now says; nothing is read outside of it.
TEST_F(SafetensorsRefusalTest, AnyFlippedBitOfTheHeaderIsSafe) {
  const std::string whole = RawFile(kSound, SomeBytes(12));
  size_t refused = 0;
  for (size_t bit = 0; bit < (8 + sizeof(kSound) - 1) * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << (bit % 8));
    const auto file = Open(bytes);
    if (file.ok()) {
      ExpectSound(**file);
    } else {
      EXPECT_THAT(file, HasStatus(absl::StatusCode::kDataLoss, path_)) << bit;
      ++refused;
    }
  }
  // Names and metadata may change and stay sound, the rest may not.
  EXPECT_GT(refused, (8 + sizeof(kSound) - 1) * 8 / 2);
}

TEST_F(SafetensorsRefusalTest, RandomDamageIsSafe) {
  Random random;
  const std::string whole = RawFile(kSound, SomeBytes(12));
  // Characters that make JSON, so that some damage parses.
  constexpr std::string_view kLikely = "0123456789-.,:[]{}\"eE \\";
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = whole;
    const uint64_t n = random.Between(1, 6);
    for (uint64_t i = 0; i < n; ++i) {
      const size_t at = random.Between(0, bytes.size() - 1);
      switch (random.Between(0, 3)) {
        case 0:
          bytes[at] = static_cast<char>(random.Between(0, 255));
          break;
        case 1:
          bytes[at] = kLikely[random.Between(0, kLikely.size() - 1)];
          break;
        case 2:
          bytes.erase(at, random.Between(1, 4));
          break;
        default:
          bytes.insert(at, 1, kLikely[random.Between(0, kLikely.size() - 1)]);
      }
      if (bytes.empty()) bytes = "x";
    }
    // Half of the time the length fits what is left of the header.
    if (random.OneIn(2) && bytes.size() >= 20) {
      bytes.replace(0, 8, LengthPrefix(bytes.size() - 20));
    }
    const auto file = Open(bytes);
    if (file.ok()) {
      ExpectSound(**file);
    } else {
      ASSERT_THAT(file, HasStatus(absl::StatusCode::kDataLoss, path_)) << round;
    }
  }
}

class IndexRefusalTest : public ::testing::Test {
 protected:
  IndexRefusalTest() {
    WriteFile(dir_.File("s.safetensors"),
              RawFile(R"({"a":{"dtype":"U8","shape":[1],)"
                      R"("data_offsets":[0,1]}})",
                      "x"));
  }
  absl::StatusOr<ModelTensors> Open(std::string_view index) {
    WriteFile(index_path_, index);
    return ModelTensors::Open(dir_.path());
  }
  // Refused with the index's path and `thing`.
  void ExpectRefused(std::string_view index, const std::string& thing) {
    const auto model = Open(index);
    ASSERT_FALSE(model.ok()) << index.substr(0, 200);
    EXPECT_THAT(std::string(model.status().message()),
                AllOf(HasSubstr(index_path_), HasSubstr(thing)));
  }

  TempDir dir_;
  const std::string index_path_ = dir_.File("model.safetensors.index.json");
};

TEST_F(IndexRefusalTest, TheIndexThatOthersSpoilIsSound) {
  ASSERT_OK(Open(R"({"weight_map":{"a":"s.safetensors"}})"));
}

TEST_F(IndexRefusalTest, ADirectoryWithoutWeightsIsNotFound) {
  const TempDir empty;
  EXPECT_THAT(ModelTensors::Open(empty.path()),
              HasStatus(absl::StatusCode::kNotFound, empty.path()));
  EXPECT_THAT(ModelTensors::Open(dir_.File("absent")),
              HasStatus(absl::StatusCode::kNotFound, dir_.File("absent")));
  EXPECT_THAT(Open(R"({"weight_map":{}})"),
              HasStatus(absl::StatusCode::kNotFound, index_path_));
}

TEST_F(IndexRefusalTest, AnIndexThatIsNoneIsRefused) {
  for (const std::string index : {"", "[]", "{", "null", "{} x"}) {
    ExpectRefused(index, "JSON");
  }
  for (const std::string index :
       {"{}", R"({"weight_map":null})", R"({"weight_map":[]})",
        R"({"weight_map":"s.safetensors"})", R"({"weight_map":[["a","s"]]})"}) {
    ExpectRefused(index, "weight_map");
  }
  ExpectRefused(R"({"weight_map":{"a":"s.safetensors","a":"t.safetensors"}})",
                "a");
  ExpectRefused("{\"weight_map\":" + std::string(1 << 20, '['), "");
  ExpectRefused("{\"weight_map\":{\"a\":" + std::string(1 << 20, '[') +
                    std::string(1 << 20, ']') + "}}",
                "");
}

TEST_F(IndexRefusalTest, AShardIsAFileOfTheDirectory) {
  // The file is there, so only the rule refuses it.
  const std::string leaf =
      std::filesystem::path(dir_.path()).filename().string();
  using namespace std::string_literals;
  for (const std::string& shard :
       {"../" + leaf + "/s.safetensors", dir_.File("s.safetensors"),
        "./s.safetensors"s, "/s.safetensors"s, "x/../s.safetensors"s, "."s,
        ".."s, ""s, "s.safetensors\\u0000"s, "s.safetensors\\u0000.bin"s}) {
    ExpectRefused(R"({"weight_map":{"the tensor":")" + shard + "\"}}",
                  "the tensor");
  }
  for (const std::string shard :
       {"5", "null", "[]", "{}", "[\"s.safetensors\"]", "true"}) {
    ExpectRefused(R"({"weight_map":{"the tensor":)" + shard + "}}",
                  "the tensor");
  }
}

TEST_F(IndexRefusalTest, AMissingShardIsNotFound) {
  const auto model =
      Open(R"({"weight_map":{"a":"s.safetensors","b":"gone.safetensors"}})");
  EXPECT_THAT(model,
              HasStatus(absl::StatusCode::kNotFound, "gone.safetensors"));
}

TEST_F(IndexRefusalTest, ATensorMissingFromItsShardIsNotFound) {
  const auto model =
      Open(R"({"weight_map":{"a":"s.safetensors","b":"s.safetensors"}})");
  EXPECT_THAT(model, HasStatus(absl::StatusCode::kNotFound, "'b'"));
  EXPECT_THAT(model, HasStatus(absl::StatusCode::kNotFound, "s.safetensors"));
}

TEST_F(IndexRefusalTest, ALyingShardIsNamed) {
  WriteFile(dir_.File("t.safetensors"), "12345678");
  EXPECT_THAT(
      Open(R"({"weight_map":{"a":"s.safetensors","b":"t.safetensors"}})"),
      HasStatus(absl::StatusCode::kDataLoss, dir_.File("t.safetensors")));
}

}  // namespace
}  // namespace torpor::replay
