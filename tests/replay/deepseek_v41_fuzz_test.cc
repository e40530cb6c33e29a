// SPDX-License-Identifier: Apache-2.0
//
// config.json and engram.json with anything at random in place of what stands
// there: each is refused with a message, or loads and runs.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "replay/deepseek_v41/engram.h"
#include "replay/families.h"
#include "tests/replay/deepseek_v41_invariants.h"
#include "tests/replay/raw_safetensors.h"
#include "tests/testing/random.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using nlohmann::json;

json Anything(testing::Random& random) {
  static const json kThings = json::parse(R"([null, true, false, 0, 1, -1, 2, 7,
      0.5, -0.0, 1e-300, 1e300, 9223372036854775807, 18446744073709551615,
      -9223372036854775808, 2147483648, 65536, "", "yarn", "NaN", [], [0], [[]],
      {}, {"rope_type": "yarn"}, [-1, 2], [2, 1e9]])");
  return kThings[random.Between(0, kThings.size() - 1)];
}

json OtherNumber(const json& number, testing::Random& random) {
  if (!number.is_number_integer()) {
    const auto v = number.get<double>();
    const double others[] = {-v, 0, v * 1e30, v / 1e30, v + 1, 1e-45};
    return others[random.Between(0, 5)];
  }
  const auto v = number.get<int64_t>();
  const int64_t others[] = {v + 1, v - 1, 0,     -v,      2 * v,  v / 2,
                            v + 2, v - 2, v * 7, 1 << 24, v << 20};
  return others[random.Between(0, 10)];
}

// Goes down to a random place, and drops, retypes or changes what is there.
void Mutate(json* value, testing::Random& random) {
  while (value->is_structured() && !value->empty()) {
    auto it = value->begin();
    std::advance(it, random.Between(0, value->size() - 1));
    if (it->is_structured() && !it->empty() && !random.OneIn(4)) {
      value = &*it;
      continue;
    }
    const uint64_t what = random.Between(0, 5);
    if (what == 0) {
      value->erase(it);
    } else if (what == 1 || !it->is_number()) {
      *it = Anything(random);
    } else {
      *it = OtherNumber(*it, random);
    }
    return;
  }
}

std::string MutatedText(const json& sound, testing::Random& random) {
  json changed = sound;
  for (uint64_t n = random.Between(1, 3); n > 0; --n) {
    // Most keys of a config stand in its text_config.
    const bool inside = changed.contains("text_config") && !random.OneIn(10);
    Mutate(inside ? &changed["text_config"] : &changed, random);
  }
  std::string text = changed.dump();
  if (!random.OneIn(10)) return text;
  const size_t at = random.Between(0, text.size() - 1);
  if (random.OneIn(2)) {
    text[at] = static_cast<char>(random.Between(0, 255));
  } else {
    text.erase(at, random.Between(1, 30));
  }
  return text;
}

// A few tokens, and one more.
void ExpectRuns(Model* model, const std::string& text) {
  TestSession session(model);
  for (const std::vector<uint32_t>& ids :
       {std::vector<uint32_t>{0, 1, 0, 0, 1}, {1}}) {
    const auto logits = session.Run(ids, 1);
    ASSERT_OK(logits.status()) << text;
    EXPECT_EQ(logits->size(), model->vocab_size());
  }
}

TEST(DeepSeekV41FuzzTest, AnyConfigLoadsOrIsRefused) {
  testing::Random random(41);
  int n_loaded = 0;
  int n_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    // The plain formats, and the release's.
    const std::string directory =
        CaseDirectory(i % 8 == 0 ? "release" : "ratio1");
    const json sound = json::parse(ReadBack(directory + "/config.json"));
    const std::string text = MutatedText(sound, random);
    const auto planned = PlanConfig(text, {});
    if (!planned.ok()) {
      ASSERT_FALSE(planned.status().message().empty()) << text;
    }
    const auto model = LoadDeepSeekV41(
        directory, text, {.isa = kernels::AvailableIsas().back()});
    if (!model.ok()) {
      ++n_refused;
      ASSERT_FALSE(model.status().message().empty()) << text;
      continue;
    }
    ++n_loaded;
    ExpectRuns(model->get(), text);
  }
  std::printf("%d loaded, %d refused\n", n_loaded, n_refused);
  EXPECT_GT(n_loaded, 100);
  EXPECT_GT(n_refused, 500);
}

TEST(DeepSeekV41FuzzTest, AnyEngramFileIsReadOrRefused) {
  const std::string directory = CaseDirectory("plain");
  const json config_json = json::parse(ReadBack(directory + "/config.json"));
  const json sound = json::parse(ReadBack(directory + "/engram.json"));
  testing::Random random(42);
  int n_read = 0;
  int n_refused = 0;
  for (int i = 0; i < 4000; ++i) {
    // Of the config that belongs to it, or of another.
    auto config = ParseConfig(config_json);
    if (random.OneIn(3)) {
      json other = config_json;
      Mutate(&other, random);
      const auto parsed = ParseConfig(other);
      if (parsed.ok()) config = *parsed;
    }
    const auto index = EngramIndex::Parse(MutatedText(sound, random), *config);
    if (!index.ok()) {
      ++n_refused;
      ASSERT_FALSE(index.status().message().empty());
      continue;
    }
    ++n_read;
    std::vector<int64_t> rows(static_cast<size_t>(config->engram.n_rows()));
    const std::vector<uint32_t> ids =
        RandomIds(random, random.Between(1, 20),
                  static_cast<uint32_t>(config->vocab_size));
    for (size_t table = 0; table < config->engram_layers.size(); ++table) {
      index->RowsOf(table, ids, rows);
      for (const int64_t row : rows) {
        ASSERT_GE(row, 0);
        ASSERT_LT(row, config->engram_rows[table]);
      }
    }
  }
  EXPECT_GT(n_read, 100);
  EXPECT_GT(n_refused, 500);
}

}  // namespace
}  // namespace torpor::replay::deepseek_v41
