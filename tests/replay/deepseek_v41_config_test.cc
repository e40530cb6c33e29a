// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1's config.json under the release's keys and under those of
// transformers, what it refuses, and anything at all in its place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "replay/deepseek_v41/config.h"
#include "replay/families.h"
#include "tests/replay/deepseek_v41_invariants.h"
#include "tests/testing/random.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

json CaseConfig(const std::string& name) {
  const auto text = ReadModelConfig(CaseDirectory(name));
  EXPECT_OK(text.status());
  return json::parse(*text);
}

// The text model's keys as the release has them.
json Plain() { return CaseConfig("plain")["text_config"]; }

// The same as transformers writes them.
json PlainOfTransformers() {
  json config = Plain();
  config["rope_parameters"] = {{"main",
                                {{"rope_type", "default"},
                                 {"rope_theta", config["rope_theta"]},
                                 {"partial_rotary_factor", 0.25}}},
                               {"compress", config["rope_scaling"]}};
  config["rope_parameters"]["compress"]["rope_theta"] =
      config["compress_rope_theta"];
  config["rope_parameters"]["compress"]["partial_rotary_factor"] = 0.25;
  config["rope_parameters"]["compress"]["attention_factor"] = 1.0;
  config["engram_pad_id"] = config["engram_pad_token_id"];
  for (const char* key : {"rope_scaling", "rope_theta", "compress_rope_theta",
                          "engram_pad_token_id"}) {
    config.erase(key);
  }
  config["layer_types"] = json::array();
  for (int l = 0; l < 11; ++l) {
    config["layer_types"].push_back(l == 2 || l == 5 || l == 7
                                        ? "shared_compressed_attention"
                                        : "sliding_attention");
  }
  config["dspark_target_layer_ids"] = {8, 9, 10};
  config["use_cache"] = true;
  config["initializer_range"] = 0.02;
  config["output_router_logits"] = false;
  config["router_aux_loss_coef"] = 0.001;
  return config;
}

json With(json config, const std::string& key, const json& value) {
  config[key] = value;
  return config;
}

json Without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

// Every field, so that two configs can be compared.
json Fields(const Config& c) {
  json layers = json::array();
  for (const LayerConfig& l : c.layers) {
    layers.push_back({l.ratio, l.kv_source, l.index_source, l.is_kv_source,
                      l.is_index_source, l.uses_candidates, l.engram});
  }
  return {{"vocab", c.vocab_size},
          {"hidden", c.hidden_size},
          {"layers", layers},
          {"n_layers", c.n_layers},
          {"heads", {c.n_heads, c.head_dim, c.rope_dim, c.q_rank}},
          {"o", {c.o_groups, c.o_rank}},
          {"window", c.window},
          {"norm_eps", c.norm_eps},
          {"index", {c.index_heads, c.index_dim, c.index_topk}},
          {"candidates",
           {c.candidate_source, c.candidate_blocks, c.candidate_block_size}},
          {"experts", {c.n_experts, c.n_active, c.n_shared, c.expert_dim}},
          {"router", {c.routed_scale, c.gate_temperature, c.swiglu_limit}},
          {"hc", {c.n_streams, c.sinkhorn_iterations, c.hc_eps}},
          {"rope", {c.rope_theta, c.compress_theta}},
          {"yarn",
           {c.yarn.factor, c.yarn.beta_fast, c.yarn.beta_slow,
            c.yarn.original_positions}},
          {"engram",
           {c.engram.max_ngram, c.engram.n_heads, c.engram.head_dim,
            c.engram.base_vocab, c.engram.compressed_vocab, c.engram_layers,
            c.engram_rows, c.engram_pad_id}}};
}

json ParsedFields(const json& config) {
  const auto parsed = ParseConfig(config);
  EXPECT_OK(parsed.status());
  return parsed.ok() ? Fields(*parsed) : json();
}

// ---- what it reads ---------------------------------------------------------

