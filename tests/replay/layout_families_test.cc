// SPDX-License-Identifier: Apache-2.0
//
// The keys of each family one by one: what absence, null and every spelling
// mean.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tests/replay/small_configs.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using ::testing::HasSubstr;
using torpor::testing::HasStatus;

// A letter for each layer: f full, s sliding, c chunked, p a window that
// persists, . none of its own.
std::string LettersOf(const ModelLayout& layout) {
  std::string letters(layout.n_layers, '.');
  for (const Slot& slot : layout.slots) {
    char& letter = letters[slot.owner_layer];
    letter = slot.kind == SlotKind::kFull           ? 'f'
             : slot.come_back == ComeBack::kPersist ? 'p'
             : slot.kind == SlotKind::kSliding      ? 's'
                                                    : 'c';
  }
  return letters;
}

std::string Letters(const json& config) {
  const auto layout = LayoutFromConfig(config.dump(), {.kv_dtype = "bf16"});
  return layout.ok() ? LettersOf(*layout)
                     : std::string(layout.status().message());
}

// Bytes of the slot of that name; 0 when there is none.
uint32_t RowBytes(const json& config, const std::string& name) {
  const auto layout = LayoutFromConfig(config.dump(), {.kv_dtype = "bf16"});
  EXPECT_OK(layout);
  if (!layout.ok()) return 0;
  for (const Slot& slot : layout->slots) {
    if (slot.name == name) return slot.row_bytes;
  }
  return 0;
}

TEST(LayoutFamiliesTest, EachFamilyHasItsOwnPattern) {
  const std::pair<const char*, const char*> patterns[] = {
      {"llama", "ffffffff"},       {"mistral", "ssssssss"},
      {"mixtral", "ssssssss"},     {"ministral", "ssssssss"},
      {"ministral3", "ssssssss"},  {"phi3", "ssssssss"},
      {"starcoder2", "ssssssss"},  {"gemma2", "sfsfsfsf"},
      {"gemma3_text", "sssssfss"}, {"gpt_oss", "sfsfsfsf"},
      {"cohere2", "sssfsssf"},     {"olmo3", "sssfsssf"},
      {"exaone4", "sssfsssf"},     {"qwen2", "ffffffff"},
      {"qwen3", "ffffffff"},       {"qwen3_moe", "ffffffff"},
      {"qwen2_5_vl", "ffffffff"},  {"smollm3", "ffffffff"},
      {"llama4_text", "cccfcccf"}, {"mimo_v2_flash", "fssssfss"},
      {"step3p5", "ffffffff"},     {"gemma4_text", "sssssfsf"}};
  for (const auto& [family, letters] : patterns) {
    json config = Small(family);
    config["attention_chunk_size"] = 64;
    EXPECT_EQ(Letters(config), letters) << family;
  }
  EXPECT_EQ(Letters(With(Small("gemma3n_text"), "num_kv_shared_layers", 0)),
            "ssssfsss");
}

TEST(LayoutFamiliesTest, LayerTypesWinOverThePattern) {
  json types = json::array();
  for (int l = 0; l < 8; ++l) types.push_back(l < 2 ? kFull : kSliding);
  for (const char* family :
       {"mistral", "ministral", "gemma2", "gemma3_text", "gpt_oss", "cohere2",
        "olmo3", "exaone4", "step3p5", "mimo_v2_flash"}) {
    EXPECT_EQ(Letters(With(Small(family), "layer_types", types)), "ffssssss")
        << family;
  }
  // Gemma 4 makes its last layer full.
  EXPECT_EQ(Letters(With(Small("gemma4_text"), "layer_types", types)),
            "ffsssssf");
  json config = With(Small("qwen3"), "layer_types", types);
  config["use_sliding_window"] = true;
  EXPECT_EQ(Letters(config), "ffssssss");
  // The switch counts more than the list.
  config["use_sliding_window"] = false;
  EXPECT_EQ(Letters(config), "ffffffff");
}

