// SPDX-License-Identifier: Apache-2.0
//
// The keys of each family one by one: what absence, null and every spelling
// mean, and that values which cannot be are refused by name.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "replay/families.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Eight layers of 2 KV heads of 16, window 32 where the family has one.
json Small(const std::string& model_type) {
  return {{"model_type", model_type},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"num_hidden_layers", 8},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"sliding_window", 32},
          {"max_position_embeddings", 1000}};
}

json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

json Without(json config, const char* key) {
  config.erase(key);
  return config;
}

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

absl::Status Refused(const json& config) {
  return LayoutFromConfig(config.dump(), {}).status();
}

const json kSliding = "sliding_attention";
const json kFull = "full_attention";

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

TEST(LayoutFamiliesTest, RecurrentLayersAreRefusedByTypeOrKey) {
  for (const char* type : {"mamba", "linear_attention", "conv", "hybrid",
                           "recurrent", "rwkv", "gated_deltanet"}) {
    for (const char* family : {"llama", "gemma3_text", "bamba", "qwen3_next"}) {
      json config = Small(family);
      config["layer_types"] = json::array();
      for (int l = 0; l < 8; ++l) {
        config["layer_types"].push_back(l == 3 ? json(type) : kFull);
      }
      EXPECT_THAT(Refused(config),
                  HasStatus(kPrecondition, "'" + std::string(type) + "'"));
    }
  }
  for (const char* key :
       {"mamba_d_state", "ssm_state_size", "linear_attn_config",
        "full_attention_interval", "conv_L_cache"}) {
    for (const char* family : {"llama", "falcon_h1"}) {
      EXPECT_THAT(Refused(With(Small(family), key, 4)),
                  HasStatus(kPrecondition, std::string("'") + key + "'"));
      const json outer = {{"model_type", "mistral3"},
                          {"text_config", With(Small(family), key, 4)}};
      EXPECT_THAT(Refused(outer),
                  HasStatus(kPrecondition, std::string("'") + key + "'"));
    }
    // Null says that it has none.
    EXPECT_OK(Refused(With(Small("llama"), key, nullptr)));
  }
  for (const char* family : {"mamba2", "rwkv7", "recurrent_gemma"}) {
    EXPECT_THAT(Refused(Small(family)),
                HasStatus(kUnimplemented, "has recurrent layers"));
  }
}

TEST(LayoutFamiliesTest, WhatSeesTheFutureIsRefused) {
  for (const char* family : {"gemma2", "gemma3_text", "gemma4_text", "qwen2"}) {
    for (const json& value : {json(true), json("all")}) {
      EXPECT_THAT(
          Refused(With(Small(family), "use_bidirectional_attention", value)),
          HasStatus(kPrecondition, "'use_bidirectional_attention'"));
    }
    EXPECT_THAT(Refused(With(Small(family), "use_bidirectional_attention", 3)),
                HasStatus(kInvalid, "'use_bidirectional_attention'"));
    EXPECT_THAT(Refused(With(Small(family), "is_causal", false)),
                HasStatus(kPrecondition, "'is_causal'"));
  }
  EXPECT_OK(Refused(
      With(Small("gemma4_text"), "use_bidirectional_attention", "vision")));
  EXPECT_THAT(Refused(With(Small("llama"), "is_encoder_decoder", true)),
              HasStatus(kPrecondition, "'is_encoder_decoder'"));
}

// ---- DeepSeek V4 ------------------------------------------------------------

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

json SmallV41() {
  return {{"model_type", "deepseek_v41_text"},
          {"num_hidden_layers", 6},
          {"head_dim", 64},
          {"qk_rope_head_dim", 16},
          {"index_head_dim", 32},
          {"compress_ratios", {0, 2, 2, 1, 1, 1}},
          {"kv_source_layer_ids", {1, 3}},
          {"index_source_layer_ids", {1, 3, 4}}};
}

