// SPDX-License-Identifier: Apache-2.0
//
// engram.json: which rows its tables give, what is drawn where it is silent,
// and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/deepseek_v41/engram.h"
#include "tests/replay/deepseek_v41_invariants.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/temp_dir.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using torpor::testing::HasStatus;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

json PlainConfigJson() {
  return json::parse(ReadBack(CaseDirectory("plain") + "/config.json"));
}
Config PlainConfig() { return *ParseConfig(PlainConfigJson()); }
json PlainEngram() {
  return json::parse(ReadBack(CaseDirectory("plain") + "/engram.json"));
}

std::vector<int64_t> RowsOf(const EngramIndex& index, const Config& config,
                            size_t table, const std::vector<uint32_t>& ids) {
  std::vector<int64_t> rows(static_cast<size_t>(config.engram.n_rows()));
  index.RowsOf(table, ids, rows);
  return rows;
}

// As the fact sheet has it (section 2.11), from the file's numbers.
std::vector<int64_t> RowsBySheet(const json& file, size_t table,
                                 const std::vector<uint32_t>& ids) {
  const auto at = [&](size_t back) -> uint64_t {
    return back < ids.size()
               ? file["token_map"][ids[ids.size() - 1 - back]].get<uint64_t>()
               : file["pad_compressed_id"].get<uint64_t>();
  };
  const auto& multipliers = file["multipliers"][table];
  const auto& primes = file["primes"][table];
  std::vector<int64_t> rows;
  uint64_t hash = at(0) * multipliers[0].get<uint64_t>();
  size_t r = 0;
  for (size_t order = 2; order <= multipliers.size(); ++order) {
    hash ^= at(order - 1) * multipliers[order - 1].get<uint64_t>();
    for (const auto& prime : primes[order - 2]) {
      rows.push_back(
          static_cast<int64_t>(hash % prime.get<uint64_t>() +
                               file["offsets"][table][r++].get<uint64_t>()));
    }
  }
  return rows;
}

TEST(EngramIndexTest, RowsAreTheSheets) {
  const Config config = PlainConfig();
  const json file = PlainEngram();
  ASSERT_OK_AND_ASSIGN(const EngramIndex index,
                       EngramIndex::Parse(file.dump(), config));
  EXPECT_EQ(index.lookback(), 3);
  testing::Random random;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<uint32_t> ids =
        RandomIds(random, random.Between(1, 6), 160);
    for (const size_t table : {0, 1}) {
      const std::vector<int64_t> got = RowsOf(index, config, table, ids);
      ASSERT_EQ(got, RowsBySheet(file, table, ids));
      for (const int64_t row : got) {
        ASSERT_GE(row, 0);
        ASSERT_LT(row, config.engram_rows[table]);
      }
    }
  }
}

// The file's numbers are those that the release draws.
TEST(EngramIndexTest, WhatTheFileLeavesOutIsDrawn) {
  const Config config = PlainConfig();
  ASSERT_OK_AND_ASSIGN(const EngramIndex whole,
                       EngramIndex::Parse(PlainEngram().dump(), config));
  testing::Random random;
  for (const std::vector<std::string>& keys :
       {std::vector<std::string>{"multipliers"},
        {"primes"},
        {"offsets"},
        {"pad_compressed_id"},
        {"layer_ids"},
        {"multipliers", "primes", "offsets", "pad_compressed_id"}}) {
    json file = PlainEngram();
    for (const std::string& key : keys) file.erase(key);
    ASSERT_OK_AND_ASSIGN(const EngramIndex drawn,
                         EngramIndex::Parse(file.dump(), config));
    for (int i = 0; i < 200; ++i) {
      const std::vector<uint32_t> ids =
          RandomIds(random, random.Between(1, 5), 160);
      for (const size_t table : {0, 1}) {
        ASSERT_EQ(RowsOf(drawn, config, table, ids),
                  RowsOf(whole, config, table, ids))
            << keys[0];
      }
    }
  }
}

