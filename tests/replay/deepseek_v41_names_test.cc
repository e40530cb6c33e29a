// SPDX-License-Identifier: Apache-2.0
//
// The same weights under the names of the release and of transformers: the
// tiny model "plain" with the names in its header rewritten.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/kernels/kernel_testing.h"
#include "tests/replay/deepseek_v41_fixture.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using nlohmann::json;
using torpor::testing::HasStatus;

// The name that a tensor gets; empty leaves its old one.
using Renaming = std::function<std::string(const std::string& name)>;

// The bytes of a safetensors file with other names; its data stay.
std::string Renamed(const std::string& bytes, const Renaming& renaming) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  }
  const json old = json::parse(bytes.substr(8, length));
  json header = json::object();
  for (const auto& [name, entry] : old.items()) {
    header[name == "__metadata__" ? name : renaming(name)] = entry;
  }
  return RawFile(header.dump(), bytes.substr(8 + length));
}

class DeepSeekV41NamesTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DeepSeekV41>> LoadRenamed(
      const Renaming& renaming) {
    const std::string from = CaseDirectory("plain");
    for (const char* name : {"config.json", "engram.json"}) {
      std::filesystem::copy_file(
          from + "/" + name, temp_.File(name),
          std::filesystem::copy_options::overwrite_existing);
    }
    // Never in place: a model that was loaded reads its file.
    std::filesystem::remove(temp_.File("model.safetensors"));
    WriteFile(temp_.File("model.safetensors"),
              Renamed(ReadBack(from + "/model.safetensors"), renaming));
    return LoadDeepSeekV41(
        temp_.path(), ReadBack(temp_.File("config.json")),
        {.isa = kernels::AvailableIsas().back(), .compute_dtype = "f32"});
  }

  std::vector<float> LogitsOf(DeepSeekV41* model) const {
    const std::vector<uint32_t> ids =
        IdsOf(Numbers(CaseDirectory("plain") + "/expected.safetensors"));
    TestSession session(model);
    auto logits = session.Run(ids, ids.size());
    EXPECT_OK(logits.status());
    return *std::move(logits);
  }

  testing::TempDir temp_;
};

TEST_F(DeepSeekV41NamesTest, TransformersNamesAreTheSameModel) {
  const auto plain = LoadCase("plain", kernels::AvailableIsas().back());
  const std::vector<float> wanted = LogitsOf(plain.get());
  for (const std::string prefix :
       {"model.", "model.language_model.", "language_model.model."}) {
    SCOPED_TRACE(prefix);
    for (const bool head_outside : {true, false}) {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeepSeekV41> model,
                           LoadRenamed([&](const std::string& name) {
                             if (name != "head.weight" || !head_outside)
                               return prefix + name;
                             return std::string("lm_head.weight");
                           }));
      EXPECT_TRUE(kernels::SameBits(LogitsOf(model.get()), wanted));
      // KV of one may be read under the other.
      EXPECT_EQ(model->fingerprint().weights, plain->fingerprint().weights);
    }
  }
}

TEST_F(DeepSeekV41NamesTest, AMissingTensorIsNamedAsTheFileWouldHaveIt) {
  const auto without = [](const std::string& missing,
                          const std::string& prefix) {
    return [=](const std::string& name) {
      return name == missing ? "other" : prefix + name;
    };
  };
  const struct {
    const char* missing;
    const char* prefix;
    const char* named;
  } kCases[] = {{"norm.weight", "", "'norm.weight'"},
                {"norm.weight", "model.", "'model.norm.weight'"},
                {"layers.5.attn.compressor.wgate.weight", "model.",
                 "'model.layers.5.attn.compressor.wgate.weight'"},
                {"layers.9.attn.indexer.wq_b.weight", "",
                 "'layers.9.attn.indexer.wq_b.weight'"},
                {"layers.1.engram.k_weight", "model.",
                 "'model.layers.1.engram.k_weight'"},
                {"layers.3.ffn.experts.7.w3.weight", "model.",
                 "'model.layers.3.ffn.experts.7.w3.weight'"},
                {"layers.0.hc_ffn_scale", "", "'layers.0.hc_ffn_scale'"},
                {"head.weight", "model.", "'lm_head.weight'"},
                {"head.weight", "", "'lm_head.weight'"},
                {"embed.weight", "model.", "'embed.weight'"}};
  for (const auto& c : kCases) {
    EXPECT_THAT(LoadRenamed(without(c.missing, c.prefix)),
                HasStatus(absl::StatusCode::kNotFound,
                          "tensor " + std::string(c.named)))
        << c.missing;
  }
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
