// SPDX-License-Identifier: Apache-2.0
//
// Configs that no layout follows from: layers that no replay brings back, and
// values that cannot be. Each is refused by the name of its key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/replay/small_configs.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay {
namespace {

using torpor::testing::HasStatus;

TEST(LayoutRefusalsTest, RecurrentLayersAreRefusedByTypeOrKey) {
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

TEST(LayoutRefusalsTest, WhatSeesTheFutureIsRefused) {
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

TEST(LayoutRefusalsTest, DeepSeekV41WantsSourcesThatFit) {
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

TEST(LayoutRefusalsTest, GroupsThatNeverCloseTogetherNameTheirKey) {
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

TEST(LayoutRefusalsTest, NumbersThatCannotBeNameTheirKey) {
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

TEST(LayoutRefusalsTest, ListsAndFlagsThatCannotBeNameTheirKey) {
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

TEST(LayoutRefusalsTest, OtherKeysThatCannotBe) {
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
TEST(LayoutRefusalsTest, RowsTooWideNameTheirKeys) {
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
TEST(LayoutRefusalsTest, TheLargestLayersAreLaidOut) {
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
