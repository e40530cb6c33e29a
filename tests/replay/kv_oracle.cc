// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/kv_oracle.h"

#include <algorithm>
#include <cstring>

#include "replay/families.h"
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

std::vector<float> ExportFloats(const Model& model, const Sequence& sequence,
                                uint32_t slot, Rows rows) {
  std::vector<uint8_t> bytes(rows.size() *
                             model.layout().slots[slot].row_bytes);
  EXPECT_OK(sequence.ExportRows(slot, rows, bytes));
  return Floats(bytes);
}

}  // namespace

KvOracleFixture::KvOracleFixture(const std::string& name)
    : directory_(std::string(TORPOR_ORACLES_DIR) + "/" + name) {
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

void KvOracleFixture::Expect(const std::string& name,
                             std::span<const float> got) const {
  const TensorView& view = file_->tensors().at(name);
  const std::vector<float> wanted = Floats(view.bytes);
  const size_t row = wanted.size() / static_cast<size_t>(view.shape[0]);
  ASSERT_EQ(got.size(), wanted.size()) << name;
  for (size_t at = 0; at < wanted.size(); at += row) {
    ASSERT_TRUE(kernels::Near(got.subspan(at, row),
                              std::span(wanted).subspan(at, row), kTolerance))
        << name << " row " << at / row;
  }
}

std::unique_ptr<Model> KvOracleFixture::Load(Isa isa, int threads) const {
  auto model = LoadModel(directory_, {.isa = isa,
                                      .n_threads = threads,
                                      .compute_dtype = "f32",
                                      .kv_dtype = "f32"});
  EXPECT_OK(model.status());
  return model.ok() ? *std::move(model) : nullptr;
}

std::string KvOracleName(
    const ::testing::TestParamInfo<KvOracleTest::ParamType>& info) {
  const std::string path = std::get<0>(info.param);
  return path.substr(path.rfind('/') + 1) + "_" +
         std::string(kernels::IsaName(std::get<1>(info.param)));
}

TEST_P(KvOracleTest, LayersAreWhatTheOracleSays) {
  for (const Slot& slot : model_->layout().slots) {
    const auto& full = fixture_.list("full_layers");
    const bool is_full =
        std::find(full.begin(), full.end(), slot.owner_layer) != full.end();
    EXPECT_EQ(slot.kind, is_full ? SlotKind::kFull : SlotKind::kSliding);
  }
}

TEST_P(KvOracleTest, ColdRunsAgree) {
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

TEST_P(KvOracleTest, ReplaysAgree) {
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

}  // namespace torpor::replay