TEST(DeepSeekV41ConfigTest, ReadsTheReleasesKeys) {
  const json got = ParsedFields(Plain());
  EXPECT_EQ(got["vocab"], 160);
  EXPECT_EQ(got["hidden"], 64);
  EXPECT_EQ(got["heads"], json({4, 64, 16, 32}));
  EXPECT_EQ(got["o"], json({2, 16}));
  EXPECT_EQ(got["window"], 8);
  EXPECT_EQ(got["norm_eps"], 1e-20);
  EXPECT_EQ(got["index"], json({4, 32, 6}));
  EXPECT_EQ(got["candidates"], json({7, 3, 4}));
  EXPECT_EQ(got["experts"], json({8, 2, 1, 32}));
  EXPECT_EQ(got["router"], json({1.5, 1.0, 1.5}));
  EXPECT_EQ(got["hc"], json({4, 20, 1e-6}));
  EXPECT_EQ(got["rope"], json({1e4, 1.6e5}));
  EXPECT_EQ(got["yarn"], json({16.0, 32.0, 1.0, 512}));
  EXPECT_EQ(got["engram"], json({4, 2, 32, 100, 120, {1, 5}, {660, 864}, 2}));
  ASSERT_EQ(got["layers"].size(), 11);
  // ratio, KV source, index source; is a source of each; candidates; Engram.
  EXPECT_EQ(got["layers"][1], json({0, -1, -1, false, false, false, 0}));
  EXPECT_EQ(got["layers"][4], json({2, 2, 2, false, false, false, -1}));
  EXPECT_EQ(got["layers"][5], json({2, 5, 5, true, true, false, 1}));
  EXPECT_EQ(got["layers"][7], json({1, 7, 7, true, true, false, -1}));
  EXPECT_EQ(got["layers"][9], json({1, 7, 9, false, true, true, -1}));
  EXPECT_EQ(got["layers"][10], json({1, 7, 9, false, false, false, -1}));
  EXPECT_EQ(ParseConfig(Plain())->LastSource(), 7);
}

TEST(DeepSeekV41ConfigTest, TransformersKeysSayTheSame) {
  const json wanted = ParsedFields(Plain());
  EXPECT_EQ(ParsedFields(PlainOfTransformers()), wanted);
  // Nested in the multimodal config, either way.
  for (const json& text : {Plain(), PlainOfTransformers()}) {
    EXPECT_EQ(ParsedFields({{"model_type", "deepseek_v41"},
                            {"text_config", text},
                            {"vision_config", {{"hidden_size", 16}}}}),
              wanted);
  }
  ASSERT_OK_AND_ASSIGN(const ModelLayout a, LayoutOf(Plain()));
  ASSERT_OK_AND_ASSIGN(const ModelLayout b, LayoutOf(PlainOfTransformers()));
  EXPECT_EQ(a, b);
}

// transformers keeps rope_scaling beside what it made of it.
TEST(DeepSeekV41ConfigTest, RopesOfBothKindsCountBeforeTheOldKeys) {
  json config = PlainOfTransformers();
  config["rope_theta"] = 7;
  config["compress_rope_theta"] = 8;
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 9}};
  EXPECT_EQ(ParsedFields(config), ParsedFields(Plain()));
  // Where the parts have no theta, the old keys do.
  config["rope_parameters"]["main"].erase("rope_theta");
  config["rope_parameters"]["compress"].erase("rope_theta");
  EXPECT_EQ(ParsedFields(config)["rope"], json({7.0, 8.0}));
}

TEST(DeepSeekV41ConfigTest, ScalingIsThatOfCompressedLayers) {
  const json scaling = Plain()["rope_scaling"];
  json old_name = scaling;
  old_name.erase("rope_type");
  old_name["type"] = "yarn";
  EXPECT_EQ(ParsedFields(With(Plain(), "rope_scaling", old_name)),
            ParsedFields(Plain()));
  EXPECT_EQ(ParsedFields(With(Without(Plain(), "rope_scaling"),
                              "rope_parameters", scaling)),
            ParsedFields(Plain()));
  for (const json& none :
       {json(nullptr), json::object(), json{{"rope_type", "default"}}}) {
    EXPECT_EQ(ParsedFields(With(Plain(), "rope_scaling", none))["yarn"][0], 1.0)
        << none;
  }
}

