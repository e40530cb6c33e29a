// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss' config.json as the release and transformers 5.24 write it, and what
// is refused, by key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/families.h"
#include "replay/fingerprint.h"
#include "replay/gpt_oss/config.h"
#include "tests/testing/status_matchers.h"

namespace torpor::replay::gpt_oss {
namespace {

using nlohmann::json;
using torpor::testing::HasCode;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// Of openai/gpt-oss-20b.
json Release() {
  std::ifstream in(std::string(TORPOR_ORACLES_DIR) +
                   "/configs/gpt-oss-20b.json");
  return json::parse(in);
}

json With(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

json WithRope(const json& rope) {
  json config = Release();
  config.erase("rope_scaling");
  config.erase("initial_context_length");
  config["rope_parameters"] = rope;
  return config;
}

TEST(GptOssConfigTest, ReadsTheRelease) {
  ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(Release()));
  EXPECT_EQ(c.stack.vocab_size, 201'088);
  EXPECT_EQ(c.stack.max_positions, 131'072);
  EXPECT_EQ(c.hidden_size, 2880);
  EXPECT_EQ(c.intermediate_size, 2880);
  EXPECT_EQ(c.n_layers(), 24);
  EXPECT_EQ(c.n_heads, 64);
  EXPECT_EQ(c.n_kv_heads(), 8);
  EXPECT_EQ(c.head_dim(), 64);
  EXPECT_EQ(c.n_experts, 32);
  EXPECT_EQ(c.n_active, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.swiglu_alpha, 1.702);
  EXPECT_EQ(c.swiglu_limit, 7);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.dtype, "");
  for (size_t l = 0; l < 24; ++l) {
    EXPECT_EQ(c.stack.layers[l].reach, l % 2 == 0 ? 128 : 0) << l;
  }
  EXPECT_EQ(c.rope.theta, 150'000);
  ASSERT_TRUE(c.rope.yarn.has_value());
  EXPECT_EQ(c.rope.yarn->factor, 32);
  EXPECT_EQ(c.rope.yarn->beta_fast, 32);
  EXPECT_EQ(c.rope.yarn->beta_slow, 1);
  EXPECT_EQ(c.rope.yarn->original_positions, 4096);
  EXPECT_FALSE(c.rope.yarn->truncate);
  // 0.1 ln 32 + 1.
  EXPECT_NEAR(c.rope.attention_factor, 1.3465735902799727, 1e-15);
}

// transformers' GptOssConfig(), field by field.
TEST(GptOssConfigTest, AbsentKeysAreTheDefaultsOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const Config c,
                       ParseConfig({{"model_type", "gpt_oss"}}));
  EXPECT_EQ(c.stack.vocab_size, 201'088);
  EXPECT_EQ(c.stack.max_positions, 131'072);
  EXPECT_EQ(c.hidden_size, 2880);
  EXPECT_EQ(c.intermediate_size, 2880);
  EXPECT_EQ(c.n_layers(), 36);
  EXPECT_EQ(c.n_heads, 64);
  EXPECT_EQ(c.n_kv_heads(), 8);
  EXPECT_EQ(c.head_dim(), 64);
  EXPECT_EQ(c.n_experts, 128);
  EXPECT_EQ(c.n_active, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.swiglu_alpha, 1.702);
  EXPECT_EQ(c.swiglu_limit, 7);
  EXPECT_TRUE(c.attention_bias);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_EQ(c.stack.layers[0].reach, 128);
  EXPECT_EQ(c.stack.layers[35].reach, 0);
  ASSERT_OK_AND_ASSIGN(const Config release, ParseConfig(Release()));
  EXPECT_EQ(RopeName(c), RopeName(release));
}

TEST(GptOssConfigTest, TheLayoutIsThatOfTheFamily) {
  ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(Release()));
  ASSERT_OK_AND_ASSIGN(const ModelLayout mine,
                       LayoutOf(c, kernels::DType::kBf16));
  ASSERT_OK_AND_ASSIGN(const ModelLayout planned,
                       LayoutFromConfig(Release().dump(), {}));
  EXPECT_EQ(LayoutDigest(mine), LayoutDigest(planned));
  EXPECT_EQ(FiguresOf(mine, 131'072).compact_bytes_per_token, 24'576);
}

TEST(GptOssConfigTest, TheRopeStandsUnderEitherKey) {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 8},
                     {"rope_theta", 7000},
                     {"original_max_position_embeddings", 64}};
  ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(WithRope(yarn)));
  EXPECT_EQ(c.rope.theta, 7000);
  EXPECT_EQ(c.rope.yarn->original_positions, 64);
  EXPECT_TRUE(c.rope.yarn->truncate);
  EXPECT_EQ(c.rope.yarn->beta_fast, 32);
  // rope_scaling wins, unless it is empty; "type" is the old name of the type.
  ASSERT_OK_AND_ASSIGN(
      const Config both,
      ParseConfig(With(WithRope(yarn), "rope_scaling", {{"type", "default"}})));
  EXPECT_FALSE(both.rope.yarn.has_value());
  EXPECT_EQ(both.rope.theta, 150'000);
  EXPECT_EQ(both.rope.attention_factor, 1);
  ASSERT_OK_AND_ASSIGN(
      const Config empty,
      ParseConfig(With(WithRope(yarn), "rope_scaling", json::object())));
  EXPECT_EQ(RopeName(empty), RopeName(c));
  // Without a length of its own, that of the model; the outer key counts most.
  json bare = yarn;
  bare.erase("original_max_position_embeddings");
  ASSERT_OK_AND_ASSIGN(const Config model, ParseConfig(WithRope(bare)));
  EXPECT_EQ(model.rope.yarn->original_positions, 131'072);
  ASSERT_OK_AND_ASSIGN(
      const Config outer,
      ParseConfig(
          With(WithRope(yarn), "original_max_position_embeddings", 2048)));
  EXPECT_EQ(outer.rope.yarn->original_positions, 2048);
}

TEST(GptOssConfigTest, TheAttentionFactorIsGivenOrFollows) {
  const auto factor = [](const json& more) {
    json rope = {{"rope_type", "yarn"}, {"factor", 4}};
    rope.update(more);
    const auto parsed = ParseConfig(WithRope(rope));
    EXPECT_OK(parsed.status());
    return parsed.ok() ? parsed->rope.attention_factor : 0;
  };
  EXPECT_NEAR(factor(json::object()), 1.138629436111989, 1e-15);
  EXPECT_EQ(factor({{"factor", 0.5}}), 1);
  EXPECT_EQ(factor({{"attention_factor", 1.25}}), 1.25);
  EXPECT_NEAR(factor({{"mscale", 1.0}, {"mscale_all_dim", 0.5}}),
              1.138629436111989 / 1.0693147180559945, 1e-15);
  // Both or none of them.
  EXPECT_NEAR(factor({{"mscale", 2.0}}), 1.138629436111989, 1e-15);
  EXPECT_THAT(ParseConfig(WithRope({{"rope_type", "yarn"},
                                    {"factor", 4},
                                    {"mscale", -100},
                                    {"mscale_all_dim", 1}})),
              HasStatus(kInvalid, "'mscale'"));
}

TEST(GptOssConfigTest, EveryRopeHasANameOfItsOwn) {
  const json rope = {{"rope_type", "yarn"},
                     {"factor", 4},
                     {"original_max_position_embeddings", 64}};
  std::vector<std::string> names;
  for (const json& more :
       {json::object(), json{{"factor", 5}}, json{{"beta_fast", 31}},
        json{{"beta_slow", 2}}, json{{"truncate", false}},
        json{{"attention_factor", 2}}, json{{"rope_theta", 9}},
        json{{"original_max_position_embeddings", 65}},
        json{{"rope_type", "default"}}}) {
    json changed = rope;
    changed.update(more);
    ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(WithRope(changed)));
    EXPECT_THAT(names, ::testing::Not(::testing::Contains(RopeName(c))))
        << more;
    names.push_back(RopeName(c));
  }
}

// Each key with each value that it cannot have.
TEST(GptOssConfigTest, ValuesThatCannotBeAreRefusedByKey) {
  const auto refused = [](json config, const char* key, const char* text) {
    config[key] = json::parse(text);
    const auto parsed = ParseConfig(config);
    ASSERT_THAT(parsed, HasCode(kInvalid)) << key << " " << text;
    EXPECT_THAT(std::string(parsed.status().message()),
                ::testing::HasSubstr(key))
        << text;
  };
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim",
        "sliding_window", "max_position_embeddings", "num_local_experts",
        "num_experts_per_tok"}) {
    for (const char* value :
         {"0", "-1", "1e30", "8.5", "\"8\"", "true", "[]"}) {
      refused(Release(), key, value);
    }
  }
  for (const char* key :
       {"rms_norm_eps", "swiglu_alpha", "swiglu_limit", "rope_theta"}) {
    for (const char* value : {"-1", "\"1\"", "true", "[]"}) {
      refused(Release(), key, value);
    }
  }
  // Nothing and no number once they are f32.
  for (const char* key : {"swiglu_alpha", "swiglu_limit", "rope_theta"}) {
    for (const char* value : {"1e-60", "1e60"}) refused(Release(), key, value);
  }
  for (const char* key : {"attention_bias", "tie_word_embeddings"}) {
    for (const char* value : {"0", "\"true\"", "[]"}) {
      refused(Release(), key, value);
    }
  }
  for (const char* key : {"hidden_act", "dtype", "torch_dtype", "rope_scaling",
                          "rope_parameters", "quantization_config"}) {
    json config = Release();
    config.erase("rope_scaling");
    refused(config, key, "5");
  }
  for (const char* key :
       {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings",
        "rope_theta", "attention_factor"}) {
    for (const char* value : {"0", "-1", "\"1\"", "true", "[]"}) {
      json object = {{"rope_type", "yarn"}, {"factor", 4}};
      object[key] = json::parse(value);
      EXPECT_THAT(ParseConfig(WithRope(object)), HasStatus(kInvalid, key))
          << value;
    }
  }
  EXPECT_THAT(ParseConfig(WithRope({{"rope_type", "yarn"}})),
              HasStatus(kInvalid, "'factor'"));
}

TEST(GptOssConfigTest, KeysThatContradictEachOtherAreRefused) {
  EXPECT_THAT(ParseConfig(With(Release(), "experts_per_token", 2)),
              HasStatus(kInvalid, "'experts_per_token'"));
  EXPECT_THAT(ParseConfig(With(Release(), "num_experts", 16)),
              HasStatus(kInvalid, "'num_experts'"));
  EXPECT_THAT(ParseConfig(With(Release(), "initial_context_length", 8192)),
              HasStatus(kInvalid, "'initial_context_length'"));
  json many = Release();
  many["num_experts_per_tok"] = 33;
  many["experts_per_token"] = 33;
  EXPECT_THAT(ParseConfig(many), HasStatus(kInvalid, "num_experts_per_tok"));
  EXPECT_THAT(ParseConfig(With(Release(), "sliding_window", nullptr)),
              HasStatus(kInvalid, "'sliding_window'"));
  // The old name of the number of experts is read where it stands alone.
  json named = Release();
  named.erase("num_local_experts");
  named["num_experts"] = 16;
  ASSERT_OK_AND_ASSIGN(const Config c, ParseConfig(named));
  EXPECT_EQ(c.n_experts, 16);
}

TEST(GptOssConfigTest, WhatHasNoForwardHereIsRefusedByKey) {
  EXPECT_THAT(ParseConfig(With(Release(), "hidden_act", "gelu")),
              HasStatus(kUnimplemented, "'hidden_act'"));
  EXPECT_THAT(ParseConfig(With(Release(), "head_dim", 40)),
              HasStatus(kUnimplemented, "'head_dim'"));
  EXPECT_THAT(ParseConfig(With(Release(), "intermediate_size", 2881)),
              HasStatus(kUnimplemented, "'intermediate_size'"));
  EXPECT_THAT(ParseConfig(With(Release(), "per_layer_config",
                               {{"01", {{"head_dim", 32}}}})),
              HasStatus(kUnimplemented, "'per_layer_config'"));
  EXPECT_THAT(ParseConfig(With(Release(), "quantization_config",
                               {{"quant_method", "gptq"}})),
              HasStatus(kUnimplemented, "'gptq'"));
  EXPECT_THAT(ParseConfig(With(Release(), "partial_rotary_factor", 0.5)),
              HasStatus(kUnimplemented, "'partial_rotary_factor'"));
  EXPECT_THAT(ParseConfig(WithRope(
                  {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}})),
              HasStatus(kUnimplemented, "'partial_rotary_factor'"));
  for (const char* type : {"linear", "dynamic", "longrope", "llama3", ""}) {
    EXPECT_THAT(ParseConfig(WithRope({{"rope_type", type}, {"factor", 8}})),
                HasStatus(kUnimplemented, "'" + std::string(type) + "'"));
  }
  EXPECT_THAT(
      ParseConfig(WithRope({{"full_attention", {{"rope_type", "default"}}}})),
      HasStatus(kUnimplemented, "'rope_parameters.full_attention'"));
  json chunked = Release();
  chunked["layer_types"][0] = "chunked_attention";
  chunked["attention_chunk_size"] = 64;
  EXPECT_THAT(ParseConfig(chunked),
              HasStatus(kInvalid, "'attention_chunk_size'"));
}

TEST(GptOssConfigTest, BiasesAndTiedHeadsAreRead) {
  ASSERT_OK_AND_ASSIGN(const Config bare,
                       ParseConfig(With(Release(), "attention_bias", false)));
  EXPECT_FALSE(bare.attention_bias);
  ASSERT_OK_AND_ASSIGN(
      const Config tied,
      ParseConfig(With(Release(), "tie_word_embeddings", true)));
  EXPECT_TRUE(tied.tied_embeddings);
}

}  // namespace
}  // namespace torpor::replay::gpt_oss
