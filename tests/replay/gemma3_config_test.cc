// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3's config.json in the spellings of transformers 4.50 to 5.x, and
// what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/families.h"
#include "replay/gemma3/config.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay::gemma3 {
namespace {

using nlohmann::json;
using torpor::testing::HasCode;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// As transformers 5.24 writes it.
json NewStyle() {
  return json::parse(R"({
    "model_type": "gemma3_text", "dtype": "bfloat16", "attention_bias": false,
    "attn_logit_softcapping": null, "final_logit_softcapping": null,
    "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 64, "intermediate_size": 128,
    "layer_types": ["sliding_attention", "full_attention",
                    "sliding_attention"],
    "max_position_embeddings": 2048, "num_attention_heads": 4,
    "num_hidden_layers": 3, "num_key_value_heads": 2,
    "query_pre_attn_scalar": 24, "rms_norm_eps": 1e-05,
    "rope_parameters": {
      "full_attention": {"rope_theta": 500000.0, "rope_type": "linear",
                         "factor": 8.0},
      "sliding_attention": {"rope_theta": 20000.0, "rope_type": "default"}},
    "sliding_window": 8, "tie_word_embeddings": true,
    "use_bidirectional_attention": false, "vocab_size": 256})");
}

// The same model as transformers 4.50 wrote it, but for the order of layers,
// which was a pattern then.
json OldStyle() {
  json config = NewStyle();
  config.erase("rope_parameters");
  config.erase("layer_types");
  config.erase("dtype");
  config.erase("use_bidirectional_attention");
  config["rope_theta"] = 500'000;
  config["rope_local_base_freq"] = 20'000;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  config["sliding_window_pattern"] = 2;
  config["torch_dtype"] = "bfloat16";
  return config;
}

json Nested(const json& text) {
  json outer = {{"model_type", "gemma3"},
                {"vision_config", {{"hidden_size", 16}}},
                {"text_config", text}};
  return outer;
}

json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

void ExpectSmallModel(const Config& c) {
  EXPECT_EQ(c.vocab_size, 256);
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.intermediate_size, 128);
  EXPECT_EQ(c.n_layers, 3);
  EXPECT_EQ(c.n_heads, 4);
  EXPECT_EQ(c.n_kv_heads, 2);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.sliding_window, 8);
  EXPECT_EQ(c.max_positions, 2048);
  EXPECT_EQ(c.query_pre_attn_scalar, 24);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.final_softcap, 0);
  EXPECT_FALSE(c.attention_bias);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.is_sliding, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(c.full_rope.theta, 500'000);
  EXPECT_EQ(c.full_rope.linear_factor, 8);
  EXPECT_EQ(c.sliding_rope.theta, 20'000);
  EXPECT_EQ(c.sliding_rope.linear_factor, 1);
  EXPECT_EQ(c.dtype, "bf16");
}

TEST(Gemma3ConfigTest, ReadsTheNewSpelling) {
  ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(NewStyle()));
  ExpectSmallModel(config);
  EXPECT_FALSE(config.nested);
}

TEST(Gemma3ConfigTest, ReadsTheOldSpelling) {
  ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(OldStyle()));
  ExpectSmallModel(config);
}

TEST(Gemma3ConfigTest, ReadsEitherNestedInAMultimodalConfig) {
  for (const json& text : {NewStyle(), OldStyle()}) {
    ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(Nested(text)));
    ExpectSmallModel(config);
    EXPECT_TRUE(config.nested);
    // The dtype may stand around the text config.
    json outer = Nested(text);
    outer["text_config"].erase("dtype");
    outer["text_config"].erase("torch_dtype");
    outer["torch_dtype"] = "float32";
    ASSERT_OK_AND_ASSIGN(const Config f32, ParseConfig(outer));
    EXPECT_EQ(f32.dtype, "f32");
  }
}