TEST(DeepSeekV41ConfigTest, AbsentKeysAreTheReleases) {
  const json release = ReleaseConfig()["text_config"];
  json config = json::object();
  for (const char* key :
       {"compress_ratios", "kv_source_layer_ids", "index_source_layer_ids",
        "engram_layer_ids", "engram_num_embeddings", "rope_scaling",
        "engram_compressed_vocab_size", "num_nextn_predict_layers"}) {
    config[key] = release[key];
  }
  EXPECT_EQ(ParsedFields(config), ParsedFields(release));
  for (const char* key : {"factor", "beta_fast", "beta_slow",
                          "original_max_position_embeddings"}) {
    config["rope_scaling"].erase(key);
  }
  EXPECT_EQ(ParsedFields(config), ParsedFields(release));
  // The last KV source, as transformers has it; -1 is none.
  EXPECT_EQ(ParsedFields(config)["candidates"], json({20, 2048, 8}));
  config["candidate_source_layer_id"] = nullptr;
  EXPECT_EQ(ParsedFields(config)["candidates"], json({20, 2048, 8}));
  config["candidate_source_layer_id"] = -1;
  EXPECT_EQ(ParsedFields(config)["candidates"], json({-1, 0, 0}));
  for (const json& layer : ParsedFields(config)["layers"]) {
    EXPECT_EQ(layer[5], false);
  }
}

TEST(DeepSeekV41ConfigTest, TheRopeNameTellsEveryParameterApart) {
  const std::string name = RopeName(*ParseConfig(Plain()));
  EXPECT_EQ(RopeName(*ParseConfig(PlainOfTransformers())), name);
  for (const auto& change : std::vector<void (*)(Config*)>{
           [](Config* c) { c->rope_dim -= 2; },
           [](Config* c) { c->rope_theta += 1e-9; },
           [](Config* c) { c->compress_theta += 1e-9; },
           [](Config* c) { c->yarn.factor += 1e-9; },
           [](Config* c) { c->yarn.beta_fast += 1e-9; },
           [](Config* c) { c->yarn.beta_slow += 1e-9; },
           [](Config* c) { c->yarn.original_positions += 1; },
           [](Config* c) { std::swap(c->rope_theta, c->compress_theta); }}) {
    Config other = *ParseConfig(Plain());
    change(&other);
    EXPECT_NE(RopeName(other), name);
  }
}

// ---- what it refuses -------------------------------------------------------

struct Refusal {
  const char* key;
  const char* value;
  // What the message says beside the key.
  const char* got;
  const char* wanted;
  absl::StatusCode code = kInvalid;
};

void ExpectRefused(const json& config, const Refusal& refusal) {
  SCOPED_TRACE(std::string(refusal.key) + " = " + refusal.value);
  // As a model is loaded: what rows are made of is the layout's to refuse.
  absl::Status status = ParseConfig(config).status();
  if (status.ok()) status = LayoutOf(config).status();
  EXPECT_THAT(status,
              HasStatus(refusal.code, "'" + std::string(refusal.key) + "'"));
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(std::string("got ") + refusal.got));
  EXPECT_THAT(message, HasSubstr(std::string("wanted ") + refusal.wanted));
}