TEST(LayoutFamiliesTest, ANullWindowIsNoneAndAnAbsentOneTheDefault) {
  for (const char* family : {"mistral", "ministral", "ministral3", "phi3",
                             "starcoder2", "mixtral"}) {
    EXPECT_EQ(Letters(With(Small(family), "sliding_window", nullptr)),
              "ffffffff")
        << family;
  }
  for (const char* family : {"mixtral", "ministral3", "phi3", "starcoder2"}) {
    EXPECT_EQ(Letters(Without(Small(family), "sliding_window")), "ffffffff")
        << family;
  }
  json mistral = Without(Small("mistral"), "sliding_window");
  mistral["max_position_embeddings"] = 4097;
  EXPECT_EQ(Letters(mistral), "ssssssss");
  mistral["max_position_embeddings"] = 4096;
  EXPECT_EQ(Letters(mistral), "pppppppp");
  // The older name counts where the newer one is absent.
  mistral["sliding_window_size"] = 64;
  EXPECT_EQ(Letters(mistral), "ssssssss");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Letters(mistral), "ffffffff");
  EXPECT_EQ(Letters(With(Small("exaone4"), "sliding_window", nullptr)),
            "ffffffff");
  // A list that names sliding layers wants a window.
  EXPECT_THAT(Refused(With(Small("gemma2"), "sliding_window", nullptr)),
              HasStatus(kInvalid, "'sliding_window'"));
}

TEST(LayoutFamiliesTest, AWindowOfAllPositionsPersists) {
  json config = Small("gpt_oss");
  config["sliding_window"] = 1000;
  EXPECT_EQ(Letters(config), "pfpfpfpf");
  config["sliding_window"] = 999;
  EXPECT_EQ(Letters(config), "sfsfsfsf");
  config = With(Small("llama4_text"), "attention_chunk_size", 1000);
  EXPECT_EQ(Letters(config), "pppfpppf");
  json v4 = {{"model_type", "deepseek_v4"},
             {"num_hidden_layers", 3},
             {"max_position_embeddings", 128}};
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       LayoutFromConfig(v4.dump(), {}));
  EXPECT_EQ(FiguresOf(layout, 100).exact_tokens, 0);
}

TEST(LayoutFamiliesTest, QwensWindowsAreSwitchedOn) {
  for (const char* family : {"qwen2", "qwen3", "qwen2_5_vl"}) {
    json config = Small(family);
    config["max_window_layers"] = 5;
    EXPECT_EQ(Letters(config), "ffffffff") << family;
    config["use_sliding_window"] = true;
    EXPECT_EQ(Letters(config), "fffffsss") << family;
    EXPECT_EQ(Letters(With(config, "max_window_layers", 0)), "ssssssss");
    EXPECT_EQ(Letters(With(config, "max_window_layers", 8)), "ffffffff");
    EXPECT_EQ(Letters(With(config, "sliding_window", nullptr)), "ffffffff");
    // 28 or 80 layers stand below the first that slides.
    EXPECT_EQ(Letters(Without(config, "max_window_layers")), "ffffffff");
  }
  json config = With(Small("qwen3_moe"), "use_sliding_window", true);
  EXPECT_EQ(Letters(config), "ssssssss");
}

TEST(LayoutFamiliesTest, SmolLm3SlidesWhereItHasNoRope) {
  json config = With(Small("smollm3"), "use_sliding_window", true);
  EXPECT_EQ(Letters(config), "fffsfffs");
  EXPECT_EQ(Letters(With(config, "no_rope_layer_interval", 2)), "fsfsfsfs");
  config["no_rope_layers"] = {0, 1, 1, 1, 1, 1, 1, 0};
  EXPECT_EQ(Letters(config), "sffffffs");
  EXPECT_EQ(Letters(With(config, "use_sliding_window", false)), "ffffffff");
}

