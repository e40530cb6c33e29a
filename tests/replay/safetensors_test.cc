// SPDX-License-Identifier: Apache-2.0
//
// Sound safetensors files: what was written is read back, alone and in shards.
// Files that lie: safetensors_refusal_test.cc.

#include "replay/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/replay/golden.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {
namespace {

using ::testing::ElementsAre;
using torpor::testing::HasStatus;
using torpor::testing::TempDir;

using Shape = std::vector<int64_t>;

class SafetensorsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(std::string_view header,
                                                        std::string_view data) {
    WriteFile(path_, RawFile(header, data));
    return SafetensorsFile::Open(path_);
  }

  TempDir dir_;
  const std::string path_ = dir_.File("a.safetensors");
};

TEST_F(SafetensorsTest, ReadsWhatTheHeaderSays) {
  const std::string data = SomeBytes(16 + 6 + 4);
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      Open(R"({"__metadata__":{"format":"pt","made by":"hand"},)"
           R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
           R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
           R"("s":{"dtype":"F32","shape":[],"data_offsets":[22,26]}})",
           data));
  ASSERT_EQ(file->tensors().size(), 3);
  const TensorView& w = file->tensors().at("w");
  EXPECT_EQ(w.dtype, "F32");
  EXPECT_EQ(w.shape, (Shape{2, 2}));
  EXPECT_EQ(Text(w.bytes), data.substr(0, 16));
  const TensorView& b = file->tensors().at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.shape, (Shape{3}));
  EXPECT_EQ(Text(b.bytes), data.substr(16, 6));
  const TensorView& s = file->tensors().at("s");
  EXPECT_EQ(s.shape, Shape());
  EXPECT_EQ(Text(s.bytes), data.substr(22));
  EXPECT_EQ(file->metadata(), (std::map<std::string, std::string>{
                                  {"format", "pt"}, {"made by", "hand"}}));
  EXPECT_EQ(Text(file->bytes()), ReadBack(path_));
  ExpectSound(*file);
}

TEST_F(SafetensorsTest, OrderInTheHeaderAndInTheDataMayDiffer) {
  const std::string data = SomeBytes(12);
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      Open(R"({"a":{"data_offsets":[8,12],"shape":[2],"dtype":"BF16"},)"
           R"("b":{"shape":[2],"dtype":"F32","data_offsets":[0,8]}})",
           data));
  EXPECT_EQ(Text(file->tensors().at("a").bytes), data.substr(8));
  EXPECT_EQ(Text(file->tensors().at("b").bytes), data.substr(0, 8));
}

TEST_F(SafetensorsTest, AnyHeaderLengthAndPaddingWillDo) {
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  for (size_t spaces = 0; spaces < 9; ++spaces) {
    ASSERT_OK_AND_ASSIGN(const auto file,
                         Open(header + std::string(spaces, ' '), SomeBytes(4)));
    EXPECT_EQ(Text(file->tensors().at("a").bytes), SomeBytes(4));
  }
}

TEST_F(SafetensorsTest, EmptyTensorsHaveAShapeAndNoBytes) {
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      Open(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
           R"("c":{"dtype":"F32","shape":[1000,0],"data_offsets":[4,4]},)"
           R"("d":{"dtype":"F32","shape":[0,1000],"data_offsets":[4,4]}})",
           SomeBytes(4)));
  EXPECT_EQ(file->tensors().at("c").shape, (Shape{1000, 0}));
  EXPECT_EQ(file->tensors().at("d").shape, (Shape{0, 1000}));
  EXPECT_TRUE(file->tensors().at("c").bytes.empty());
  EXPECT_EQ(Text(file->tensors().at("b").bytes), SomeBytes(4));
  ExpectSound(*file);
}

TEST_F(SafetensorsTest, AFileOfNoTensorsIsSound) {
  ASSERT_OK_AND_ASSIGN(const auto file, Open("{}", ""));
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_TRUE(file->metadata().empty());
}

TEST_F(SafetensorsTest, NamesAreAnyText) {
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      Open(R"({"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
           R"("\u00e9 \"\\":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},)"
           R"("../x":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
           "abc"));
  EXPECT_EQ(Text(file->tensors().at("").bytes), "a");
  EXPECT_EQ(Text(file->tensors().at("\u00e9 \"\\").bytes), "b");
  EXPECT_EQ(Text(file->tensors().at("../x").bytes), "c");
}