constexpr Refusal kRefusals[] = {
    {"vocab_size", "0", "0", "an integer of [1, "},
    {"vocab_size", "\"160\"", "\"160\"", "an integer"},
    {"vocab_size", "160.5", "160.5", "an integer"},
    {"vocab_size", "[160]", "[160]", "an integer"},
    {"hidden_size", "0", "0", "an integer of [1, "},
    {"hidden_size", "63", "63", "a multiple of 2"},
    {"hidden_size", "9223372036854775808", "9223372036854775808", "an integer"},
    {"num_hidden_layers", "0", "0", "an integer of [1, "},
    {"num_hidden_layers", "2049", "2049", "an integer of [1, 2048]"},
    {"max_position_embeddings", "0", "0", "an integer"},
    {"num_attention_heads", "-4", "-4", "an integer"},
    {"num_attention_heads", "5", "5", "a multiple of 2"},
    {"num_key_value_heads", "2", "2", "an integer of [1, 1]"},
    {"head_dim", "48", "48", "a multiple of 64"},
    {"qk_rope_head_dim", "15", "15", "a multiple of 2"},
    {"qk_rope_head_dim", "0", "0", "at least 2"},
    {"qk_rope_head_dim", "66", "66", "at most head_dim, 64"},
    {"qk_rope_head_dim", "48", "48", "at most index_head_dim, 32"},
    {"q_lora_rank", "31", "31", "a multiple of 2"},
    {"q_lora_rank", "true", "true", "an integer"},
    {"o_groups", "0", "0", "an integer of [1, 4]"},
    {"o_groups", "5", "5", "an integer of [1, 4]"},
    {"o_lora_rank", "15", "15", "a multiple of 2"},
    {"sliding_window", "0", "0", "an integer of [1, "},
    {"sliding_window", "16777217", "16777217", "an integer"},
    {"compress_ratios", "[0, 0]", "2 entries", "one for each of 11 layers"},
    {"compress_ratios", "[0, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1]", "12 entries",
     "one for each of 11 layers, and none beyond those of 0 draft layers"},
    {"compress_ratios", "{}", "{}", "a list of integers"},
    {"kv_source_layer_ids", "[5, 2]", "[5,2]", "layers in ascending order"},
    {"kv_source_layer_ids", "[2, 5, 11]", "[2,5,11]", "a list of integers"},
    {"index_source_layer_ids", "[2, 7, 9]",
     "layer 5, which reads the entries of layer 5 and the picks of layer 2",
     "an index source among the readers of those entries"},
    {"index_source_layer_ids", "\"2\"", "\"2\"", "a list of integers"},
    {"candidate_source_layer_id", "11", "11", "an integer of [-1, 10]"},
    {"candidate_source_layer_id", "8", "8", "an index source"},
    {"candidate_topk_blocks", "0", "0", "an integer of [1, "},
    {"candidate_block_size", "0", "0", "an integer of [1, "},
    {"index_n_heads", "0", "0", "an integer of [1, "},
    {"index_head_dim", "24", "24", "a multiple of 32"},
    {"index_topk", "0", "0", "an integer of [1, "},
    {"n_routed_experts", "0", "0", "an integer of [1, "},
    {"num_experts_per_tok", "9", "9", "an integer of [1, 8]"},
    {"n_shared_experts", "-1", "-1", "an integer of [0, "},
    {"moe_intermediate_size", "33", "33", "a multiple of 2"},
    {"scoring_func", "\"softmax\"", "'softmax'", "sqrtsoftplus",
     kUnimplemented},
    {"scoring_func", "1", "1", "a string"},
    {"topk_method", "\"greedy\"", "'greedy'", "noaux_tc", kUnimplemented},
    {"hidden_act", "\"gelu\"", "'gelu'", "silu", kUnimplemented},
    {"norm_topk_prob", "false", "false", "true", kUnimplemented},
    {"norm_topk_prob", "1", "1", "true or false"},
    {"routed_scaling_factor", "0", "0", "a number above 0"},
    {"routed_scaling_factor", "-1.5", "-1.5", "a number above 0"},
    {"gate_temp", "0", "0", "a number above 0"},
    {"gate_temp", "1e-50", "1e-50", "a number above 0 that f32 can hold"},
    {"gate_temp", "\"1\"", "\"1\"", "a number"},
    {"swiglu_limit", "-1", "-1", "a number above 0"},
    {"swiglu_limit", "[]", "[]", "a number"},
    {"hc_mult", "0", "0", "an integer of [1, "},
    {"hc_mult", "1000", "1000", "an integer of [1, "},
    {"hc_sinkhorn_iters", "0", "0", "an integer of [1, "},
    {"hc_eps", "0", "0", "a number above 0"},
    {"rms_norm_eps", "0", "0", "a number above 0"},
    {"rms_norm_eps", "1e300", "1e+300", "a number above 0 that f32 can hold"},
    {"rope_theta", "-1", "-1", "a number above 0"},
    {"compress_rope_theta", "0", "0", "a number above 0"},
    {"rope_scaling", "\"yarn\"", "\"yarn\"", "an object"},
    {"rope_scaling", "{\"rope_type\": \"linear\"}", "'linear'",
     "yarn or default", kUnimplemented},
    {"rope_parameters", "[]", "[]", "an object"},
    {"rope_parameters", "{\"main\": {}}", "{\"main\":{}}",
     "'main' and 'compress'"},
    {"rope_parameters",
     "{\"main\": {\"rope_type\": \"yarn\"}, \"compress\": {}}", "'yarn'",
     "default of 'main'", kUnimplemented},
    {"rope_parameters",
     "{\"main\": {}, \"compress\": {\"rope_type\": \"llama3\"}}", "'llama3'",
     "yarn or default", kUnimplemented},
    {"attention_bias", "true", "true", "false", kUnimplemented},
    {"attention_bias", "0", "0", "true or false"},
    {"tie_word_embeddings", "true", "true", "false", kUnimplemented},
    {"engram_layer_ids", "[5, 1]", "[5,1]", "layers in ascending order"},
    {"engram_layer_ids", "[1, 1]", "[1,1]", "layers in ascending order"},
    {"engram_layer_ids", "[1, 11]", "[1,11]", "a list of integers of [0, 11)"},
    {"engram_layer_ids", "[1, -5]", "[1,-5]", "a list of integers"},
    {"engram_layer_ids", "[1]", "1 and 2 entries", "as many"},
    {"engram_layer_ids", "null", "0 and 2 entries", "as many"},
    {"engram_num_embeddings", "[660]", "2 and 1 entries", "as many"},
    {"engram_num_embeddings", "[660, -1]", "[660,-1]", "a list of integers"},
    {"engram_num_embeddings", "660", "660", "a list of integers"},
    {"engram_max_ngram_size", "1", "1", "an integer of [2, 16]"},
    {"engram_max_ngram_size", "17", "17", "an integer of [2, 16]"},
    {"engram_n_heads", "0", "0", "an integer of [1, "},
    {"engram_head_dim", "0", "0", "an integer of [1, "},
    {"engram_vocab_size", "0", "0", "an integer of [1, "},
    {"engram_compressed_vocab_size", "161", "161", "an integer of [1, 160]"},
    {"engram_pad_token_id", "160", "160", "an integer of [0, 159]"},
    {"engram_pad_token_id", "\"2\"", "\"2\"", "an integer"},
};

