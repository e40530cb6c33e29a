// SPDX-License-Identifier: Apache-2.0
//
// The built-in Gemma 3 against numbers that transformers made
// (tests/oracles/gemma3): logits and every layer's K and V of cold runs,
// windows and logits after exact and bounded replays.

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/safetensors.h"
#include "tests/kernels/kernel_testing.h"
#include "tests/replay/model_testing.h"

namespace torpor::replay {
namespace {

using kernels::Isa;
using nlohmann::json;

// Within 1e-4 of the largest value of each tensor row.
constexpr double kTolerance = 1e-4;

std::vector<float> Floats(std::span<const uint8_t> bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : directory_(std::string(TORPOR_ORACLES_DIR) + "/gemma3/" + name) {
    auto file = SafetensorsFile::Open(directory_ + "/fixture.safetensors");
    EXPECT_OK(file.status());
    file_ = *std::move(file);
    for (const char* key : {"N", "cuts", "sliding_layers", "full_layers"}) {
      lists_[key] =
          json::parse(file_->metadata().at(key)).get<std::vector<uint64_t>>();
    }
    replays_ = json::parse(file_->metadata().at("replays"));
    const auto& tokens = file_->tensors().at("tokens");
    ids_.resize(tokens.bytes.size() / 4);
    std::memcpy(ids_.data(), tokens.bytes.data(), tokens.bytes.size());
  }

  std::vector<float> Get(const std::string& name) const {
    return Floats(file_->tensors().at(name).bytes);
  }
  size_t RowElements(const std::string& name) const {
    const TensorView& view = file_->tensors().at(name);
    return view.bytes.size() / 4 / static_cast<size_t>(view.shape[0]);
  }
  // The tensor, row by row, within the tolerance.
  void Expect(const std::string& name, std::span<const float> got) const {
    const std::vector<float> wanted = Get(name);
    const size_t row = RowElements(name);
    ASSERT_EQ(got.size(), wanted.size()) << name;
    for (size_t at = 0; at < wanted.size(); at += row) {
      ASSERT_TRUE(kernels::Near(got.subspan(at, row),
                                std::span(wanted).subspan(at, row), kTolerance))
          << name << " row " << at / row;
    }
  }

  std::unique_ptr<Model> Load(Isa isa, int threads) const {
    auto model = LoadModel(directory_, {.isa = isa,
                                        .n_threads = threads,
                                        .compute_dtype = "f32",
                                        .kv_dtype = "f32"});
    EXPECT_OK(model.status());
    return model.ok() ? *std::move(model) : nullptr;
  }

  const std::vector<uint64_t>& list(const char* key) const {
    return lists_.at(key);
  }
  const json& replays() const { return replays_; }
  const std::vector<uint32_t>& ids() const { return ids_; }

 private:
  const std::string directory_;
  std::unique_ptr<SafetensorsFile> file_;
  std::map<std::string, std::vector<uint64_t>> lists_;
  json replays_;
  std::vector<uint32_t> ids_;
};

std::vector<float> ExportFloats(const Model& model, const Sequence& sequence,
                                uint32_t slot, Rows rows) {
  std::vector<uint8_t> bytes(rows.size() *
                             model.layout().slots[slot].row_bytes);
  EXPECT_OK(sequence.ExportRows(slot, rows, bytes));
  return Floats(bytes);
}

class Gemma3OracleTest
    : public ::testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  Gemma3OracleTest()
      : fixture_(std::get<0>(GetParam())),
        model_(fixture_.Load(std::get<1>(GetParam()), 2)) {}

  Fixture fixture_;
  std::unique_ptr<Model> model_;
};

INSTANTIATE_TEST_SUITE_P(
    Models, Gemma3OracleTest,
    ::testing::Combine(::testing::Values("w8", "w7", "w5", "w8nested",
                                         "pattern"),
                       ::testing::ValuesIn(kernels::AvailableIsas())),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) + "_" +
             std::string(kernels::IsaName(std::get<1>(info.param)));
    });

TEST_P(Gemma3OracleTest, LayersAreWhatTheOracleSays) {
  for (const Slot& slot : model_->layout().slots) {
    const auto& full = fixture_.list("full_layers");
    const bool is_full =
        std::find(full.begin(), full.end(), slot.owner_layer) != full.end();
    EXPECT_EQ(slot.kind, is_full ? SlotKind::kFull : SlotKind::kSliding);
  }
}

