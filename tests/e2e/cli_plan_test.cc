// SPDX-License-Identifier: Apache-2.0
//
// torpor plan, which needs no daemon.

#include <fstream>
#include <string>

#include "tests/e2e/cli_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(CliTest, PlanPrintsTheFiguresOfAConfig) {
  const json plan =
      Succeeds({"plan", ModelDir("w8") + "/config.json", "--tokens", "1000"});
  EXPECT_EQ(plan["family"], "gemma3_text");
  // Two full layers: K and V of 2 heads x 32 x bf16 each; five in all.
  EXPECT_EQ(plan["compact_bytes_per_token"], 2 * 2 * 2 * 32 * 2);
  EXPECT_EQ(plan["all_window_bytes_per_token"], 5 * 2 * 2 * 32 * 2);
  EXPECT_DOUBLE_EQ(plan["ratio"].get<double>(), 2.5);
  // Three sliding layers of window 8.
  EXPECT_EQ(plan["snapshot_bytes"], 3 * 7 * 2 * 2 * 32 * 2);
  EXPECT_EQ(plan["bounded_tokens"], 8);
  EXPECT_EQ(plan["exact_tokens"], 21);
  EXPECT_TRUE(plan["exact_token_layers"].is_number_unsigned());
  EXPECT_GT(plan["exact_token_layers"], 21);
  // Shorter than a window: fewer rows to store, the same lengths.
  const json little = Succeeds({"plan", ModelDir("w8"), "--tokens", "3"});
  EXPECT_EQ(little["snapshot_bytes"], 3 * 3 * 2 * 2 * 32 * 2);
  EXPECT_EQ(little["exact_tokens"], 21);
  EXPECT_THAT(Prints({"plan", ModelDir("w8"), "--resume-at", "100"}),
              HasSubstr("[79, 100)"));
}

TEST_F(CliTest, PlanWithoutCompactRowsHasNoRatio) {
  std::ifstream in(ModelDir("w8") + "/config.json");
  json config = json::parse(in);
  for (json& type : config["layer_types"]) type = "sliding_attention";
  const json plan = Succeeds(
      {"plan", Write("sliding.json", config.dump()), "--tokens", "1000"});
  EXPECT_EQ(plan["compact_bytes_per_token"], 0);
  EXPECT_TRUE(plan["ratio"].is_null());
  EXPECT_EQ(plan["exact_tokens"], 35);
}