TEST(LayoutFamiliesTest, PatternKeysOfCohereExaoneAndGemma3) {
  for (const char* family : {"cohere2", "gemma3_text", "exaone4"}) {
    EXPECT_EQ(Letters(With(Small(family), "sliding_window_pattern", 3)),
              "ssfssfss")
        << family;
    EXPECT_EQ(Letters(With(Small(family), "sliding_window_pattern", 1)),
              "ffffffff")
        << family;
  }
  const json exaone = Small("exaone4");
  EXPECT_EQ(Letters(With(exaone, "sliding_window_pattern", "LLG")), "ssfssfsf");
  EXPECT_EQ(Letters(With(exaone, "sliding_window_pattern", "L")), "sssssssf");
  EXPECT_EQ(Letters(With(exaone, "sliding_window_pattern", nullptr)),
            "ffffffff");
  for (const json& bad : {json(""), json("LX"), json(0), json(1.5)}) {
    EXPECT_THAT(Refused(With(exaone, "sliding_window_pattern", bad)),
                HasStatus(kInvalid, "'sliding_window_pattern'"))
        << bad;
  }
}

TEST(LayoutFamiliesTest, Llama4ChunksLayersWithRope) {
  json config = With(Small("llama4_text"), "attention_chunk_size", 64);
  EXPECT_EQ(Letters(With(config, "no_rope_layers", json::array())), "cccfcccf");
  EXPECT_EQ(Letters(With(config, "no_rope_layers", nullptr)), "cccfcccf");
  EXPECT_EQ(Letters(With(config, "no_rope_layer_interval", 2)), "cfcfcfcf");
  EXPECT_EQ(Letters(With(config, "no_rope_layers", {1, 0, 1, 0, 1, 1, 1, 1})),
            "cfcfcccc");
  EXPECT_EQ(Letters(With(config, "attention_chunk_size", nullptr)), "ffffffff");
  // 8,192 when absent, which holds all positions of this one.
  EXPECT_EQ(Letters(Without(config, "attention_chunk_size")), "pppfpppf");
}

TEST(LayoutFamiliesTest, SharedLayersReadTheLastOfTheirKind) {
  for (const char* family : {"gemma3n_text", "gemma4_text"}) {
    json config = With(Small(family), "num_kv_shared_layers", 4);
    config["layer_types"] = {kSliding, kSliding, kFull,    kSliding,
                             kSliding, kFull,    kSliding, kFull};
    ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                         LayoutFromConfig(config.dump(), {}));
    EXPECT_EQ(LettersOf(layout), "ssfs....") << family;
    for (const Slot& slot : layout.slots) {
      const std::vector<uint32_t> readers =
          slot.owner_layer == 2   ? std::vector<uint32_t>{2, 5, 7}
          : slot.owner_layer == 3 ? std::vector<uint32_t>{3, 4, 6}
                                  : std::vector<uint32_t>{slot.owner_layer};
      EXPECT_EQ(slot.reader_layers, readers) << family << slot.name;
    }
    // No layer of some kind is left to be read.
    for (const int n : {6, 7, 8, 9, 4096}) {
      EXPECT_THAT(Refused(With(config, "num_kv_shared_layers", n)),
                  HasStatus(kInvalid, "'num_kv_shared_layers'"))
          << family << n;
    }
  }
}

TEST(LayoutFamiliesTest, Gemma4FullLayersHaveTheirOwnShape) {
  json config = Small("gemma4_text");
  config["global_head_dim"] = 48;
  config["num_global_key_value_heads"] = 1;
  EXPECT_EQ(RowBytes(config, "layer.0.k"), 2 * 16 * 2);
  EXPECT_EQ(RowBytes(config, "layer.7.k"), 2 * 48 * 2);
  // Their heads count only where K and V share a projection.
  config["attention_k_eq_v"] = true;
  EXPECT_EQ(RowBytes(config, "layer.7.k"), 1 * 48 * 2);
  EXPECT_EQ(RowBytes(config, "layer.7.v"), 1 * 48 * 2);
  config["num_global_key_value_heads"] = nullptr;
  EXPECT_EQ(RowBytes(config, "layer.7.k"), 2 * 48 * 2);
  config.erase("global_head_dim");
  EXPECT_EQ(RowBytes(config, "layer.7.k"), 2 * 512 * 2);
  // transformers 5 writes single layers.
  config["per_layer_config"] = {
      {"05", {{"head_dim", 24}}},
      {"7", {{"head_dim", 40}, {"num_key_value_heads", 4}}}};
  EXPECT_EQ(RowBytes(config, "layer.5.v"), 2 * 24 * 2);
  EXPECT_EQ(RowBytes(config, "layer.7.k"), 4 * 40 * 2);
  EXPECT_EQ(RowBytes(config, "layer.0.k"), 2 * 16 * 2);
}