// Bits of an element as safetensors 0.8 has them; four-bit elements come in
// whole bytes only.
TEST_F(SafetensorsTest, EveryDtypeHasItsSize) {
  const std::map<std::string, size_t> bytes_of_four = {
      {"F64", 32},    {"I64", 32},    {"U64", 32}, {"F32", 16}, {"I32", 16},
      {"U32", 16},    {"F16", 8},     {"BF16", 8}, {"I16", 8},  {"U16", 8},
      {"F8_E4M3", 4}, {"F8_E5M2", 4}, {"I8", 4},   {"U8", 4},   {"BOOL", 4},
      {"F8_E8M0", 4}, {"F4", 2}};
  for (const auto& [dtype, bytes] : bytes_of_four) {
    const std::string entry =
        R"({"a":{"dtype":")" + dtype + R"(","shape":[2,2],"data_offsets":[0,)";
    EXPECT_OK(Open(entry + std::to_string(bytes) + "]}}", SomeBytes(bytes)))
        << dtype;
    for (const size_t wrong : {bytes - 1, bytes + 1}) {
      EXPECT_THAT(Open(entry + std::to_string(wrong) + "]}}", SomeBytes(wrong)),
                  HasStatus(absl::StatusCode::kDataLoss, "'a'"))
          << dtype;
    }
  }
  EXPECT_THAT(
      Open(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", "x"),
      HasStatus(absl::StatusCode::kDataLoss, "'a'"));
}

class ModelTensorsTest : public ::testing::Test {
 protected:
  void Shard(const std::string& name, const std::string& tensor,
             const std::string& bytes) {
    WriteFile(
        dir_.File(name),
        RawFile(R"({")" + tensor + R"(":{"dtype":"U8","shape":[)" +
                    std::to_string(bytes.size()) + R"(],"data_offsets":[0,)" +
                    std::to_string(bytes.size()) + "]}}",
                bytes));
  }
  void Index(const std::string& text) {
    WriteFile(dir_.File("model.safetensors.index.json"), text);
  }

  TempDir dir_;
};

TEST_F(ModelTensorsTest, OneFileNeedsNoIndex) {
  Shard("model.safetensors", "a", "xyz");
  ASSERT_OK_AND_ASSIGN(const ModelTensors tensors,
                       ModelTensors::Open(dir_.path()));
  EXPECT_TRUE(tensors.Has("a"));
  EXPECT_FALSE(tensors.Has("b"));
  EXPECT_EQ(tensors.tensors().size(), 1);
  ASSERT_OK_AND_ASSIGN(const TensorView view, tensors.Get("a"));
  EXPECT_EQ(Text(view.bytes), "xyz");
  EXPECT_THAT(tensors.Get("b"), HasStatus(absl::StatusCode::kNotFound, "'b'"));
}

TEST_F(ModelTensorsTest, AnIndexJoinsItsShards) {
  Shard("m-1.safetensors", "a", "one");
  Shard("m-2.safetensors", "b", "two");
  // Not named by the index, so not part of the model.
  Shard("model.safetensors", "c", "three");
  Index(R"({"metadata":{"total_size":6},"weight_map":)"
        R"({"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(ModelTensors tensors, ModelTensors::Open(dir_.path()));
  // Views outlive a move of what maps them.
  const ModelTensors moved = std::move(tensors);
  ASSERT_EQ(moved.tensors().size(), 2);
  EXPECT_EQ(Text(moved.Get("a")->bytes), "one");
  EXPECT_EQ(Text(moved.Get("b")->bytes), "two");
}

TEST_F(ModelTensorsTest, OfATensorInTwoShardsTheIndexChooses) {
  Shard("m-1.safetensors", "a", "one");
  Shard("m-2.safetensors", "a", "two");
  for (const char* chosen : {"1", "2"}) {
    Index(std::string(R"({"weight_map":{"a":"m-)") + chosen +
          R"(.safetensors"}})");
    ASSERT_OK_AND_ASSIGN(const ModelTensors tensors,
                         ModelTensors::Open(dir_.path()));
    EXPECT_EQ(Text(tensors.Get("a")->bytes),
              std::string(chosen) == "1" ? "one" : "two");
  }
}