// transformers' Gemma3TextConfig(), field by field.
TEST(Gemma3ConfigTest, AbsentKeysAreTheDefaultsOfTransformers) {
  for (const json& config : {json::parse(R"({"model_type":"gemma3_text"})"),
                             Nested({{"model_type", "gemma3_text"}})}) {
    ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(config));
    EXPECT_EQ(c.vocab_size, 262'208);
    EXPECT_EQ(c.hidden_size, 2304);
    EXPECT_EQ(c.intermediate_size, 9216);
    EXPECT_EQ(c.n_layers, 26);
    EXPECT_EQ(c.n_heads, 8);
    EXPECT_EQ(c.n_kv_heads, 4);
    EXPECT_EQ(c.head_dim, 256);
    EXPECT_EQ(c.sliding_window, 4096);
    EXPECT_EQ(c.max_positions, 131'072);
    EXPECT_EQ(c.query_pre_attn_scalar, 256);
    EXPECT_EQ(c.rms_norm_eps, 1e-6);
    EXPECT_EQ(c.final_softcap, 0);
    EXPECT_FALSE(c.attention_bias);
    EXPECT_TRUE(c.tied_embeddings);
    EXPECT_EQ(c.full_rope.theta, 1e6);
    EXPECT_EQ(c.full_rope.linear_factor, 1);
    EXPECT_EQ(c.sliding_rope.theta, 1e4);
    EXPECT_EQ(c.dtype, "");
    for (size_t layer = 0; layer < 26; ++layer) {
      EXPECT_EQ(c.is_sliding[layer],
                layer != 5 && layer != 11 && layer != 17 && layer != 23)
          << layer;
    }
  }
}

TEST(Gemma3ConfigTest, LayerTypesComeFromThePatternWhereTheyAreAbsent) {
  const auto layers = [](int64_t pattern, int64_t n) {
    json config = OldStyle();
    config["sliding_window_pattern"] = pattern;
    config["num_hidden_layers"] = n;
    const auto parsed = ParseConfig(config);
    EXPECT_OK(parsed);
    std::string kinds;
    for (const bool sliding : parsed->is_sliding) kinds += sliding ? 's' : 'F';
    return kinds;
  };
  EXPECT_EQ(layers(1, 3), "FFF");
  EXPECT_EQ(layers(2, 5), "sFsFs");
  EXPECT_EQ(layers(3, 6), "ssFssF");
  EXPECT_EQ(layers(6, 13), "sssssFsssssFs");
  EXPECT_EQ(layers(9, 4), "ssss");
  // Null layer types are absent ones; present ones win.
  ASSERT_OK_AND_ASSIGN(const Config null_types,
                       ParseConfig(With(OldStyle(), "layer_types", nullptr)));
  EXPECT_EQ(null_types.is_sliding, (std::vector<bool>{true, false, true}));
  ASSERT_OK_AND_ASSIGN(
      const Config both,
      ParseConfig(With(NewStyle(), "sliding_window_pattern", 3)));
  EXPECT_EQ(both.is_sliding, (std::vector<bool>{true, false, true}));
}

TEST(Gemma3ConfigTest, LayerTypesThatCannotBeAreRefused) {
  for (
      const char* types :
      {R"(["sliding_attention"])", "[]", R"("sliding_attention")", "{}", "5",
       R"(["sliding_attention","full_attention","chunked_attention"])",
       R"(["sliding_attention","full_attention",""])",
       R"(["sliding_attention","full_attention",1])",
       R"(["sliding_attention","full_attention",null])",
       R"(["full_attention","full_attention","full_attention",)"
       R"("full_attention"])",
       R"({"0":"full_attention","1":"full_attention","2":"full_attention"})"}) {
    EXPECT_THAT(
        ParseConfig(With(NewStyle(), "layer_types", json::parse(types))),
        HasStatus(kInvalid, "'layer_types'"))
        << types;
  }
}

// Each key with each value that it cannot have, flat and nested.
TEST(Gemma3ConfigTest, ValuesThatCannotBeAreRefusedByKey) {
  const auto refused = [](const char* key, const char* text) {
    const json value = json::parse(text);
    for (const json& config :
         {With(OldStyle(), key, value), Nested(With(OldStyle(), key, value))}) {
      const auto parsed = ParseConfig(config);
      EXPECT_THAT(parsed, HasCode(kInvalid)) << key << " " << text;
      if (parsed.ok()) continue;
      EXPECT_THAT(std::string(parsed.status().message()),
                  ::testing::HasSubstr(key))
          << text;
    }
  };
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim",
        "sliding_window", "max_position_embeddings",
        "sliding_window_pattern"}) {
    for (const char* value :
         {"0", "-1", "-9223372036854775808", "9223372036854775807",
          "18446744073709551615", "1e30", "8.0", "8.5", "\"8\"", "true", "[8]",
          "{}"}) {
      refused(key, value);
    }
  }
  for (const char* key : {"query_pre_attn_scalar", "rms_norm_eps", "rope_theta",
                          "rope_local_base_freq"}) {
    for (const char* value :
         {"0", "-1", "-1e-9", "\"1\"", "true", "[]", "{}"}) {
      // An epsilon of 0 is one that transformers runs with.
      if (std::string(key) == "rms_norm_eps" && std::string(value) == "0") {
        continue;
      }
      refused(key, value);
    }
  }
  for (const char* key : {"attention_bias", "tie_word_embeddings",
                          "use_bidirectional_attention"}) {
    for (const char* value : {"0", "1", "\"true\"", "[]", "{}"}) {
      refused(key, value);
    }
  }
  for (const char* value : {"5", "true", "[]", "{}"}) {
    refused("hidden_activation", value);
    refused("torch_dtype", value);
    refused("dtype", value);
  }
}

