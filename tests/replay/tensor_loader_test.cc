// SPDX-License-Identifier: Apache-2.0
//
// Tensors by name: what is found under which prefix, in which order and dtype,
// and how a file that lacks one, or has another, is refused.

#include "replay/tensor_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/bf16.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {
namespace {

using kernels::DType;
using ::testing::ElementsAre;
using torpor::testing::HasCode;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

std::vector<uint8_t> AsF32(const std::vector<float>& x) {
  std::vector<uint8_t> bytes(x.size() * sizeof(float));
  std::memcpy(bytes.data(), x.data(), bytes.size());
  return bytes;
}

std::vector<uint8_t> AsBf16(const std::vector<float>& x) {
  std::vector<uint8_t> bytes;
  for (const float v : x) {
    const uint16_t bits = kernels::ToBf16(v).bits;
    bytes.push_back(static_cast<uint8_t>(bits));
    bytes.push_back(static_cast<uint8_t>(bits >> 8));
  }
  return bytes;
}

class TensorLoaderTest : public ::testing::Test {
 protected:
  void Add(const std::string& name, const std::string& dtype,
           std::vector<int64_t> shape, std::vector<uint8_t> bytes) {
    bytes_.push_back(std::move(bytes));
    names_.push_back({name, dtype, std::move(shape), {}});
  }
  void AddF32(const std::string& name, std::vector<int64_t> shape,
              const std::vector<float>& x) {
    Add(name, "F32", std::move(shape), AsF32(x));
  }

  // Of all tensors added.
  ModelTensors Written() {
    std::vector<TensorToWrite> tensors = names_;
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].bytes = bytes_[i];
    EXPECT_OK(WriteSafetensors(temp_.File("model.safetensors"), tensors, {}));
    auto read = ModelTensors::Open(temp_.path());
    EXPECT_OK(read.status());
    return *std::move(read);
  }

 private:
  testing::TempDir temp_;
  std::vector<TensorToWrite> names_;
  std::vector<std::vector<uint8_t>> bytes_;
};

TEST_F(TensorLoaderTest, TheFirstPrefixThatHasTheNameCounts) {
  AddF32("model.embed.weight", {1}, {1});
  AddF32("language_model.model.embed.weight", {1}, {2});
  const ModelTensors tensors = Written();
  constexpr const char* kPrefixes[] = {"", "model.", "language_model.model."};
  ASSERT_OK_AND_ASSIGN(const std::string prefix,
                       FindPrefix(tensors, kPrefixes, "embed.weight"));
  EXPECT_EQ(prefix, "model.");
  TensorLoader loader(tensors, prefix);
  EXPECT_TRUE(loader.Has("embed.weight"));
  EXPECT_FALSE(loader.Has("model.embed.weight"));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> got,
                       loader.Vector("embed.weight", 1));
  EXPECT_THAT(got, ElementsAre(1));
  EXPECT_THAT(FindPrefix(tensors, kPrefixes, "head.weight"),
              HasStatus(kNotFound,
                        "tensor 'head.weight': not among the "
                        "weights under any known prefix"));
}

TEST_F(TensorLoaderTest, RenamedTensorsStandOutsideThePrefix) {
  AddF32("lm_head.weight", {1, 2}, {3, 4});
  AddF32("model.norm.weight", {1}, {5});
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "model.");
  EXPECT_FALSE(loader.Has("head.weight"));
  loader.Rename("head.weight", "lm_head.weight");
  EXPECT_TRUE(loader.Has("head.weight"));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> head,
                       loader.Table("head.weight", 1, 2));
  EXPECT_THAT(head, ElementsAre(3, 4));
  // Errors name what the file would have to hold.
  EXPECT_THAT(loader.Table("head.weight", 2, 2),
              HasStatus(kInvalid, "tensor 'lm_head.weight'"));
}