TEST_P(Gemma3OracleTest, ColdRunsAgree) {
  for (const uint64_t n : fixture_.list("N")) {
    TestSession session(model_.get());
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                         session.Run(std::span(fixture_.ids()).first(n), n));
    const std::string key = "cold." + std::to_string(n);
    fixture_.Expect(key + ".logits", logits);
    for (uint32_t l = 0; l < model_->layout().n_layers; ++l) {
      for (const auto& [part, slot] :
           {std::pair{".k.", 2 * l}, std::pair{".v.", 2 * l + 1}}) {
        fixture_.Expect(
            key + part + std::to_string(l),
            ExportFloats(*model_, *session.sequence(), slot, {0, n}));
      }
    }
  }
}

TEST_P(Gemma3OracleTest, ReplaysAgree) {
  ASSERT_FALSE(fixture_.replays().empty());
  TestSession whole(model_.get());
  ASSERT_OK(whole.Run(fixture_.ids(), 0).status());
  ASSERT_OK_AND_ASSIGN(MemoryRows rows, whole.Compact());
  for (const json& replay : fixture_.replays()) {
    const std::string key = replay["key"];
    const uint64_t cut = replay["H"];
    const bool bounded = replay["kind"] == "bounded";
    ASSERT_OK_AND_ASSIGN(
        const ReplayPlan plan,
        Plan(*model_, cut, bounded ? ReplayMode::kBounded : ReplayMode::kExact,
             bounded ? std::max(replay["R"].get<uint64_t>(),
                                model_->layout().LargestWindow())
                     : 0));
    EXPECT_EQ(plan.exact, replay["equals_cold"].get<bool>()) << key;
    ASSERT_OK_AND_ASSIGN(
        TestSession woken,
        TestSession::Wake(model_.get(), fixture_.ids(), plan, &rows));
    for (const uint64_t l : fixture_.list("sliding_layers")) {
      for (const auto& [part, slot] :
           {std::pair{".k", 2 * l}, std::pair{".v", 2 * l + 1}}) {
        fixture_.Expect(
            key + ".window." + std::to_string(l) + part,
            ExportFloats(*model_, *woken.sequence(),
                         static_cast<uint32_t>(slot),
                         {replay["window_first_row"].get<uint64_t>(), cut}));
      }
    }
    const auto rest = std::span(fixture_.ids()).subspan(cut);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> logits,
                         woken.Run(rest, rest.size()));
    fixture_.Expect(key + ".logits", logits);
  }
}

// The other prefix that multimodal checkpoints use has as many letters: made by
// replacing it in the headers.
TEST(Gemma3PrefixTest, BothMultimodalPrefixesLoad) {
  const std::filesystem::path from =
      std::string(TORPOR_ORACLES_DIR) + "/gemma3/w8nested";
  const std::filesystem::path to =
      std::filesystem::path(::testing::TempDir()) / "torpor-prefix-test";
  std::filesystem::remove_all(to);
  std::filesystem::copy(from, to);
  const std::string old_prefix = "language_model.model.";
  const std::string new_prefix = "model.language_model.";
  for (const auto& file : std::filesystem::directory_iterator(to)) {
    std::ifstream in(file.path(), std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(in)), {});
    in.close();
    for (size_t at = 0; (at = text.find(old_prefix, at)) != std::string::npos;
         at += new_prefix.size()) {
      text.replace(at, old_prefix.size(), new_prefix);
    }
    std::ofstream(file.path(), std::ios::binary) << text;
  }
  const ModelOptions options{.compute_dtype = "f32", .kv_dtype = "f32"};
  ASSERT_OK_AND_ASSIGN(const auto a, LoadModel(from.string(), options));
  ASSERT_OK_AND_ASSIGN(const auto b, LoadModel(to.string(), options));
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
  std::vector<std::vector<float>> logits;
  for (Model* model : {a.get(), b.get()}) {
    TestSession session(model);
    const std::vector<uint32_t> ids = {1, 2, 3, 4};
    ASSERT_OK_AND_ASSIGN(auto out, session.Run(ids, 4));
    logits.push_back(out);
  }
  EXPECT_EQ(logits[0], logits[1]);
  std::filesystem::remove_all(to);
}

}  // namespace
}  // namespace torpor::replay