TEST(Gemma3ConfigTest, SizesThatDoNotFitEachOtherAreRefusedByKey) {
  EXPECT_THAT(ParseConfig(With(NewStyle(), "num_key_value_heads", 3)),
              HasStatus(kInvalid, "num_key_value_heads"));
  EXPECT_THAT(ParseConfig(With(NewStyle(), "num_key_value_heads", 8)),
              HasStatus(kInvalid, "num_key_value_heads"));
  EXPECT_THAT(ParseConfig(With(NewStyle(), "head_dim", 31)),
              HasStatus(kInvalid, "head_dim"));
  // Rows whose bytes pass 2^32, once to 0 and once to a small number.
  json huge = NewStyle();
  huge["num_attention_heads"] = 65'536;
  huge["num_key_value_heads"] = 65'536;
  huge["head_dim"] = 65'536;
  EXPECT_THAT(ParseConfig(huge), HasStatus(kInvalid, "head_dim"));
  huge["num_attention_heads"] = 32'769;
  huge["num_key_value_heads"] = 32'769;
  EXPECT_THAT(ParseConfig(huge), HasStatus(kInvalid, "head_dim"));
}

TEST(Gemma3ConfigTest, ATextConfigThatIsNoObjectIsRefused) {
  for (const char* value : {"5", "\"x\"", "[]", "true"}) {
    json config = OldStyle();
    config["model_type"] = "gemma3";
    config["text_config"] = json::parse(value);
    EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "'text_config'"))
        << value;
  }
}

TEST(Gemma3ConfigTest, ATextConfigOfAnotherFamilyIsRefused) {
  EXPECT_THAT(LayoutFromConfig(
                  Nested(With(NewStyle(), "model_type", "llama")).dump(), {}),
              HasStatus(kUnimplemented, "'llama'"));
}

TEST(Gemma3ConfigTest, WhatHasNoForwardHereIsRefused) {
  for (const char* activation : {"gelu", "silu", "relu", ""}) {
    EXPECT_THAT(ParseConfig(With(NewStyle(), "hidden_activation", activation)),
                HasStatus(kUnimplemented, "'hidden_activation'"))
        << activation;
  }
  for (const json& config :
       {With(NewStyle(), "use_bidirectional_attention", true),
        Nested(With(NewStyle(), "use_bidirectional_attention", true))}) {
    EXPECT_THAT(ParseConfig(config),
                HasStatus(absl::StatusCode::kFailedPrecondition,
                          "'use_bidirectional_attention'"));
  }
}