TEST_F(TensorLoaderTest, WhatIsMissingIsNamed) {
  AddF32("model.norm.weight", {2}, {1, 2});
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "model.");
  const std::string text = "tensor 'model.x.weight': not among the weights";
  EXPECT_THAT(loader.Get("x.weight", {2}), HasStatus(kNotFound, text));
  EXPECT_THAT(loader.Vector("x.weight", 2), HasStatus(kNotFound, text));
  EXPECT_THAT(loader.Table("x.weight", 1, 2), HasStatus(kNotFound, text));
  EXPECT_THAT(loader.DTypeNamed("x.weight"), HasStatus(kNotFound, text));
  EXPECT_THAT(loader.ShapeNamed("x.weight"), HasStatus(kNotFound, text));
  EXPECT_THAT(loader.Matrix({{"x", 1}}, 2, DType::kF32),
              HasStatus(kNotFound, text));
  EXPECT_THAT(loader.Bias({{"x", 1}}),
              HasStatus(kNotFound, "tensor 'model.x.bias'"));
}

TEST_F(TensorLoaderTest, AnotherShapeIsNamedWithBoth) {
  AddF32("m.a.weight", {2, 3}, std::vector<float>(6));
  AddF32("m.scalar", {}, {1});
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "m.");
  EXPECT_THAT(
      loader.Get("a.weight", {3, 2}),
      HasStatus(kInvalid,
                "tensor 'm.a.weight': got shape [2, 3], wanted [3, 2]"));
  EXPECT_THAT(loader.Vector("a.weight", 6),
              HasStatus(kInvalid, "got shape [2, 3], wanted [6]"));
  EXPECT_THAT(loader.Get("a.weight", {2, 3, 1}),
              HasStatus(kInvalid, "wanted [2, 3, 1]"));
  EXPECT_THAT(loader.Vector("scalar", 1),
              HasStatus(kInvalid, "got shape [], wanted [1]"));
  EXPECT_THAT(loader.Matrix({{"a", 2}}, 4, DType::kF32),
              HasStatus(kInvalid, "got shape [2, 3], wanted [2, 4]"));
  EXPECT_OK(loader.Get("a.weight", {2, 3}).status());
  ASSERT_OK_AND_ASSIGN(const std::vector<int64_t> shape,
                       loader.ShapeNamed("a.weight"));
  EXPECT_THAT(shape, ElementsAre(2, 3));
}

// A matrix is checked in all its parts before memory is taken for it: this one
// would be larger than any machine's.
TEST_F(TensorLoaderTest, MatricesAreCheckedBeforeMemoryIsTaken) {
  AddF32("a.weight", {2, 2}, std::vector<float>(4));
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "");
  EXPECT_THAT(
      loader.Matrix({{"a", 2}, {"b", int64_t{1} << 50}}, 2, DType::kF32),
      HasStatus(kNotFound, "tensor 'b.weight'"));
  EXPECT_THAT(loader.Matrix({{"a", int64_t{1} << 50}}, 2, DType::kF32),
              HasStatus(kInvalid, "wanted [1125899906842624, 2]"));
}

TEST_F(TensorLoaderTest, AnotherDtypeIsNamedWithThoseWanted) {
  Add("half", "F16", {2}, std::vector<uint8_t>(4));
  Add("codes", "F8_E4M3", {2}, std::vector<uint8_t>(2));
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "");
  EXPECT_THAT(
      loader.Vector("half", 2),
      HasStatus(kInvalid, "tensor 'half': got dtype F16, wanted BF16 or F32"));
  EXPECT_THAT(loader.Get("codes", {2}, {"U8"}),
              HasStatus(kInvalid, "got dtype F8_E4M3, wanted U8"));
  EXPECT_OK(loader.Get("codes", {2}, {"F8_E4M3", "U8"}).status());
  ASSERT_OK_AND_ASSIGN(const std::string dtype, loader.DTypeNamed("half"));
  EXPECT_EQ(dtype, "F16");
}

TEST_F(TensorLoaderTest, BothDtypesGiveFloats) {
  const std::vector<float> x = {1.5f, -2, 0.25f, 3, 1e-3f, -7};
  AddF32("f32", {2, 3}, x);
  Add("bf16", "BF16", {2, 3}, AsBf16(x));
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "");
  ASSERT_OK_AND_ASSIGN(const std::vector<float> f32, loader.Table("f32", 2, 3));
  EXPECT_TRUE(kernels::SameBits(f32, x));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> bf16,
                       loader.Table("bf16", 2, 3));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(bf16[i], kernels::ToFloat(kernels::ToBf16(x[i])));
  }
  for (const char* name : {"f32", "bf16"}) {
    ASSERT_OK_AND_ASSIGN(const TensorView view, loader.Get(name, {2, 3}));
    std::vector<float> row(3);
    ReadRow(view, 1, row);
    EXPECT_EQ(row[0], 3);
    EXPECT_EQ(row[2], -7);
  }
}

