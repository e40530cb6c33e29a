// SPDX-License-Identifier: Apache-2.0
//
// From a config.json to a layout and its figures, which are worked out by hand
// here; and what LoadModel says of directories that are not whole.

#include "replay/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/safetensors.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using torpor::testing::HasStatus;
using torpor::testing::TempDir;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Gemma 3 270M: 18 layers, full ones 5, 11 and 17, one K and one V head of 256.
constexpr char kGemma270m[] = R"({
  "model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 640,
  "intermediate_size": 2048, "num_hidden_layers": 18,
  "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
  "sliding_window": 512, "_sliding_window_pattern": 6,
  "max_position_embeddings": 32768, "torch_dtype": "bfloat16"})";

// Gemma 3 4B, as its multimodal config has it: the rest are defaults.
constexpr char kGemma4b[] = R"({
  "model_type": "gemma3", "torch_dtype": "bfloat16",
  "text_config": {"model_type": "gemma3_text", "hidden_size": 2560,
    "intermediate_size": 10240, "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024},
  "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27}})";

// Gemma 3 27B: 62 layers, 16 K and V heads of 128.
constexpr char kGemma27b[] = R"({
  "model_type": "gemma3",
  "text_config": {"model_type": "gemma3_text", "head_dim": 128,
    "hidden_size": 5376, "intermediate_size": 21504,
    "num_attention_heads": 32, "num_hidden_layers": 62,
    "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}})";

TEST(FamiliesTest, TheLayoutOfGemma3NamesEveryRow) {
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       LayoutFromConfig(kGemma270m, {}));
  EXPECT_EQ(layout.family, "gemma3_text");
  EXPECT_EQ(layout.n_layers, 18);
  EXPECT_EQ(layout.vocab_size, 262'144);
  ASSERT_EQ(layout.slots.size(), 36);
  for (uint32_t s = 0; s < 36; ++s) {
    const uint32_t layer = s / 2;
    const bool is_full = layer == 5 || layer == 11 || layer == 17;
    Slot wanted;
    wanted.name = "layer." + std::to_string(layer) + (s % 2 == 0 ? ".k" : ".v");
    wanted.kind = is_full ? SlotKind::kFull : SlotKind::kSliding;
    wanted.owner_layer = layer;
    wanted.reader_layers = {layer};
    wanted.window = is_full ? 0 : 512;
    wanted.row_bytes = 256 * 2;
    wanted.format = "bf16";
    wanted.shard_axis = ShardAxis::kHeads;
    wanted.n_heads = 1;
    wanted.come_back = is_full ? ComeBack::kPersist : ComeBack::kReplay;
    EXPECT_EQ(layout.slots[s], wanted) << wanted.name;
  }
}

TEST(FamiliesTest, Gemma270mHasItsFigures) {
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       LayoutFromConfig(kGemma270m, {}));
  // A row of a layer is K and V of 256 bf16: 1,024 bytes.
  const LayoutFigures figures = FiguresOf(layout, 32'768);
  EXPECT_EQ(figures.compact_bytes_per_token, 3 * 1024);
  EXPECT_EQ(figures.all_window_bytes_per_token, 18 * 1024);
  EXPECT_DOUBLE_EQ(figures.ratio, 6.0);
  EXPECT_EQ(figures.snapshot_bytes, 15 * 511 * 1024);
  EXPECT_EQ(figures.bounded_tokens, 512);
  EXPECT_EQ(figures.exact_tokens, 15 * 511);
  // A layer runs 511 rows for each sliding layer above it: from layer 16 down
  // to 0 those are 0 to 5, 5 to 10 and 10 to 14 layers.
  EXPECT_EQ(figures.exact_token_layers,
            511 * ((0 + 1 + 2 + 3 + 4 + 5) + (5 + 6 + 7 + 8 + 9 + 10) +
                   (10 + 11 + 12 + 13 + 14)));
  // A session shorter than the window has a smaller snapshot.
  EXPECT_EQ(FiguresOf(layout, 100).snapshot_bytes, 15 * 100 * 1024);
}

TEST(FamiliesTest, NestedGemmasHaveTheirFigures) {
  ASSERT_OK_AND_ASSIGN(const ModelLayout four, LayoutFromConfig(kGemma4b, {}));
  const LayoutFigures of_four = FiguresOf(four, 131'072);
  EXPECT_EQ(of_four.compact_bytes_per_token, 20'480);
  EXPECT_EQ(of_four.all_window_bytes_per_token, 20'480 + 118'784);
  EXPECT_EQ(of_four.snapshot_bytes, uint64_t{1023} * 118'784);
  EXPECT_EQ(of_four.exact_tokens, 29'667);
  EXPECT_EQ(four.slots[0].n_heads, 4);
  // Without a dtype of its own, bf16.
  ASSERT_OK_AND_ASSIGN(const ModelLayout big, LayoutFromConfig(kGemma27b, {}));
  const LayoutFigures of_big = FiguresOf(big, 131'072);
  EXPECT_EQ(of_big.compact_bytes_per_token, 81'920);
  EXPECT_EQ(of_big.all_window_bytes_per_token, 81'920 + 425'984);
  EXPECT_NEAR(of_big.ratio, 6.20, 0.001);
  EXPECT_EQ(of_big.exact_tokens, 53'196);
  EXPECT_EQ(of_big.bounded_tokens, 1024);
}

TEST(FamiliesTest, AWindowOfAllPositionsIsNoWindow) {
  json config = json::parse(kGemma270m);
  config["max_position_embeddings"] = 512;
  ASSERT_OK_AND_ASSIGN(const ModelLayout whole,
                       LayoutFromConfig(config.dump(), {}));
  EXPECT_EQ(FiguresOf(whole, 512).compact_bytes_per_token, 18 * 1024);
  EXPECT_EQ(FiguresOf(whole, 512).exact_tokens, 0);
  config["max_position_embeddings"] = 513;
  ASSERT_OK_AND_ASSIGN(const ModelLayout one_more,
                       LayoutFromConfig(config.dump(), {}));
  EXPECT_EQ(FiguresOf(one_more, 513).compact_bytes_per_token, 3 * 1024);
}

TEST(FamiliesTest, TheKvDtypeIsTheConfigsOrTheCallers) {
  const auto row_bytes = [](const char* dtype, const std::string& asked) {
    json config = json::parse(kGemma270m);
    config.erase("torch_dtype");
    if (dtype != nullptr) config["dtype"] = dtype;
    const auto layout = LayoutFromConfig(config.dump(), {asked});
    EXPECT_OK(layout);
    return std::pair(layout->slots[0].row_bytes, layout->slots[0].format);
  };
  const std::pair<uint32_t, std::string> bf16(512, "bf16");
  const std::pair<uint32_t, std::string> f32(1024, "f32");
  EXPECT_EQ(row_bytes("bfloat16", "native"), bf16);
  EXPECT_EQ(row_bytes("float32", "native"), f32);
  EXPECT_EQ(row_bytes(nullptr, "native"), bf16);
  EXPECT_EQ(row_bytes("float32", "bf16"), bf16);
  EXPECT_EQ(row_bytes("bfloat16", "f32"), f32);
  EXPECT_EQ(row_bytes("float16", "bf16"), bf16);
  const std::pair<uint32_t, std::string> f16(512, "f16");
  EXPECT_EQ(row_bytes("float16", "native"), f16);
  EXPECT_EQ(row_bytes("bfloat16", "f16"), f16);
  json config = json::parse(kGemma270m);
  config["torch_dtype"] = "float8_e4m3fn";
  EXPECT_THAT(LayoutFromConfig(config.dump(), {}),
              HasStatus(kInvalid, "dtype"));
  EXPECT_THAT(LayoutFromConfig(config.dump(), {}),
              HasStatus(kInvalid, "float8_e4m3fn"));
  for (const char* asked : {"fp8", "", "BF16"}) {
    EXPECT_THAT(LayoutFromConfig(kGemma270m, {asked}),
                HasStatus(kInvalid, "kv dtype"))
        << asked;
  }
}

TEST(FamiliesTest, AnUnknownFamilyIsRefusedWithThoseThatAreKnown) {
  EXPECT_THAT(KnownFamilies(), Contains("gemma3_text"));
  EXPECT_THAT(RunnableFamilies(), Contains("gemma3_text"));
  for (const std::string& family : RunnableFamilies()) {
    EXPECT_THAT(KnownFamilies(), Contains(family));
  }
  const TempDir dir;
  for (const char* unknown :
       {"mamba", "gemma", "Gemma3_text", "gemma3_text ", ""}) {
    const std::string config = json{{"model_type", unknown}}.dump();
    WriteFile(dir.File("config.json"), config);
    for (const absl::Status& status : {LayoutFromConfig(config, {}).status(),
                                       LoadModel(dir.path(), {}).status()}) {
      EXPECT_THAT(status, HasStatus(absl::StatusCode::kUnimplemented,
                                    "'" + std::string(unknown) + "'"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("model_type"));
      for (const std::string& known : KnownFamilies()) {
        EXPECT_THAT(std::string(status.message()), HasSubstr(known));
      }
    }
  }
}

TEST(FamiliesTest, AConfigWithoutAFamilyIsRefused) {
  for (const char* config :
       {"{}", R"({"model_type":null})", R"({"model_type":5})",
        R"({"model_type":["gemma3_text"]})",
        R"({"architectures":["Gemma3ForCausalLM"]})"}) {
    EXPECT_THAT(LayoutFromConfig(config, {}),
                HasStatus(kInvalid, "'model_type'"))
        << config;
  }
  for (const char* config : {"", "[]", "gemma3_text", "{"}) {
    EXPECT_THAT(LayoutFromConfig(config, {}),
                HasStatus(kInvalid, "config.json"))
        << config;
  }
}

TEST(FamiliesTest, DeepNestingAnywhereIsRefused) {
  const std::string deep =
      std::string(1 << 20, '[') + std::string(1 << 20, ']');
  for (const char* key :
       {"model_type", "text_config", "hidden_size", "layer_types",
        "rope_parameters", "rope_scaling", "dtype", "unread"}) {
    std::string config = R"({"model_type":"gemma3_text",)";
    if (std::string(key) == "model_type") config = "{";
    config += "\"" + std::string(key) + "\":" + deep + "}";
    EXPECT_THAT(LayoutFromConfig(config, {}),
                HasStatus(kInvalid, "config.json"))
        << key;
  }
}

TEST(FamiliesTest, AWindowBeyondAnyLayoutNamesItsKey) {
  json config = json::parse(kGemma270m);
  config["sliding_window"] = int64_t{1} << 30;
  config["max_position_embeddings"] = int64_t{1} << 40;
  EXPECT_THAT(LayoutFromConfig(config.dump(), {}),
              HasStatus(kInvalid, "'sliding_window'"));
}

// A whole model of tests/oracles, then the same with one thing wrong.
class LoadModelTest : public ::testing::Test {
 protected:
  LoadModelTest() {
    for (const auto& entry : std::filesystem::directory_iterator(
             TORPOR_ORACLES_DIR "/gemma3/w8nested")) {
      std::filesystem::copy(entry.path(), dir_.path());
    }
  }
  absl::Status Load() { return LoadModel(dir_.path(), {}).status(); }
  std::string Shard(int i) {
    return dir_.File("model-0000" + std::to_string(i) +
                     "-of-00003.safetensors");
  }
  void EditConfig(const std::function<void(json*)>& edit) {
    json config = json::parse(ReadBack(dir_.File("config.json")));
    edit(&config);
    WriteFile(dir_.File("config.json"), config.dump());
  }

  TempDir dir_;
};

TEST_F(LoadModelTest, AWholeDirectoryLoads) {
  ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(dir_.path(), {}));
  ASSERT_OK_AND_ASSIGN(
      const ModelLayout layout,
      LayoutFromConfig(ReadBack(dir_.File("config.json")), {}));
  EXPECT_EQ(model->layout(), layout);
}

TEST_F(LoadModelTest, MissingFilesAreNamed) {
  const std::string absent = dir_.File("absent");
  EXPECT_THAT(LoadModel(absent, {}),
              HasStatus(absl::StatusCode::kNotFound, absent + "/config.json"));
  std::filesystem::remove(Shard(2));
  EXPECT_THAT(Load(), HasStatus(absl::StatusCode::kNotFound, Shard(2)));
  std::filesystem::remove(dir_.File("model.safetensors.index.json"));
  EXPECT_THAT(Load(), HasStatus(absl::StatusCode::kNotFound,
                                dir_.File("model.safetensors")));
  std::filesystem::remove(dir_.File("config.json"));
  EXPECT_THAT(Load(),
              HasStatus(absl::StatusCode::kNotFound, dir_.File("config.json")));
}

TEST_F(LoadModelTest, ACutShardIsDataLoss) {
  for (const uint64_t size : {std::filesystem::file_size(Shard(3)) - 1,
                              uint64_t{100}, uint64_t{7}, uint64_t{0}}) {
    std::filesystem::resize_file(Shard(3), size);
    EXPECT_THAT(Load(), HasStatus(absl::StatusCode::kDataLoss, Shard(3)))
        << size;
  }
}

TEST_F(LoadModelTest, ATensorThatIsNotThereIsNamed) {
  const std::string index_path = dir_.File("model.safetensors.index.json");
  json index = json::parse(ReadBack(index_path));
  std::string lost;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (name.ends_with("layers.2.mlp.down_proj.weight")) lost = name;
  }
  ASSERT_FALSE(lost.empty());
  index["weight_map"].erase(lost);
  WriteFile(index_path, index.dump());
  EXPECT_THAT(Load(), HasStatus(absl::StatusCode::kNotFound, lost));
}

TEST_F(LoadModelTest, AConfigOfOtherShapesNamesTheTensor) {
  EditConfig(
      [](json* config) { (*config)["text_config"]["vocab_size"] = 255; });
  EXPECT_THAT(Load(), HasStatus(kInvalid, "embed_tokens"));
  EditConfig([](json* config) {
    (*config)["text_config"]["vocab_size"] = 256;
    (*config)["text_config"]["intermediate_size"] = 126;
  });
  EXPECT_THAT(Load(), HasStatus(kInvalid, "mlp"));
}

// Memory is taken after the shape was checked: this would ask for terabytes.
TEST_F(LoadModelTest, AConfigOfHugeShapesIsRefusedBeforeMemoryIsTaken) {
  EditConfig([](json* config) {
    (*config)["text_config"]["intermediate_size"] = 2'147'483'646;
  });
  EXPECT_THAT(Load(), HasStatus(kInvalid, "mlp"));
}

// A plan in f16 needs sizes alone; the forward here has no f16.
TEST_F(LoadModelTest, ADtypeWithoutAForwardIsRefusedThoughPlanned) {
  EditConfig([](json* config) {
    (*config)["text_config"].erase("dtype");
    (*config)["text_config"].erase("torch_dtype");
    (*config)["dtype"] = "float16";
  });
  EXPECT_THAT(Load(), HasStatus(kInvalid, "'dtype'"));
  EXPECT_OK(LayoutFromConfig(ReadBack(dir_.File("config.json")), {}).status());
  EXPECT_OK(LoadModel(dir_.path(), {.kv_dtype = "f32"}).status());
}

// A header may have any length, so tensors may stand at odd addresses.
TEST_F(LoadModelTest, TensorsAtOddOffsetsGiveTheSameWeights) {
  const std::vector<uint32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  std::vector<std::vector<float>> logits;
  std::vector<Fingerprint> fingerprints;
  for (const bool odd : {false, true}) {
    for (int i = 1; odd && i <= 3; ++i) {
      const std::string file = ReadBack(Shard(i));
      uint64_t length = 0;
      std::memcpy(&length, file.data(), sizeof length);
      const std::string header = file.substr(8, length);
      WriteFile(Shard(i), RawFile(header + std::string(1 + length % 2, ' '),
                                  file.substr(8 + length)));
    }
    ASSERT_OK_AND_ASSIGN(const auto model, LoadModel(dir_.path(), {}));
    const auto sequence = model->NewSequence();
    const Segment segment{.sequence = sequence.get(), .ids = ids};
    ASSERT_OK_AND_ASSIGN(std::vector<float> rows,
                         RunTokens(model.get(), segment, 0, {}));
    logits.push_back(std::move(rows));
    fingerprints.push_back(model->fingerprint());
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
}

}  // namespace
}  // namespace torpor::replay