TEST(LayoutFamiliesTest, MiMoHasWiderKeysAndOtherHeadsInWindows) {
  json config = Small("mimo_v2_flash");
  config["v_head_dim"] = 8;
  EXPECT_EQ(RowBytes(config, "layer.0.k"), 2 * 16 * 2);
  EXPECT_EQ(RowBytes(config, "layer.0.v"), 2 * 8 * 2);
  // Twice the heads, unless the config says.
  EXPECT_EQ(RowBytes(config, "layer.1.k"), 4 * 16 * 2);
  EXPECT_EQ(RowBytes(config, "layer.1.v"), 4 * 8 * 2);
  config["swa_num_key_value_heads"] = 1;
  config["swa_head_dim"] = 24;
  config["swa_v_head_dim"] = 12;
  EXPECT_EQ(RowBytes(config, "layer.1.k"), 24 * 2);
  EXPECT_EQ(RowBytes(config, "layer.1.v"), 12 * 2);
  config["hybrid_layer_pattern"] = {0, 0, 1, 1, 0, 0, 1, 1};
  EXPECT_EQ(Letters(config), "ffssffss");
}

TEST(LayoutFamiliesTest, StepHasGroupsAndDraftLayersBehindItsLast) {
  json config = Without(Small("step3p5"), "num_key_value_heads");
  config["num_attention_groups"] = 2;
  config["attention_other_setting"] = {{"num_attention_groups", 4},
                                       {"head_dim", 8}};
  json types = json::array();
  for (int l = 0; l < 10; ++l) types.push_back(l % 4 == 0 ? kFull : kSliding);
  config["layer_types"] = types;
  EXPECT_THAT(Refused(config), HasStatus(kInvalid, "'layer_types'"));
  config["num_nextn_predict_layers"] = 2;
  EXPECT_EQ(Letters(config), "fsssfsss");
  EXPECT_EQ(RowBytes(config, "layer.0.k"), 2 * 16 * 2);
  EXPECT_EQ(RowBytes(config, "layer.1.v"), 4 * 8 * 2);
  ASSERT_OK_AND_ASSIGN(const PlannedLayout planned,
                       PlanConfig(config.dump(), {}));
  ASSERT_EQ(planned.notes.size(), 1);
  EXPECT_THAT(planned.notes[0], HasSubstr("2 draft (MTP) layers are"));
}

TEST(LayoutFamiliesTest, ALatentIsOneRowForAllHeads) {
  json config = {{"model_type", "deepseek_v3"},
                 {"num_hidden_layers", 3},
                 {"kv_lora_rank", 32},
                 {"qk_rope_head_dim", 8}};
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       LayoutFromConfig(config.dump(), {}));
  ASSERT_EQ(layout.slots.size(), 3);
  EXPECT_EQ(layout.slots[1].name, "layer.1.latent");
  EXPECT_EQ(layout.slots[1].row_bytes, 40 * 2);
  EXPECT_EQ(layout.slots[1].shard_axis, ShardAxis::kReplicated);
  EXPECT_EQ(layout.slots[1].n_heads, 1);
}

