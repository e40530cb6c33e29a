// SPDX-License-Identifier: Apache-2.0
//
// Every command of torpor against a daemon: once as it should be used, with
// text and JSON, and once wrongly: then it exits non-zero and says why.

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class CliTest : public DaemonTest {
 protected:
  // Succeeds, in text and JSON; returns the JSON.
  json Succeeds(std::vector<std::string> words) {
    words.emplace_back("--json");
    const Finished finished = Torpor(words);
    EXPECT_EQ(finished.code, 0) << words[0] << ": " << finished.err;
    json out = json::parse(finished.out, nullptr, false);
    EXPECT_FALSE(out.is_discarded()) << words[0] << ": " << finished.out;
    return out;
  }
  std::string Prints(const std::vector<std::string>& words) {
    const Finished finished = Torpor(words);
    EXPECT_EQ(finished.code, 0) << words[0] << ": " << finished.err;
    EXPECT_NE(finished.out, "") << words[0];
    return finished.out;
  }
  void Fails(const std::vector<std::string>& words, const std::string& why) {
    const Finished finished = Torpor(words);
    EXPECT_NE(finished.code, 0) << words[0] << ": " << finished.out;
    EXPECT_THAT(finished.err, HasSubstr(why)) << words[0];
  }
  // A daemon with model w8 and its session "s" of 60 tokens and 4 more.
  void StartWithSession() {
    ASSERT_NO_FATAL_FAILURE(Start());
    Succeeds({"model", "add", ModelDir("w8")});
    json ids = json::array();
    for (int i = 0; i < 60; ++i) ids.push_back(i * 37 % 256);
    tokens_ = Write("tokens.json", ids.dump());
    Succeeds({"run", "--session", "s", "--model", "w8", "--tokens", tokens_,
              "--generate", "4", "--seed", "7", "--threads", "1"});
  }
  // A published config.json.
  static std::string ConfigOf(const std::string& name) {
    return std::filesystem::path(ModelDir("w8"))
               .parent_path()
               .parent_path()
               .string() +
           "/configs/" + name + ".json";
  }
  std::string tokens_;
};

TEST_F(CliTest, Models) {
  Start();
  EXPECT_THAT(Prints({"model", "add", ModelDir("w8")}), HasSubstr("w8"));
  json added = Succeeds({"model", "add", ModelDir("w7"), "--name", "seven",
                         "--block-size", "32"});
  EXPECT_EQ(added["name"], "seven");
  EXPECT_EQ(added["block_size"], 32);
  // A config alone: only an engine can replay it.
  added = Succeeds(
      {"model", "add", ModelDir("w8") + "/config.json", "--name", "sizes"});
  EXPECT_EQ(added["executors"], json({"engine"}));
  EXPECT_EQ(Succeeds({"model", "list"})["models"].size(), 3);
  EXPECT_THAT(Prints({"model", "list"}), HasSubstr("seven"));
  // Once more is harmless, something else under the name is not.
  Succeeds({"model", "add", ModelDir("w8")});
  Fails({"model", "add", ModelDir("w7"), "--name", "w8"}, "w8");
  Fails({"model", "add", "/no/such/model"}, "/no/such/model");
  Fails({"model", "add", ModelDir("w8"), "--block-size", "7"}, "7");
  Fails({"model", "add", ModelDir("w8"), "--kv-dtype", "fp3"}, "fp3");
  Fails({"model", "add", Write("bad.json", "{"), "--name", "x"}, "INVALID");
  Fails({"model"}, "subcommand");
}

// A family without a forward: its config.json is enough, and an engine replays.
TEST_F(CliTest, PlanOnlyModelsAreRegisteredForEngines) {
  Start();
  std::filesystem::create_directory(dir().File("olmo"));
  std::filesystem::copy_file(ConfigOf("Olmo-3-7B"),
                             dir().File("olmo") + "/config.json");
  EXPECT_THAT(Prints({"model", "add", dir().File("olmo")}),
              HasSubstr("plan-only"));
  const json added = Succeeds({"model", "add", dir().File("olmo")});
  EXPECT_EQ(added["executors"], json({"engine"}));
  EXPECT_EQ(added["layout"]["slots"].size(), 64);
  Succeeds({"model", "add", ConfigOf("Qwen3-8B")});
  EXPECT_THAT(Prints({"model", "list"}), HasSubstr("plan-only"));
  // It cannot be run here, and says why.
  Fails({"run", "--session", "s", "--model", "olmo", "--tokens",
         Write("tokens.json", "[1, 2, 3]"), "--generate", "1"},
        "plan-only");
  Fails({"model", "add", ConfigOf("Falcon-H1-0.5B")}, "mamba_d_state");
}

