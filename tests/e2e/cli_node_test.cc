// SPDX-License-Identifier: Apache-2.0
//
// What a daemon has, from the command line: models, sessions, and the node
// itself. Each command once as it should be used, and once wrongly.

#include <filesystem>
#include <string>

#include "tests/e2e/cli_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

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
  Fails({"explain", "s", "--tokens", dir().path()}, "no file that can be read");

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

}  // namespace
}  // namespace torpor::e2e