// Hugging Face's cache keeps links to files elsewhere.
TEST_F(ModelTensorsTest, AShardMayBeASymbolicLink) {
  const TempDir elsewhere;
  Shard("m-1.safetensors", "a", "one");
  std::filesystem::rename(dir_.File("m-1.safetensors"), elsewhere.File("blob"));
  std::filesystem::create_symlink(elsewhere.File("blob"),
                                  dir_.File("m-1.safetensors"));
  Index(R"({"weight_map":{"a":"m-1.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const ModelTensors tensors,
                       ModelTensors::Open(dir_.path()));
  EXPECT_EQ(Text(tensors.Get("a")->bytes), "one");
}

TEST(WriteSafetensorsTest, WritesWhatTheReaderReads) {
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  const std::string a = SomeBytes(24);
  const std::string b = SomeBytes(6, 99);
  const auto bytes = [](const std::string& s) {
    return std::span(reinterpret_cast<const uint8_t*>(s.data()), s.size());
  };
  // The second before the first by name: the order given is kept.
  ASSERT_OK(WriteSafetensors(path,
                             {{"z", "F32", {2, 3}, bytes(a)},
                              {"a", "BF16", {3}, bytes(b)},
                              {"none", "F32", {0, 4}, {}}},
                             {{"first_row", "17"}}));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  ExpectSound(*file);
  EXPECT_EQ(file->metadata().at("first_row"), "17");
  EXPECT_EQ(file->tensors().at("z").shape, (Shape{2, 3}));
  EXPECT_EQ(Text(file->tensors().at("z").bytes), a);
  EXPECT_EQ(file->tensors().at("a").dtype, "BF16");
  EXPECT_EQ(Text(file->tensors().at("a").bytes), b);
  EXPECT_EQ(file->tensors().at("none").shape, (Shape{0, 4}));

  const std::string raw = ReadBack(path);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) {
    header_bytes = header_bytes << 8 | static_cast<uint8_t>(raw[i]);
  }
  EXPECT_EQ(header_bytes % 8, 0);
  EXPECT_EQ(raw.substr(8 + header_bytes), a + b);
  const auto header = nlohmann::json::parse(raw.substr(8, header_bytes));
  EXPECT_THAT(header["z"]["data_offsets"], ElementsAre(0, 24));
  EXPECT_THAT(header["a"]["data_offsets"], ElementsAre(24, 30));
}

TEST(WriteSafetensorsTest, WithoutMetadataThereIsNone) {
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  ASSERT_OK(WriteSafetensors(path, {}, {}));
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_TRUE(file->tensors().empty());
}

TEST(WriteSafetensorsTest, AReaderOfTheOldFileKeepsIt) {
  const TempDir dir;
  const std::string path = dir.File("out.safetensors");
  const std::vector<uint8_t> old_bytes(8, 1);
  const std::vector<uint8_t> new_bytes(8, 2);
  ASSERT_OK(WriteSafetensors(path, {{"a", "U8", {8}, old_bytes}}, {}));
  ASSERT_OK_AND_ASSIGN(const auto old_file, SafetensorsFile::Open(path));
  ASSERT_OK(WriteSafetensors(path, {{"a", "U8", {8}, new_bytes}}, {}));
  ASSERT_OK_AND_ASSIGN(const auto new_file, SafetensorsFile::Open(path));
  EXPECT_EQ(Text(old_file->tensors().at("a").bytes), std::string(8, '\1'));
  EXPECT_EQ(Text(new_file->tensors().at("a").bytes), std::string(8, '\2'));
}

TEST(WriteSafetensorsTest, AFailureNamesThePathAndLeavesNothing) {
  const TempDir dir;
  const std::vector<uint8_t> bytes(8, 1);
  const std::string nowhere = dir.File("no/such/out.safetensors");
  const absl::Status absent =
      WriteSafetensors(nowhere, {{"a", "U8", {8}, bytes}}, {});
  EXPECT_FALSE(absent.ok());
  EXPECT_THAT(std::string(absent.message()), ::testing::HasSubstr(nowhere));
  // The name is taken by a directory that is not empty.
  const std::string taken = dir.File("taken");
  std::filesystem::create_directories(taken + "/x");
  const absl::Status failed =
      WriteSafetensors(taken, {{"a", "U8", {8}, bytes}}, {});
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr(taken));
  EXPECT_FALSE(std::filesystem::exists(taken + ".tmp"));
}