TEST_F(TensorLoaderTest, PartsOfAMatrixStandInOrder) {
  const std::vector<float> up = {1, 2, 3, 4};
  const std::vector<float> down = {5, 6};
  AddF32("up.weight", {2, 2}, up);
  Add("down.weight", "BF16", {1, 2}, AsBf16(down));
  AddF32("up.bias", {2}, {10, 20});
  AddF32("down.bias", {1}, {30});
  const ModelTensors tensors = Written();
  TensorLoader loader(tensors, "");
  const std::vector<TensorLoader::Part> parts = {{"up", 2}, {"down", 1}};
  ASSERT_OK_AND_ASSIGN(const kernels::PackedMatrix got,
                       loader.Matrix(parts, 2, DType::kF32));
  const std::vector<float> all = {1, 2, 3, 4, 5, 6};
  const auto wanted =
      kernels::PackedMatrix::Pack(all.data(), 3, 2, DType::kF32);
  ASSERT_EQ(got.n(), 3);
  ASSERT_EQ(got.bytes(), wanted.bytes());
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.bytes()), 0);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> bias, loader.Bias(parts));
  EXPECT_THAT(bias, ElementsAre(10, 20, 30));
  EXPECT_THAT(loader.Bias({{"up", 3}}),
              HasStatus(kInvalid, "tensor 'up.bias': got shape [2]"));
}

// The digest is of what was read, under its own names: neither the prefix nor
// a tensor that no one asked for changes it.
TEST_F(TensorLoaderTest, TheDigestIsOfWhatWasRead) {
  AddF32("a", {1}, {1});
  AddF32("b", {1}, {2});
  AddF32("model.a", {1}, {1});
  AddF32("model.b", {1}, {3});
  const ModelTensors tensors = Written();
  const auto digest_of = [&](const std::string& prefix,
                             const std::vector<std::string>& names) {
    TensorLoader loader(tensors, prefix);
    for (const std::string& name : names) {
      EXPECT_OK(loader.Get(name, {1}).status());
      // What is refused was not read.
      EXPECT_THAT(loader.Get(name, {2}), HasCode(kInvalid));
    }
    return loader.Digest();
  };
  EXPECT_EQ(digest_of("", {"a"}), digest_of("model.", {"a"}));
  EXPECT_EQ(digest_of("", {"a", "b"}), digest_of("", {"b", "a", "b"}));
  EXPECT_NE(digest_of("", {"a"}), digest_of("", {"a", "b"}));
  EXPECT_NE(digest_of("", {"a", "b"}), digest_of("model.", {"a", "b"}));
}

TEST_F(TensorLoaderTest, DtypesByName) {
  AddF32("f32", {1}, {1});
  Add("bf16", "BF16", {1}, AsBf16({1}));
  const ModelTensors tensors = Written();
  ASSERT_OK_AND_ASSIGN(DType dtype, DTypeOf(tensors, "bf16"));
  EXPECT_EQ(dtype, DType::kBf16);
  ASSERT_OK_AND_ASSIGN(dtype, DTypeOf(tensors, "f32"));
  EXPECT_EQ(dtype, DType::kF32);
  EXPECT_THAT(DTypeOf(tensors, "f64"), HasStatus(kNotFound, "'f64'"));
  for (const DType native : {DType::kF32, DType::kBf16}) {
    EXPECT_EQ(*PickDType("native", native, "x"), native);
    EXPECT_EQ(*PickDType("f32", native, "x"), DType::kF32);
    EXPECT_EQ(*PickDType("bf16", native, "x"), DType::kBf16);
    EXPECT_EQ(*PickDType(DTypeName(native), DType::kF32, "x"), native);
  }
  EXPECT_THAT(PickDType("f16", DType::kF32, "compute dtype"),
              HasStatus(kInvalid,
                        "compute dtype: got 'f16', wanted native, "
                        "bf16 or f32"));
}

}  // namespace
}  // namespace torpor::replay