TEST_F(CliTest, RunSleepsAndWakesInEveryMode) {
  StartWithSession();
  const std::vector<std::string> go_on = {
      "run", "--session",  "s",         "--model", "w8",    "--generate",
      "20",  "--no-sleep", "--threads", "1",       "--wake"};
  std::map<std::string, json> woken;
  for (const char* mode : {"exact", "cold", "bounded", "auto"}) {
    std::vector<std::string> words = go_on;
    words.emplace_back(mode);
    woken[mode] = Succeeds(words);
    EXPECT_EQ(woken[mode]["tokens"].size(), 20) << mode;
  }
  EXPECT_EQ(woken["exact"]["tokens"], woken["cold"]["tokens"]);
  // A snapshot must have been stored.
  std::vector<std::string> words = go_on;
  words.emplace_back("snapshot");
  Fails(words, "snapshot");
  Succeeds({"run", "--session", "s", "--model", "w8", "--wake", "exact",
            "--snapshot", "--threads", "1"});
  const json snapshot = Succeeds(words);
  EXPECT_EQ(snapshot["tokens"], woken["exact"]["tokens"]);
  // One line each in the daemon's log.
  EXPECT_TRUE(daemon().AwaitError("event=suspend session=s version=2"))
      << daemon().error();
  for (const char* line :
       {"event=suspend session=s version=1",
        "event=resume session=s version=1 mode=exact exact=true",
        "event=resume session=s version=1 mode=cold exact=false",
        "event=resume session=s version=1 mode=bounded exact=false"}) {
    EXPECT_THAT(daemon().error(), HasSubstr(line));
  }

  Fails({"run", "--session", "s", "--model", "w8", "--wake", "maybe"}, "maybe");
  Fails({"run", "--session", "s", "--model", "nobody"}, "nobody");
  Fails({"run", "--session", "s", "--model", "w8", "--device-gemm", "fast"},
        "device_gemm: got 'fast', wanted simt or tensor");
  Fails({"run", "--session", "gone", "--model", "w8", "--wake", "exact"},
        "gone");
  Fails({"run", "--session", "t", "--model", "w8", "--tokens", "/no/file"},
        "/no/file");
  Fails({"run", "--session", "t", "--model", "w8", "--tokens",
         Write("big.json", "[1, 256]")},
        "256");
  Fails({"run", "--session", "t", "--model", "w8", "--generate", "3"},
        "prompt");
  Fails({"run", "--model", "w8"}, "--session");
}

// A window that is rebuilt ahead serves one wake of the same kind, and is gone
// with its daemon.
TEST_F(CliTest, PrefetchAheadOfAWake) {
  StartWithSession();
  const std::vector<std::string> wake = {
      "run", "--session",  "s",         "--model", "w8",     "--generate",
      "20",  "--no-sleep", "--threads", "1",       "--wake", "exact"};
  const std::vector<std::string> ahead = {
      "prefetch", "s", "--replay", "--mode", "exact", "--hold", "5m"};
  const json truth = Succeeds(wake);
  EXPECT_EQ(truth["resume"]["receipt"]["prefetched"], false);
  json begun = Succeeds({"prefetch", "s"});
  EXPECT_EQ(begun["replaying"], false);
  EXPECT_EQ(begun["resume_at"], "63");
  begun = Succeeds(ahead);
  EXPECT_EQ(begun["replaying"], true);
  EXPECT_EQ(begun["reason"], "");
  EXPECT_EQ(begun["plan"]["mode"], "REPLAY_MODE_EXACT");
  const json woken = Succeeds(wake);
  EXPECT_EQ(woken["resume"]["receipt"]["prefetched"], true);
  EXPECT_EQ(woken["resume"]["receipt"]["verdict"], "WITNESS_VERDICT_EXACT");
  EXPECT_EQ(woken["tokens"], truth["tokens"]);

  EXPECT_THAT(Prints(ahead), HasSubstr("rebuilding its window: exact"));
  EXPECT_THAT(Prints(ahead), HasSubstr("keeping its window: exact"));
  EXPECT_THAT(Torpor(wake).err, HasSubstr("woken exact, the window it had, "
                                          "prefetched"));
  EXPECT_EQ(Succeeds(ahead)["replaying"], true);
  Stop();
  Start();
  EXPECT_EQ(Succeeds(wake)["resume"]["receipt"]["prefetched"], false);

  Fails({"prefetch", "gone"}, "gone");
  Fails({"prefetch"}, "session");
  Fails({"prefetch", "s", "--mode", "maybe"}, "--mode");
  Fails({"prefetch", "s", "--mode", "snapshot"}, "snapshot");
  Fails({"prefetch", "s", "--hold", "soon"}, "--hold");
  Fails({"prefetch", "s", "--hold", "11m"}, "660");
}