TEST(DeepSeekV41ConfigTest, BadValuesAreRefusedByKey) {
  for (const Refusal& refusal : kRefusals) {
    ExpectRefused(With(Plain(), refusal.key, json::parse(refusal.value)),
                  refusal);
  }
  ExpectRefused(With(PlainOfTransformers(), "engram_pad_id", 160),
                {"engram_pad_id", "160", "160", "an integer of [0, 159]"});
}

// Entries of draft layers may follow those of layers, and no others.
TEST(DeepSeekV41ConfigTest, RatiosOfDraftLayersMayFollow) {
  for (const char* key : {"num_nextn_predict_layers", "num_mtp_layers"}) {
    json config = Plain();
    config.erase("num_nextn_predict_layers");
    config[key] = 2;
    const json wanted = ParsedFields(config);
    for (int n = 0; n <= 2; ++n) {
      EXPECT_EQ(ParsedFields(config), wanted) << n;
      config["compress_ratios"].push_back(0);
    }
    ExpectRefused(config, {"compress_ratios", "with 3 more", "14 entries",
                           "one for each of 11 layers, and none beyond those "
                           "of 2 draft layers"});
  }
}

// NumPy draws the multipliers of larger vocabularies by another method.
TEST(DeepSeekV41ConfigTest, CompressedIdsAreAsManyAsCanBeDrawnFor) {
  json config = With(Plain(), "vocab_size", int64_t{1} << 31);
  config["engram_compressed_vocab_size"] = (1 << 30) - 1;
  EXPECT_OK(ParseConfig(config));
  ExpectRefused(With(config, "engram_compressed_vocab_size", 1 << 30),
                {"engram_compressed_vocab_size", "2^30", "1073741824",
                 "an integer of [1, 1073741823]"});
}