TEST(Gemma3ConfigTest, BiasesAndUntiedHeadsAreRead) {
  ASSERT_OK_AND_ASSIGN(const Config bias,
                       ParseConfig(With(NewStyle(), "attention_bias", true)));
  EXPECT_TRUE(bias.attention_bias);
  ASSERT_OK_AND_ASSIGN(
      const Config untied,
      ParseConfig(With(NewStyle(), "tie_word_embeddings", false)));
  EXPECT_FALSE(untied.tied_embeddings);
}

TEST(Gemma3ConfigTest, TheFinalSoftcapIsRead) {
  ASSERT_OK_AND_ASSIGN(
      const Config config,
      ParseConfig(With(NewStyle(), "final_logit_softcapping", 30.0)));
  EXPECT_EQ(config.final_softcap, 30);
  for (const char* value : {"-1", "\"30\"", "true"}) {
    EXPECT_THAT(ParseConfig(With(NewStyle(), "final_logit_softcapping",
                                 json::parse(value))),
                HasStatus(kInvalid, "final_logit_softcapping"))
        << value;
  }
}

TEST(Gemma3ConfigTest, RopeTypesWithoutAForwardAreRefusedByName) {
  for (const char* type : {"yarn", "dynamic", "longrope", "llama3", "su", ""}) {
    json config = OldStyle();
    config["rope_scaling"] = {{"rope_type", type}, {"factor", 8}};
    EXPECT_THAT(ParseConfig(config),
                HasStatus(kUnimplemented, "'" + std::string(type) + "'"));
    config["rope_scaling"] = {{"type", type}, {"factor", 8}};
    EXPECT_THAT(ParseConfig(config), HasCode(kUnimplemented)) << type;
    for (const char* kind : {"full_attention", "sliding_attention"}) {
      config = NewStyle();
      config["rope_parameters"][kind] = {{"rope_type", type}, {"factor", 8}};
      EXPECT_THAT(ParseConfig(config), HasCode(kUnimplemented)) << type;
    }
  }
}

TEST(Gemma3ConfigTest, OldScalingHasTwoSpellingsAndFullLayersAlone) {
  for (const char* key : {"type", "rope_type"}) {
    json config = OldStyle();
    config["rope_scaling"] = {{key, "linear"}, {"factor", 4.0}};
    ASSERT_OK_AND_ASSIGN(const Config parsed, ParseConfig(config));
    EXPECT_EQ(parsed.full_rope.linear_factor, 4);
    EXPECT_EQ(parsed.sliding_rope.linear_factor, 1);
  }
  for (const json& none :
       {json(nullptr), json{{"rope_type", "default"}}, json::object()}) {
    ASSERT_OK_AND_ASSIGN(const Config parsed,
                         ParseConfig(With(OldStyle(), "rope_scaling", none)));
    EXPECT_EQ(parsed.full_rope.linear_factor, 1);
  }
}

TEST(Gemma3ConfigTest, RopeParametersOfAKindMayBeAbsent) {
  // The thetas are then the old keys', or the defaults.
  json config = NewStyle();
  config["rope_parameters"] = json::object();
  ASSERT_OK_AND_ASSIGN(const Config defaults, ParseConfig(config));
  EXPECT_EQ(defaults.full_rope.theta, 1e6);
  EXPECT_EQ(defaults.sliding_rope.theta, 1e4);
  config["rope_theta"] = 5e5;
  config["rope_local_base_freq"] = 2e4;
  config["rope_parameters"] = {{"full_attention", nullptr},
                               {"sliding_attention", {{"rope_theta", 7.0}}}};
  ASSERT_OK_AND_ASSIGN(const Config mixed, ParseConfig(config));
  EXPECT_EQ(mixed.full_rope.theta, 5e5);
  EXPECT_EQ(mixed.sliding_rope.theta, 7);
}