TEST_F(CliTest, SessionsShowForkRewindTouchRm) {
  StartWithSession();
  EXPECT_THAT(Prints({"sessions"}), HasSubstr("w8"));
  EXPECT_EQ(Succeeds({"sessions"}).size(), 1);
  EXPECT_EQ(Succeeds({"sessions", "zz"}).size(), 0);
  EXPECT_THAT(Prints({"show", "s"}), HasSubstr("64, 63 with KV"));
  EXPECT_EQ(Succeeds({"show", "s"})["n_tokens"], "64");
  Fails({"show", "nobody"}, "nobody");

  EXPECT_EQ(Succeeds({"fork", "s", "f", "--at", "20"})["n_tokens"], "20");
  Fails({"fork", "s", "f"}, "f");
  Fails({"fork", "s", "g", "--at", "65"}, "65");
  Fails({"fork", "s", "g", "--version", "9"}, "9");
  Fails({"fork", "s"}, "target");

  EXPECT_EQ(Succeeds({"rewind", "s", "40"})["n_tokens"], "40");
  Fails({"rewind", "s", "41"}, "41");
  Fails({"rewind", "s", "10", "--version", "1"}, "ABORTED");
  Fails({"rewind", "nobody", "1"}, "nobody");

  const json touched = Succeeds({"touch", "s", "--class", "cache", "--ttl",
                                 "1000", "--label", "owner=me"});
  EXPECT_EQ(touched["session_class"], "SESSION_CLASS_CACHE");
  EXPECT_EQ(touched["labels"]["owner"], "me");
  EXPECT_NE(touched["expires_at"], "0");
  Fails({"touch", "s", "--class", "gold"}, "gold");
  Fails({"touch", "s", "--label", "nothing"}, "KEY=VALUE");
  Fails({"touch", "s", "--ttl", "-2"}, "ttl");

  EXPECT_THAT(Prints({"rm", "f"}), HasSubstr("f"));
  Succeeds({"rm", "s"});
  EXPECT_EQ(Succeeds({"sessions"}).size(), 0);
  Fails({"rm", "s"}, "s");
}

TEST_F(CliTest, ExplainVerifyStatsBackupDoctor) {
  StartWithSession();
  json explained = Succeeds({"explain", "s", "--tokens", tokens_});
  EXPECT_EQ(explained["receipt"]["prompt_tokens"], "60");
  EXPECT_THAT(Prints({"explain", "--model", "w8", "--tokens", tokens_}),
              HasSubstr("60"));
  Fails({"explain", "nobody"}, "nobody");
  Fails({"explain", "s", "--tokens", Write("bad.json", "{}")}, "bad.json");

  EXPECT_THAT(Prints({"verify"}), HasSubstr("0 problems"));
  EXPECT_EQ(Succeeds({"verify", "--deep"})["sessions_checked"], "1");
  Fails({"verify", "--shallow"}, "--shallow");

  EXPECT_EQ(Succeeds({"stats"})["sessions"], "1");
  EXPECT_THAT(Prints({"stats"}), HasSubstr("sessions"));

  const std::string copy = dir().File("copy");
  EXPECT_EQ(Succeeds({"backup", copy})["sessions_copied"], "1");
  Fails({"backup", copy}, copy);
  Fails({"backup"}, "directory");

  const std::string findings = Torpor({"doctor"}).out;
  EXPECT_THAT(findings, HasSubstr("torpord"));
  EXPECT_THAT(findings, HasSubstr("model w8: the daemon can replay it, cpu/"));
  Stop();
  // The copy serves.
  const auto from_copy = Spawn(
      {"--data-dir", copy, "--listen", "unix://" + Socket(), "--threads", "1"});
  ASSERT_TRUE(from_copy->AwaitError("event=start")) << from_copy->error();
  EXPECT_EQ(Succeeds({"show", "s"})["n_tokens"], "64");
  EXPECT_EQ(Succeeds({"run", "--session", "s", "--model", "w8", "--wake",
                      "exact", "--generate", "2", "--threads", "1"})["tokens"]
                .size(),
            2);
}