// Wherever the factor stands, the rotated elements are qk_rope_head_dim.
TEST(DeepSeekV41ConfigTest, APartialFactorAgreesWithTheDimensions) {
  const std::pair<const char*, const char*> places[] = {
      {nullptr, nullptr},
      {"rope_scaling", nullptr},
      {"rope_parameters", nullptr},
      {"rope_parameters", "main"},
      {"rope_parameters", "compress"}};
  for (const auto& [outer, inner] : places) {
    json config = Plain();
    json* place = &config;
    if (outer != nullptr) {
      if (std::string(outer) == "rope_parameters") {
        config = inner == nullptr ? With(Without(Plain(), "rope_scaling"),
                                         outer, Plain()["rope_scaling"])
                                  : PlainOfTransformers();
      }
      place = &config[outer];
      if (inner != nullptr) place = &(*place)[inner];
    }
    SCOPED_TRACE(std::string(outer == nullptr ? "" : outer) + "/" +
                 (inner == nullptr ? "" : inner));
    // int(64 x 0.26) is 16 too.
    for (const json& factor : {json(0.25), json(0.26), json(nullptr)}) {
      (*place)["partial_rotary_factor"] = factor;
      EXPECT_OK(ParseConfig(config));
    }
    for (const char* factor : {"0.5", "0.2499", "1", "0", "-0.25"}) {
      (*place)["partial_rotary_factor"] = json::parse(factor);
      ExpectRefused(config, {"partial_rotary_factor", factor, factor,
                             "qk_rope_head_dim / head_dim, 16 / 64"});
    }
    (*place)["partial_rotary_factor"] = "0.25";
    ExpectRefused(config,
                  {"partial_rotary_factor", "text", "\"0.25\"", "a number"});
  }
}

constexpr Refusal kRopeRefusals[] = {
    {"factor", "0", "0", "a number above 0"},
    {"factor", "\"16\"", "\"16\"", "a number"},
    {"beta_fast", "-1", "-1", "a number above 0"},
    {"beta_slow", "0", "0", "a number above 0"},
    {"original_max_position_embeddings", "0", "0", "an integer of [1, "},
    {"attention_factor", "1.2", "1.2", "1", kUnimplemented},
    {"rope_type", "5", "5", "a string"},
};

TEST(DeepSeekV41ConfigTest, BadScalingsAreRefusedByKey) {
  for (const Refusal& refusal : kRopeRefusals) {
    json config = Plain();
    config["rope_scaling"][refusal.key] = json::parse(refusal.value);
    ExpectRefused(config, refusal);
    config = PlainOfTransformers();
    config["rope_parameters"]["compress"][refusal.key] =
        json::parse(refusal.value);
    ExpectRefused(config, refusal);
  }
  for (const char* part : {"main", "compress"}) {
    json config = PlainOfTransformers();
    config["rope_parameters"][part]["rope_theta"] = 0;
    ExpectRefused(config, {"rope_theta", "0", "0", "a number above 0"});
    config["rope_parameters"][part] = 5;
    ExpectRefused(config, {part, "5", "5", "an object"});
  }
}

// The first fault is the one that is named, wherever the others stand.
TEST(DeepSeekV41ConfigTest, OneFaultIsNamed) {
  json config = With(Plain(), "vocab_size", 0);
  config["rope_scaling"] = "yarn";
  EXPECT_THAT(ParseConfig(config), HasStatus(kInvalid, "'vocab_size'"));
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