TEST(Gemma3ConfigTest, RopeParametersThatCannotBeAreRefusedByKey) {
  for (const char* value : {"5", "\"x\"", "[]", "true"}) {
    EXPECT_THAT(
        ParseConfig(With(NewStyle(), "rope_parameters", json::parse(value))),
        HasStatus(kInvalid, "rope_parameters"))
        << value;
    EXPECT_THAT(
        ParseConfig(With(OldStyle(), "rope_scaling", json::parse(value))),
        HasStatus(kInvalid, "rope_scaling"))
        << value;
    for (const char* kind : {"full_attention", "sliding_attention"}) {
      json config = NewStyle();
      config["rope_parameters"][kind] = json::parse(value);
      EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, kind)) << value;
    }
  }
  for (const char* kind : {"full_attention", "sliding_attention"}) {
    for (const char* value : {"0", "-1", "\"1\"", "true", "[]"}) {
      json config = NewStyle();
      config["rope_parameters"][kind]["rope_theta"] = json::parse(value);
      EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "rope_theta"))
          << value;
      config = NewStyle();
      config["rope_parameters"][kind]["rope_type"] = "linear";
      config["rope_parameters"][kind]["factor"] = json::parse(value);
      EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "factor")) << value;
    }
    json config = NewStyle();
    config["rope_parameters"][kind]["rope_type"] = 5;
    EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "rope_type"));
    // A linear scaling by nothing.
    config["rope_parameters"][kind] = {{"rope_type", "linear"}};
    EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "factor"));
  }
}

// One set of parameters for all layers is not what this family has: read as
// nothing, it would give other numbers than its writer meant.
TEST(Gemma3ConfigTest, FlatRopeParametersAreRefused) {
  for (const json& flat : {json{{"rope_type", "default"}, {"rope_theta", 5e5}},
                           json{{"rope_type", "yarn"}, {"factor", 4}},
                           json{{"rope_theta", 5e5}}}) {
    const auto parsed = ParseConfig(With(NewStyle(), "rope_parameters", flat));
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::HasSubstr("rope_parameters"));
  }
}

TEST(Gemma3ConfigTest, DtypesByEitherKeyNewestFirst) {
  json config = NewStyle();
  config["dtype"] = "float32";
  config["torch_dtype"] = "bfloat16";
  ASSERT_OK_AND_ASSIGN(const Config parsed, ParseConfig(config));
  EXPECT_EQ(parsed.dtype, "f32");
  config["dtype"] = nullptr;
  ASSERT_OK_AND_ASSIGN(const Config old_key, ParseConfig(config));
  EXPECT_EQ(old_key.dtype, "bf16");
}

// As transformers loads it: the dtype around the text config counts first.
TEST(Gemma3ConfigTest, TheOuterDtypeWins) {
  json outer = Nested(NewStyle());
  outer["dtype"] = "float32";
  ASSERT_OK_AND_ASSIGN(const Config parsed, ParseConfig(outer));
  EXPECT_EQ(parsed.dtype, "f32");
}

TEST(Gemma3ConfigTest, SlidingLayersWantAWindow) {
  EXPECT_THAT(ParseConfig(With(NewStyle(), "sliding_window", nullptr)),
              HasStatus(kInvalid, "'sliding_window'"));
  json full = With(NewStyle(), "sliding_window", nullptr);
  for (json& type : full["layer_types"]) type = "full_attention";
  EXPECT_THAT(ParseConfig(full).status(), HasCode(absl::StatusCode::kOk));
}

TEST(Gemma3ConfigTest, TheRopeNameTellsEveryParameterApart) {
  ASSERT_OK_AND_ASSIGN(const Config config, ParseConfig(NewStyle()));
  const std::string name = RopeName(config);
  EXPECT_EQ(RopeName(*ParseConfig(OldStyle())), name);
  for (const auto& change : std::vector<void (*)(Config*)>{
           [](Config* c) { c->full_rope.theta += 1; },
           [](Config* c) { c->sliding_rope.theta += 1; },
           [](Config* c) { c->full_rope.linear_factor += 0.0001; },
           [](Config* c) { c->sliding_rope.linear_factor += 0.0001; },
           [](Config* c) { std::swap(c->full_rope, c->sliding_rope); }}) {
    Config other = config;
    change(&other);
    EXPECT_NE(RopeName(other), name);
  }
  // Seven digits and more count too.
  Config a = config;
  a.full_rope.theta = 1'000'000;
  Config b = config;
  b.full_rope.theta = 1'000'001;
  EXPECT_NE(RopeName(a), RopeName(b));
}

}  // namespace
}  // namespace torpor::replay::gemma3