TEST_F(CliTest, PlanListsEverySlot) {
  const std::string oss = ConfigOf("gpt-oss-20b");
  const std::string text = Prints({"plan", oss, "--kv-dtype", "f16"});
  for (const char* part : {"COMES BACK", "layer.N.k", "sliding 128",
                           "0-22 by 2", "12288", "persist", "replay"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  const json plan = Succeeds({"plan", oss});
  EXPECT_EQ(plan["plan_only"], false);
  EXPECT_EQ(Succeeds({"plan", ConfigOf("Qwen3-8B")})["plan_only"], true);
  EXPECT_THAT(Prints({"plan", ConfigOf("Qwen3-8B")}), HasSubstr("plan-only"));
  EXPECT_EQ(plan["slots"].size(), 48);
  EXPECT_EQ(plan["slots"][2]["name"], "layer.1.k");
  EXPECT_EQ(plan["slots"][2]["layer"], 1);
  EXPECT_EQ(plan["slots"][2]["kind"], "full");
  EXPECT_EQ(plan["slots"][2]["row_bytes"], 1024);
  EXPECT_EQ(plan["slots"][2]["come_back"], "persist");
  EXPECT_EQ(plan["slots"][0]["window"], 128);
  const json v41 = Succeeds({"plan", ConfigOf("DeepSeek-V4.1-Flash")});
  EXPECT_EQ(v41["compact_bytes_per_token"], 890);
  EXPECT_EQ(v41["all_window_bytes_per_token"], 22'010);
  EXPECT_EQ(v41["draft_bytes_per_token"], 1584);
  EXPECT_EQ(v41["exact_tokens"], 5080);
  EXPECT_THAT(Prints({"plan", ConfigOf("DeepSeek-V4.1-Flash"), "--resume-at",
                      "100000", "--logits"}),
              HasSubstr("[94919, 100000)"));
  EXPECT_THAT(Prints({"plan", ConfigOf("DeepSeek-V4.1-Flash")}),
              HasSubstr("3 draft layers, at the input of 39"));
}

TEST_F(CliTest, PlanSaysWhichWindowsAreTreatedAsFull) {
  const std::string config = ConfigOf("Ministral-8B-Instruct-2410");
  EXPECT_THAT(Prints({"plan", config}), HasSubstr("treated as full"));
  const json plan = Succeeds({"plan", config});
  ASSERT_EQ(plan["windows_treated_as_full"].size(), 1);
  EXPECT_EQ(plan["windows_treated_as_full"][0]["window"], 32'768);
  EXPECT_EQ(plan["windows_treated_as_full"][0]["layers"].size(), 36);
  EXPECT_THAT(Prints({"plan", ConfigOf("DeepSeek-V3")}), HasSubstr("MTP"));
}

TEST_F(CliTest, PlanCountsAFleet) {
  const std::string gemma = ConfigOf("gemma-3-270m");
  const json fleet = Succeeds({"plan", gemma, "--tokens", "32768", "--sessions",
                               "1000", "--turns", "4"})["fleet"];
  const uint64_t compact = uint64_t{1000} * 32'768 * 3072;
  const uint64_t windows = uint64_t{1000} * 511 * 15'360;
  EXPECT_EQ(fleet["every_window_row"]["ssd_bytes"], 6 * compact);
  EXPECT_EQ(fleet["snapshot_per_turn"]["ssd_bytes"], compact + 4 * windows);
  EXPECT_EQ(fleet["snapshot_per_session"]["ssd_bytes"], compact + windows);
  EXPECT_EQ(fleet["torpor"]["ssd_bytes"], compact);
  EXPECT_EQ(fleet["torpor"]["memory_bytes"], compact + windows);
  EXPECT_EQ(fleet["token_id_bytes"], uint64_t{4} * 32'768 * 1000);
  EXPECT_EQ(fleet["turns"], 4);
  const std::string text = Prints({"plan", gemma, "--sessions", "1000"});
  for (const char* part : {"1000 sessions", "16 turns", "one snapshot per turn",
                           "one snapshot per session", "token ids"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  Fails({"plan", gemma, "--sessions", "5", "--turns", "0"}, "turns");
  Fails({"plan", gemma, "--sessions", "18446744073709551615"}, "fleet");
}

TEST_F(CliTest, PlanRefusesWhatCannotBe) {
  std::ifstream in(ModelDir("w8") + "/config.json");
  const json good = json::parse(in);
  const auto with = [&](const std::string& key, const json& value) {
    json config = good;
    config[key] = value;
    return Write("config.json", config.dump());
  };
  Fails({"plan", with("model_type", "unheard_of")}, "unheard_of");
  Fails({"plan", with("sliding_window", 0)}, "sliding_window");
  Fails({"plan", with("sliding_window", "eight")}, "sliding_window");
  Fails({"plan", with("num_hidden_layers", 4)}, "layer");
  Fails({"plan", with("layer_types", {"round_attention"})}, "layer");
  Fails({"plan", with("num_key_value_heads", 0)}, "num_key_value_heads");
  Fails({"plan", with("head_dim", -3)}, "head_dim");
  Fails({"plan", Write("config.json", "[1, 2")}, "JSON");
  Fails({"plan", "/no/config.json"}, "/no/config.json");
  Fails({"plan", ModelDir("w8"), "--kv-dtype", "fp3"}, "fp3");
  Fails({"plan", ModelDir("w8"), "--tokens", "-1"}, "-1");
  Fails({"plan"}, "config");
}

}  // namespace
}  // namespace torpor::e2e