TEST(LayoutFamiliesTest, HeadsAndWidthsThatAreAbsent) {
  json llama = Without(Small("llama"), "head_dim");
  EXPECT_EQ(RowBytes(llama, "layer.0.k"), 2 * (64 / 4) * 2);
  EXPECT_EQ(RowBytes(With(llama, "head_dim", nullptr), "layer.0.k"),
            2 * (64 / 4) * 2);
  llama.erase("num_key_value_heads");
  EXPECT_EQ(RowBytes(llama, "layer.0.k"), 4 * (64 / 4) * 2);
  EXPECT_THAT(Refused(With(llama, "hidden_size", 66)),
              HasStatus(kInvalid, "'hidden_size'"));
  EXPECT_THAT(Refused(With(llama, "num_key_value_heads", 3)),
              HasStatus(kInvalid, "'num_key_value_heads'"));
  // Classes with a width of their own.
  for (const auto& [family, dim] : {std::pair{"qwen3", 128},
                                    {"gpt_oss", 64},
                                    {"gemma2", 256},
                                    {"ministral3", 128}}) {
    EXPECT_EQ(RowBytes(Without(Small(family), "head_dim"), "layer.0.k"),
              2 * dim * 2)
        << family;
  }
  // Mistral's class has 8 KV heads, which here would be more than heads.
  EXPECT_EQ(
      RowBytes(Without(Small("mistral"), "num_key_value_heads"), "layer.0.k"),
      4 * 16 * 2);
  json many = Without(Small("mistral"), "num_key_value_heads");
  many["num_attention_heads"] = 32;
  EXPECT_EQ(RowBytes(many, "layer.0.k"), 8 * 16 * 2);
}

TEST(LayoutFamiliesTest, TextConfigsMayBeNested) {
  const auto nested = [](const char* outer, json text) {
    return json{{"model_type", outer},
                {"vision_config", {{"hidden_size", 16}}},
                {"text_config", std::move(text)}};
  };
  for (const auto& [outer, inner] : {std::pair{"gemma3n", "gemma3n_text"},
                                     {"gemma4", "gemma4_text"},
                                     {"llama4", "llama4_text"},
                                     {"qwen2_5_vl", "qwen2_5_vl_text"},
                                     {"ministral3", "ministral3"},
                                     {"mistral3", "mistral"},
                                     {"mistral3", "ministral3"},
                                     {"cohere2_vision", "cohere2"}}) {
    json text = Small(inner);
    text["num_kv_shared_layers"] = 2;
    json flat = text;
    ASSERT_OK_AND_ASSIGN(const ModelLayout alone,
                         LayoutFromConfig(flat.dump(), {}));
    ASSERT_OK_AND_ASSIGN(const ModelLayout inside,
                         LayoutFromConfig(nested(outer, text).dump(), {}));
    EXPECT_EQ(inside, alone) << outer;
  }
  EXPECT_THAT(Refused(nested("gemma4", Small("gemma2"))),
              HasStatus(kUnimplemented, "'gemma2'"));
  EXPECT_THAT(Refused(nested("mistral3", Small("bert"))),
              HasStatus(kUnimplemented, "'text_config.model_type'"));
  EXPECT_THAT(Refused(nested("mistral3", With(Small("x"), "model_type", 5))),
              HasStatus(kInvalid, "'text_config.model_type'"));
  // Each wrapper has a text model of its own where none is named.
  EXPECT_EQ(Letters(nested("mistral3", Without(Small("x"), "model_type"))),
            "ssssssss");
  EXPECT_EQ(Letters(nested("llava", Without(Small("x"), "model_type"))),
            "ffffffff");
  for (const json& bad : {json(1), json("x"), json::array(), json(true)}) {
    for (const char* outer : {"gemma4", "mistral3", "llama"}) {
      EXPECT_THAT(Refused(nested(outer, bad)),
                  HasStatus(kInvalid, "'text_config'"))
          << outer << bad;
    }
  }
}

TEST(LayoutFamiliesTest, UnknownKeysAreIgnored) {
  json config = Small("gemma2");
  const auto plain = LayoutFromConfig(config.dump(), {});
  config["no_such_key"] = {{"deep", {1, 2, 3}}};
  config["attention_sink_size"] = 4;
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 4}};
  const auto more = LayoutFromConfig(config.dump(), {});
  ASSERT_OK(plain);
  ASSERT_OK(more);
  EXPECT_EQ(*plain, *more);
}