// 24 primes from 16,000,000 on fill each of the release's tables.
TEST(EngramIndexTest, TheReleasesTablesAreFull) {
  ASSERT_OK_AND_ASSIGN(Config config, ParseConfig(ReleaseConfig()));
  ASSERT_EQ(config.engram_rows,
            (std::vector<int64_t>{384'006'168, 384'016'682}));
  json file = {{"token_map", json::array()}, {"compressed_vocab_size", 99'092}};
  for (int id = 0; id < 129'280; ++id) file["token_map"].push_back(id % 99'092);
  const std::string text = file.dump();
  EXPECT_OK(EngramIndex::Parse(text, config).status());
  for (const size_t table : {0, 1}) {
    Config small = config;
    --small.engram_rows[table];
    EXPECT_THAT(
        EngramIndex::Parse(text, small),
        HasStatus(kInvalid, "'primes': wanted rows of a table of " +
                                std::to_string(small.engram_rows[table])));
  }
}

// ---- refusals --------------------------------------------------------------

struct Refusal {
  const char* name;
  std::function<void(json*)> change;
  // What the message says.
  const char* key;
  const char* wanted;
};

std::vector<Refusal> Refusals() {
  const auto erase = [](const char* key) {
    return [key](json* f) { f->erase(key); };
  };
  const auto set = [](const char* key, const char* value) {
    return [key, value](json* f) { (*f)[key] = json::parse(value); };
  };
  return {
      {"no map", erase("token_map"), "'token_map'", "160 tokens"},
      {"map is no list", set("token_map", "{}"), "'token_map'", "160 tokens"},
      {"map of one token fewer", [](json* f) { (*f)["token_map"].erase(7); },
       "'token_map'", "160 tokens"},
      {"map of one token more", [](json* f) { (*f)["token_map"].push_back(0); },
       "'token_map'", "160 tokens"},
      {"an id that is none", [](json* f) { (*f)["token_map"][3] = "3"; },
       "'token_map'", "160 tokens"},
      {"an id below 0", [](json* f) { (*f)["token_map"][3] = -1; },
       "'token_map'", "160 tokens"},
      {"an id of a half", [](json* f) { (*f)["token_map"][3] = 0.5; },
       "'token_map'", "160 tokens"},
      {"an id beyond all", [](json* f) { (*f)["token_map"][3] = 120; },
       "'token_map'", "ids below 120, got 120"},
      {"an id beyond 63 bits",
       [](json* f) { (*f)["token_map"][3] = UINT64_MAX; }, "'token_map'",
       "160 tokens"},
      {"no size", erase("compressed_vocab_size"), "'compressed_vocab_size'",
       "120, got 0"},
      {"size 0", set("compressed_vocab_size", "0"), "'compressed_vocab_size'",
       "an integer of [1, 160]"},
      {"size is a text", set("compressed_vocab_size", "\"120\""),
       "'compressed_vocab_size'", "an integer"},
      {"size beyond the vocabulary", set("compressed_vocab_size", "161"),
       "'compressed_vocab_size'", "an integer of [1, 160]"},
      {"another size than config.json's", set("compressed_vocab_size", "121"),
       "'compressed_vocab_size'", "engram_compressed_vocab_size, 120, got 121"},
      {"pad below 0", set("pad_compressed_id", "-1"), "'pad_compressed_id'",
       "an integer of [0, "},
      {"pad beyond all", set("pad_compressed_id", "120"), "'token_map'",
       "ids below 120, got 120"},
      {"layers of another model", set("layer_ids", "[1, 6]"), "'layer_ids'",
       "engram_layer_ids"},
      {"layers that are none", set("layer_ids", "1"), "'layer_ids'",
       "engram_layer_ids"},
      {"multipliers of one layer",
       [](json* f) { (*f)["multipliers"].erase(1); }, "'multipliers'",
       "4 integers"},
      {"three multipliers", [](json* f) { (*f)["multipliers"][1].erase(0); },
       "'multipliers'", "4 integers"},
      {"a multiplier of 0", [](json* f) { (*f)["multipliers"][0][2] = 0; },
       "'multipliers'", "numbers of [1, "},
      {"a multiplier that overflows",
       [](json* f) { (*f)["multipliers"][0][2] = INT64_MAX / 120 + 1; },
       "'multipliers'", "numbers of [1, 76861433640456465]"},
      {"multipliers of text", set("multipliers", "\"x\""), "'multipliers'",
       "4 integers"},
      {"five primes", [](json* f) { (*f)["primes"][0][2].erase(1); },
       "'primes'", "6 integers"},
      {"a prime of 0", [](json* f) { (*f)["primes"][0][2][1] = 0; }, "'primes'",
       "rows of a table of 660"},
      {"a prime beyond the table",
       [](json* f) { (*f)["primes"][0][2][1] = 128; }, "'primes'",
       "rows of a table of 660, got [533, 533 + 128)"},
      {"a prime that overflows",
       [](json* f) { (*f)["primes"][1][0][0] = INT64_MAX; }, "'primes'",
       "rows of a table of 864"},
      {"an offset beyond the table",
       [](json* f) { (*f)["offsets"][1][5] = 900; }, "'primes'",
       "rows of a table of 864, got [900, "},
      {"an offset that overflows",
       [](json* f) { (*f)["offsets"][1][5] = INT64_MAX; }, "'primes'",
       "rows of a table of 864"},
      {"seven offsets", [](json* f) { (*f)["offsets"][1].push_back(0); },
       "'offsets'", "6 integers"},
  };
}

TEST(EngramIndexTest, BadFilesAreRefusedByKey) {
  const Config config = PlainConfig();
  for (const Refusal& refusal : Refusals()) {
    SCOPED_TRACE(refusal.name);
    json file = PlainEngram();
    refusal.change(&file);
    const absl::Status status =
        EngramIndex::Parse(file.dump(), config).status();
    EXPECT_THAT(status, HasStatus(kInvalid, refusal.key));
    EXPECT_THAT(std::string(status.message()), HasSubstr("engram.json"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.wanted));
  }
  for (const char* text : {"", "[]", "{", "{\"a\": 1, \"a\": 2}"}) {
    EXPECT_THAT(EngramIndex::Parse(text, config),
                HasStatus(kInvalid, "engram.json"))
        << text;
  }
}

// With more ids the multipliers would be drawn from at most 2^32 numbers, which
// NumPy does by another method.
TEST(EngramIndexTest, TooManyCompressedIdsAreRefused) {
  Config config = PlainConfig();
  config.vocab_size = int64_t{1} << 31;
  config.engram.compressed_vocab = 0;
  json file = PlainEngram();
  file.erase("multipliers");
  file["compressed_vocab_size"] = int64_t{1} << 30;
  EXPECT_THAT(EngramIndex::Parse(file.dump(), config),
              HasStatus(kInvalid, "'compressed_vocab_size'"));
  // The last that passes fails by its map, which has 160 ids.
  file["compressed_vocab_size"] = (1 << 30) - 1;
  EXPECT_THAT(EngramIndex::Parse(file.dump(), config),
              HasStatus(kInvalid, "'token_map'"));
  // Numbers to draw a multiplier from.
  EXPECT_GT(INT64_MAX / kMostCompressedIds / 2, int64_t{1} << 32);
  EXPECT_LE(INT64_MAX / (kMostCompressedIds + 1) / 2, int64_t{1} << 32);
}

// Tables that are too small for the primes are refused before all are drawn:
// here a million of them beyond 2^30.
TEST(EngramIndexTest, PrimesAreDrawnNoFurtherThanTheTable) {
  Config config = PlainConfig();
  config.engram.n_heads = 65'536;
  config.engram.max_ngram = 16;
  config.engram.base_vocab = int64_t{1} << 30;
  json file = PlainEngram();
  for (const char* key : {"multipliers", "primes", "offsets"}) file.erase(key);
  EXPECT_THAT(EngramIndex::Parse(file.dump(), config),
              HasStatus(kInvalid,
                        "'primes': wanted 983040 of them from "
                        "1073741824 on in the 660 rows of layer 1"));
}

// ---- with a model ----------------------------------------------------------

// A copy of "plain" with another config.json and, where there is one, another
// engram.json.
class EngramFilesTest : public ::testing::Test {
 protected:
  absl::Status LoadWith(const json& config, const json* engram) {
    std::filesystem::create_directory(temp_.File("model"));
    const std::string directory = temp_.File("model");
    std::filesystem::copy_file(CaseDirectory("plain") + "/model.safetensors",
                               directory + "/model.safetensors",
                               std::filesystem::copy_options::skip_existing);
    std::filesystem::remove(directory + "/engram.json");
    if (engram != nullptr) {
      WriteFile(directory + "/engram.json", engram->dump());
    }
    return LoadDeepSeekV41(directory, config.dump(), {}).status();
  }

  testing::TempDir temp_;
};

TEST_F(EngramFilesTest, TheFileIsWantedWhereALayerHasAnEngram) {
  const json engram = PlainEngram();
  EXPECT_OK(LoadWith(PlainConfigJson(), &engram));
  EXPECT_THAT(LoadWith(PlainConfigJson(), nullptr),
              HasStatus(absl::StatusCode::kNotFound, "engram.json"));
  json flat = PlainConfigJson();
  flat["text_config"]["engram_layer_ids"] = json::array();
  flat["text_config"]["engram_num_embeddings"] = json::array();
  EXPECT_OK(LoadWith(flat, nullptr));
}

TEST_F(EngramFilesTest, TablesHaveTheSizesOfTheConfig) {
  const json engram = PlainEngram();
  const auto with = [](const char* key, const json& value) {
    json config = PlainConfigJson();
    config["text_config"][key] = value;
    return config;
  };
  EXPECT_THAT(LoadWith(with("engram_num_embeddings", {661, 864}), &engram),
              HasStatus(kInvalid,
                        "tensor 'layers.1.engram.embed.weight': got shape "
                        "[660, 32], wanted [661, 32]"));
  EXPECT_THAT(LoadWith(with("engram_head_dim", 64), &engram),
              HasStatus(kInvalid,
                        "'layers.1.engram.embed.weight': got shape "
                        "[660, 32], wanted [660, 64]"));
  json moved = with("engram_layer_ids", {1, 6});
  json ids = PlainEngram();
  ids["layer_ids"] = {1, 6};
  EXPECT_THAT(LoadWith(moved, &ids),
              HasStatus(absl::StatusCode::kNotFound,
                        "tensor 'layers.6.engram.embed.weight'"));
}

// An id that is looked up must be in the vocabulary, before the rows that run
// as among them.
TEST_F(EngramFilesTest, IdsOutsideTheVocabularyAreRefused) {
  const auto model = LoadCase("plain", kernels::AvailableIsas().back());
  std::vector<uint32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto run = [&](uint64_t bad) {
    std::vector<uint32_t> changed = ids;
    changed[bad] = bad % 2 == 0 ? 160 : UINT32_MAX;
    const std::unique_ptr<Sequence> sequence = model->NewSequence();
    EXPECT_OK(
        RunTokens(model.get(), SegmentOf(sequence.get(), ids, 0, 6), 0, {})
            .status());
    return RunTokens(model.get(), SegmentOf(sequence.get(), changed, 6, 10), 0,
                     {})
        .status();
  };
  for (uint64_t bad = 3; bad < ids.size(); ++bad) {
    EXPECT_THAT(run(bad), HasStatus(kInvalid, "token at position " +
                                                  std::to_string(bad)));
  }
  // Further back no row looks.
  for (uint64_t bad = 0; bad < 3; ++bad) EXPECT_OK(run(bad));
  // Embeddings that are given have ids beside them, which are looked up.
  const std::vector<float> inputs(2 * model->hidden_size(), 0.5f);
  const std::unique_ptr<Sequence> sequence = model->NewSequence();
  const std::vector<uint32_t> two = {1, 160};
  Segment segment = SegmentOf(sequence.get(), two, 0, 2);
  segment.inputs = inputs.data();
  EXPECT_THAT(RunTokens(model.get(), segment, 0, {}),
              HasStatus(kInvalid,
                        "token at position 1: got id 160, the "
                        "vocabulary has 160"));
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