TEST(LayoutFamiliesTest, DeepSeekV41WantsSourcesThatFit) {
  ASSERT_OK(Refused(SmallV41()));
  const std::pair<const char*, json> bad[] = {
      {"compress_ratios", nullptr},
      {"compress_ratios", {0, 2}},
      {"compress_ratios", {0, 2, 2, 1, 1, -1}},
      {"compress_ratios", {0, 2, 2, 1, 1, 65'537}},
      {"compress_ratios", {0, 2, 2, 1, 1, "1"}},
      {"compress_ratios", {1, 2, 2, 1, 1, 1}},
      {"compress_ratios", {0, 2, 3, 1, 1, 1}},
      {"compress_ratios", {0, 0, 0, 1, 1, 1}},
      {"kv_source_layer_ids", nullptr},
      {"kv_source_layer_ids", {3, 1}},
      {"kv_source_layer_ids", {1, 1, 3}},
      {"kv_source_layer_ids", {1, 6}},
      {"kv_source_layer_ids", {1, -3}},
      {"kv_source_layer_ids", {1, uint64_t{1} << 63}},
      {"kv_source_layer_ids", 1},
      {"index_source_layer_ids", {1, 9}},
      {"head_dim", 48},
      {"index_head_dim", 24},
      {"qk_rope_head_dim", 65},
      {"num_key_value_heads", 2}};
  for (const auto& [key, value] : bad) {
    EXPECT_THAT(Refused(With(SmallV41(), key, value)),
                HasStatus(kInvalid, std::string("'") + key + "'"))
        << value;
  }
  // Draft layers want to know what feeds them.
  json drafts = With(SmallV41(), "num_nextn_predict_layers", 2);
  EXPECT_THAT(Refused(drafts),
              HasStatus(kInvalid, "'dspark_target_layer_ids'"));
  drafts["dspark_target_layer_ids"] = {4, 5};
  EXPECT_OK(Refused(drafts));
  drafts["dspark_target_layer_ids"] = {4, 6};
  EXPECT_THAT(Refused(drafts),
              HasStatus(kInvalid, "'dspark_target_layer_ids'"));
}

TEST(LayoutFamiliesTest, GroupsThatNeverCloseTogetherNameTheirKey) {
  json config = SmallV41();
  config["num_hidden_layers"] = 4;
  config["compress_ratios"] = {251, 257, 263, 1};
  config["kv_source_layer_ids"] = {0, 1, 2, 3};
  config["index_source_layer_ids"] = {0};
  EXPECT_THAT(Refused(config), HasStatus(kInvalid, "'compress_ratios'"));
}

// ---- values that cannot be --------------------------------------------------

struct Malformed {
  const char* family;
  std::vector<const char*> integers;
  std::vector<const char*> lists;
  std::vector<const char*> flags;
};

std::vector<Malformed> ReadKeys() {
  const std::vector<const char*> shape = {
      "vocab_size",          "num_hidden_layers",   "max_position_embeddings",
      "num_attention_heads", "num_key_value_heads", "head_dim"};
  const auto with = [&](std::vector<const char*> more) {
    more.insert(more.end(), shape.begin(), shape.end());
    return more;
  };
  return {{"llama", shape, {}, {}},
          {"mistral", with({"sliding_window"}), {"layer_types"}, {}},
          {"gemma2", with({"sliding_window"}), {"layer_types"}, {}},
          {"gemma3_text",
           with({"sliding_window", "sliding_window_pattern"}),
           {"layer_types"},
           {}},
          {"cohere2",
           with({"sliding_window", "sliding_window_pattern"}),
           {"layer_types"},
           {}},
          {"exaone4", with({"sliding_window"}), {"layer_types"}, {}},
          {"qwen2",
           with({"sliding_window"}),
           {"layer_types"},
           {"use_sliding_window"}},
          {"smollm3",
           with({"sliding_window", "no_rope_layer_interval"}),
           {"layer_types", "no_rope_layers"},
           {"use_sliding_window"}},
          {"gemma3n_text", with({"sliding_window"}), {"layer_types"}, {}},
          {"gemma4_text",
           with({"sliding_window", "global_head_dim",
                 "num_global_key_value_heads"}),
           {"layer_types"},
           {"attention_k_eq_v"}},
          {"llama4_text",
           with({"attention_chunk_size", "no_rope_layer_interval"}),
           {"layer_types", "no_rope_layers"},
           {}},
          {"mimo_v2_flash",
           with({"sliding_window", "v_head_dim", "swa_num_key_value_heads",
                 "swa_head_dim", "swa_v_head_dim"}),
           {"layer_types", "hybrid_layer_pattern"},
           {}},
          {"step3p5", with({"sliding_window"}), {"layer_types"}, {}},
          {"deepseek_v3",
           {"vocab_size", "num_hidden_layers", "max_position_embeddings",
            "kv_lora_rank", "qk_rope_head_dim"},
           {},
           {}},
          {"deepseek_v4",
           {"vocab_size", "num_hidden_layers", "max_position_embeddings",
            "head_dim", "index_head_dim", "sliding_window", "compress_rate_csa",
            "compress_rate_hca"},
           {"layer_types", "compress_ratios"},
           {}}};
}

json Minimal(const std::string& family) {
  if (family.starts_with("deepseek")) return {{"model_type", family}};
  return Without(Small(family), "sliding_window");
}

TEST(LayoutFamiliesTest, NumbersThatCannotBeNameTheirKey) {
  for (const Malformed& keys : ReadKeys()) {
    for (const char* key : keys.integers) {
      for (const char* value :
           {"0", "-1", "1.5", "\"8\"", "true", "[]", "{}", "1e30",
            "-9223372036854775808", "9223372036854775807",
            "18446744073709551615"}) {
        EXPECT_THAT(
            Refused(With(Minimal(keys.family), key, json::parse(value))),
            HasStatus(kInvalid, std::string("'") + key + "'"))
            << keys.family << ' ' << value;
      }
    }
  }
}

TEST(LayoutFamiliesTest, ListsAndFlagsThatCannotBeNameTheirKey) {
  for (const Malformed& keys : ReadKeys()) {
    for (const char* key : keys.lists) {
      for (const char* value :
           {"5", "true", "\"sliding_attention\"", "{}", "[\"full_attention\"]",
            "[null,null,null,null,null,null,null,null]", "[7,7,7,7,7,7,7,7]",
            "[[],[],[],[],[],[],[],[]]",
            "[\"round\",\"round\",\"round\",\"round\",\"round\",\"round\","
            "\"round\",\"round\"]"}) {
        EXPECT_THAT(
            Refused(With(Minimal(keys.family), key, json::parse(value))),
            HasStatus(kInvalid, std::string("'") + key + "'"))
            << keys.family << ' ' << value;
      }
    }
    for (const char* key : keys.flags) {
      for (const char* value : {"1", "\"true\"", "[]", "{}"}) {
        EXPECT_THAT(
            Refused(With(Minimal(keys.family), key, json::parse(value))),
            HasStatus(kInvalid, std::string("'") + key + "'"))
            << keys.family << ' ' << value;
      }
    }
  }
}

TEST(LayoutFamiliesTest, OtherKeysThatCannotBe) {
  const std::vector<std::pair<const char*, const char*>> keys = {
      {"qwen2", "max_window_layers"},
      {"gemma4_text", "num_kv_shared_layers"},
      {"gemma3n_text", "num_kv_shared_layers"},
      {"step3p5", "num_nextn_predict_layers"},
      {"step3p5", "attention_other_setting"},
      {"step3p5", "num_attention_groups"},
      {"deepseek_v3", "num_nextn_predict_layers"},
      {"deepseek_v4", "num_nextn_predict_layers"},
      {"deepseek_v4", "compress_rates"},
      {"mistral", "sliding_window_size"},
      {"gemma2", "per_layer_config"}};
  for (const auto& [family, key] : keys) {
    for (const char* value :
         {"-1", "1.5", "\"8\"", "true", "[]", "9223372036854775807"}) {
      EXPECT_THAT(Refused(With(Minimal(family), key, json::parse(value))),
                  HasStatus(kInvalid, std::string("'") + key + "'"))
          << family << ' ' << value;
    }
  }
  for (const json& bad :
       {json{{"8", json::object()}}, json{{"-1", json::object()}},
        json{{"x", json::object()}}, json{{"", json::object()}},
        json{{"99999999999999999999", json::object()}}, json{{"1", 5}},
        json{{"1", {{"head_dim", 0}}}},
        json{{"1", {{"num_key_value_heads", -1}}}}}) {
    EXPECT_THAT(Refused(With(Small("gemma4_text"), "per_layer_config", bad)),
                HasStatus(kInvalid, "'per_layer_config"))
        << bad;
  }
  for (const json& bad :
       {json{{"num_attention_groups", 0}}, json{{"head_dim", "x"}}}) {
    EXPECT_THAT(Refused(With(Small("step3p5"), "attention_other_setting", bad)),
                HasStatus(kInvalid, "config key"))
        << bad;
  }
}

// Each factor may pass and their product not fit a row.
TEST(LayoutFamiliesTest, RowsTooWideNameTheirKeys) {
  json config = Small("llama");
  config["num_attention_heads"] = 65'536;
  config["num_key_value_heads"] = 65'536;
  config["head_dim"] = 65'536;
  for (const char* key : {"'num_key_value_heads'", "'head_dim'"}) {
    EXPECT_THAT(Refused(config), HasStatus(kInvalid, key));
  }
  for (const char* family : {"gemma3_text", "mimo_v2_flash", "gemma4_text"}) {
    config["model_type"] = family;
    EXPECT_THAT(Refused(config), HasStatus(kInvalid, "head_dim")) << family;
  }
  EXPECT_OK(Refused({{"model_type", "deepseek_v3"}, {"kv_lora_rank", 65'536}}));
}

// The largest that passes is laid out, as fast as any.
TEST(LayoutFamiliesTest, TheLargestLayersAreLaidOut) {
  json config = With(Small("gemma2"), "num_hidden_layers", 4096);
  config["num_kv_shared_layers"] = 4000;
  ASSERT_OK_AND_ASSIGN(const ModelLayout layout,
                       LayoutFromConfig(config.dump(), {}));
  EXPECT_EQ(layout.slots.size(), 2 * 4096);
  config["model_type"] = "gemma4_text";
  EXPECT_OK(Refused(config));
  EXPECT_OK(
      Refused({{"model_type", "deepseek_v4"}, {"num_hidden_layers", 2048}}));
  EXPECT_THAT(
      Refused({{"model_type", "deepseek_v4"}, {"num_hidden_layers", 2049}}),
      HasStatus(kInvalid, "'num_hidden_layers'"));
}

}  // namespace
}  // namespace torpor::replay