class DigestTensorsTest : public ::testing::Test {
 protected:
  DigestTensorsTest() {
    for (int i = 1; i < 7; ++i) b_.push_back(static_cast<uint8_t>(i));
    for (int i = 100; i < 116; ++i) a_.push_back(static_cast<uint8_t>(i));
    for (int i = 200; i < 204; ++i) s_.push_back(static_cast<uint8_t>(i));
    tensors_["b.bias"] = {"BF16", {3}, b_};
    tensors_["a.weight"] = {"F32", {2, 2}, a_};
    tensors_["scalar"] = {"F32", {}, s_};
    tensors_["empty"] = {"F32", {5, 0}, {}};
  }

  std::vector<uint8_t> a_;
  std::vector<uint8_t> b_;
  std::vector<uint8_t> s_;
  std::map<std::string, TensorView> tensors_;
};

TEST_F(DigestTensorsTest, IsThatOfAnotherImplementation) {
  EXPECT_EQ(DigestTensors(tensors_), Golden("weights"));
}

TEST_F(DigestTensorsTest, EachPropertyOfATensorChangesIt) {
  const std::string digest = DigestTensors(tensors_);
  auto changed = tensors_;
  changed["a.weight"].dtype = "I32";
  EXPECT_NE(DigestTensors(changed), digest);
  changed = tensors_;
  changed["a.weight"].shape = {4};
  EXPECT_NE(DigestTensors(changed), digest);
  changed = tensors_;
  changed["empty"].shape = {0, 5};
  EXPECT_NE(DigestTensors(changed), digest);
  changed = tensors_;
  changed.erase("empty");
  EXPECT_NE(DigestTensors(changed), digest);
  changed = tensors_;
  auto node = changed.extract("scalar");
  node.key() = "scalar2";
  changed.insert(std::move(node));
  EXPECT_NE(DigestTensors(changed), digest);
  for (std::vector<uint8_t>* bytes : {&a_, &b_, &s_}) {
    for (uint8_t& byte : *bytes) {
      byte ^= 0x80;
      EXPECT_NE(DigestTensors(tensors_), digest);
      byte ^= 0x80;
    }
  }
  EXPECT_EQ(DigestTensors(tensors_), digest);
}

TEST_F(DigestTensorsTest, IsTheSameHoweverTheTensorsAreSharded) {
  const TempDir one;
  const TempDir two;
  const auto to_write = [&](const std::string& name) {
    const TensorView& view = tensors_.at(name);
    return TensorToWrite{name, view.dtype, view.shape, view.bytes};
  };
  ASSERT_OK(WriteSafetensors(one.File("model.safetensors"),
                             {to_write("scalar"), to_write("a.weight"),
                              to_write("b.bias"), to_write("empty")},
                             {{"format", "pt"}}));
  ASSERT_OK(WriteSafetensors(two.File("x.safetensors"),
                             {to_write("b.bias"), to_write("empty")}, {}));
  ASSERT_OK(WriteSafetensors(two.File("y.safetensors"),
                             {to_write("a.weight"), to_write("scalar")}, {}));
  WriteFile(two.File("model.safetensors.index.json"),
            R"({"weight_map":{"b.bias":"x.safetensors",)"
            R"("empty":"x.safetensors","a.weight":"y.safetensors",)"
            R"("scalar":"y.safetensors"}})");
  ASSERT_OK_AND_ASSIGN(const ModelTensors whole,
                       ModelTensors::Open(one.path()));
  ASSERT_OK_AND_ASSIGN(const ModelTensors shards,
                       ModelTensors::Open(two.path()));
  EXPECT_EQ(DigestTensors(whole.tensors()), Golden("weights"));
  EXPECT_EQ(DigestTensors(shards.tensors()), Golden("weights"));
}

}  // namespace
}  // namespace torpor::replay