TEST_F(CliTest, WithoutADaemon) {
  // Each waits until the connection is given up: two are enough.
  Fails({"stats"}, Socket());
  const Finished doctor = Torpor({"doctor"});
  EXPECT_NE(doctor.code, 0);
  EXPECT_THAT(doctor.out, HasSubstr(Socket()));
  EXPECT_THAT(doctor.out, HasSubstr("torpord --data-dir"));
}

TEST_F(CliTest, WordsThatMeanNothing) {
  const Finished nothing = Torpor({});
  EXPECT_NE(nothing.code, 0);
  EXPECT_THAT(nothing.err, HasSubstr("subcommand"));
  Fails({"no-such-command"}, "no-such-command");
  Fails({"stats", "--no-such-option"}, "--no-such-option");
  Fails({"--timeout", "soon", "stats"}, "soon");
  const Finished help = Torpor({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* command :
       {"run", "model", "plan", "sessions", "show", "fork", "rewind", "rm",
        "touch", "prefetch", "explain", "stats", "verify", "backup", "health",
        "doctor", "dump", "completion"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const Finished its = Torpor({command, "--help"});
    EXPECT_EQ(its.code, 0) << command;
    EXPECT_NE(its.out, "") << command;
  }
}

// ---- commands that need no daemon -----------------------------------------

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

TEST_F(CliTest, DumpWritesWhatItWasAsked) {
  const std::string tokens = Write("tokens.json", "[1, 2, 3, 4, 5, 6, 7, 8]");
  const std::string out = dir().File("out.safetensors");
  const Finished finished =
      Torpor({"dump", "--model", ModelDir("w8"), "--tokens", tokens, "--out",
              out, "--threads", "1"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  std::ifstream in(out, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  ASSERT_LT(header_bytes, 1 << 20);
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const json parsed = json::parse(header);
  EXPECT_EQ(parsed["logits"]["shape"], json({8, 256}));
  EXPECT_EQ(parsed["window.0.k"]["shape"], json({7, 2, 32}));
  EXPECT_EQ(parsed["__metadata__"]["window.0.first"], "1");
  EXPECT_EQ(parsed["__metadata__"]["first_row"], "0");

  Fails({"dump", "--model", "/no/model", "--tokens", tokens, "--out", out},
        "/no/model");
  Fails({"dump", "--model", ModelDir("w8"), "--tokens", "/no/tokens", "--out",
         out},
        "/no/tokens");
  Fails({"dump", "--model", ModelDir("w8"), "--tokens",
         Write("bad.json", "[256]"), "--out", out},
        "256");
  Fails({"dump", "--model", ModelDir("w8"), "--tokens", tokens, "--out",
         "/no/dir/out"},
        "/no/dir/out");
  Fails({"dump", "--model", ModelDir("w8"), "--tokens", tokens, "--out", out,
         "--resume-at", "9"},
        "9");
}

TEST_F(CliTest, CompletionIsAShellScript) {
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = Prints({"completion", shell});
    EXPECT_THAT(script, HasSubstr("sessions"));
    EXPECT_THAT(script, HasSubstr("--replay-tokens"));
    const Finished checked = RunToEnd(
        {"/bin/bash", "-n", Write(std::string("completion.") + shell, script)});
    EXPECT_EQ(checked.code, 0) << checked.err;
  }
  // It completes.
  const std::string file = dir().File("completion.bash");
  const auto complete = [&](const std::string& words, int at) {
    const Finished finished =
        RunToEnd({"/bin/bash", "-c",
                  "source " + file + "; COMP_WORDS=(" + words +
                      "); COMP_CWORD=" + std::to_string(at) +
                      "; _torpor; echo \"${COMPREPLY[@]}\""});
    EXPECT_EQ(finished.code, 0) << finished.err;
    return finished.out;
  };
  EXPECT_EQ(complete("torpor rew", 1), "rewind\n");
  EXPECT_EQ(complete("torpor model li", 2), "list\n");
  EXPECT_EQ(complete("torpor run --no-s", 2), "--no-sleep\n");
  EXPECT_EQ(complete("torpor prefetch --rep", 2), "--replay --replay-tokens\n");
  Fails({"completion", "tcsh"}, "tcsh");
  Fails({"completion"}, "shell");
}

}  // namespace
}  // namespace torpor::e2e