// Python writes numbers that JSON has not.
TEST(LayoutFamiliesTest, InfinitiesOfPythonAreReadWhereNoKeyIs) {
  const auto refused = [](const std::string& family, const std::string& more) {
    std::string config = Small(family).dump();
    config.pop_back();
    return LayoutFromConfig(config + "," + more + "}", {}).status();
  };
  EXPECT_OK(refused("llama", R"("limits": [0.0, Infinity, -Infinity, NaN])"));
  EXPECT_OK(refused("llama", R"("a\"NaN": "Infinity \\", "b": NaN)"));
  EXPECT_THAT(refused("bamba",
                      R"("time_step_limit": [0.0, Infinity],
                         "mamba_d_state": 128)"),
              HasStatus(kPrecondition, "'mamba_d_state'"));
  EXPECT_THAT(refused("llama4_text", R"("attention_chunk_size": Infinity)"),
              HasStatus(kInvalid, "'attention_chunk_size'"));
  EXPECT_THAT(refused("llama", R"("a": Infinite)"),
              HasStatus(kInvalid, "config.json"));
}

TEST(LayoutFamiliesTest, AQuantisedCacheIsNoted) {
  json config = Small("gemma2");
  config["quantization_config"] = {
      {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}};
  ASSERT_OK_AND_ASSIGN(const PlannedLayout planned,
                       PlanConfig(config.dump(), {}));
  ASSERT_EQ(planned.notes.size(), 1);
  EXPECT_THAT(planned.notes[0], HasSubstr("8 bits"));
}

TEST(LayoutFamiliesTest, DtypesOfEitherKey) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const auto& [name, format] : {std::pair{"bfloat16", "bf16"},
                                       {"float16", "f16"},
                                       {"float32", "f32"}}) {
      ASSERT_OK_AND_ASSIGN(
          const ModelLayout layout,
          LayoutFromConfig(With(Small("llama"), key, name).dump(), {}));
      EXPECT_EQ(layout.slots[0].format, format);
    }
    EXPECT_THAT(Refused(With(Small("llama"), key, "float8_e4m3fn")),
                HasStatus(kInvalid, "float8_e4m3fn"));
    EXPECT_THAT(Refused(With(Small("llama"), key, 16)),
                HasStatus(kInvalid, std::string("'") + key + "'"));
    EXPECT_THAT(Refused(With(Small("deepseek_v4"), key, 16)),
                HasStatus(kInvalid, std::string("'") + key + "'"));
  }
}

TEST(LayoutFamiliesTest, DeepSeekV4ReadsTypesRatiosOrItsPattern) {
  const auto ratios = [](const json& config) {
    const auto layout = LayoutFromConfig(config.dump(), {});
    EXPECT_OK(layout);
    std::vector<uint32_t> out(layout->n_layers, 0);
    for (const Slot& slot : layout->slots) {
      if (slot.kind == SlotKind::kPooled) {
        out[slot.owner_layer] = slot.tokens_per_row;
      }
    }
    return out;
  };
  json config = {{"model_type", "deepseek_v4"}, {"num_hidden_layers", 5}};
  EXPECT_EQ(ratios(config), (std::vector<uint32_t>{128, 128, 128, 4, 128}));
  // Entries of draft layers may follow.
  config["compress_ratios"] = {0, 4, 128, 4, 0, 0, 0};
  EXPECT_EQ(ratios(config), (std::vector<uint32_t>{0, 4, 128, 4, 0}));
  config["compress_rates"] = {{"compressed_sparse_attention", 8}};
  config["compress_rate_hca"] = 64;
  EXPECT_EQ(ratios(config), (std::vector<uint32_t>{0, 8, 64, 8, 0}));
  config["layer_types"] = {"sliding_attention", "sliding_attention",
                           "heavily_compressed_attention",
                           "compressed_sparse_attention", "sliding_attention"};
  EXPECT_EQ(ratios(config), (std::vector<uint32_t>{0, 0, 64, 8, 0}));
}

}  // namespace
}  // namespace torpor::replay
