// SPDX-License-Identifier: Apache-2.0
//
// torpor run and torpor prefetch: sessions that sleep and wake.

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/e2e/cli_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

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

// The call ends before its segment is taken: what is said is the call's.
TEST_F(CliTest, AWakeThatIsRefusedSaysWhyThroughSharedMemoryToo) {
  StartWithSession();
  Stop();
  Start("[replay]\nmemory_bytes = 0\n");
  for (int i = 0; i < 5; ++i) {
    Fails({"run", "--session", "s", "--model", "w8", "--wake", "exact",
           "--plane", "shm", "--threads", "1"},
          "0 are allowed");
  }
}

// A fork and a rewind leave no sampler and no pending token behind.
TEST_F(CliTest, RunGoesOnFromAForkAndARewind) {
  StartWithSession();
  json ids = json::array();
  for (int i = 0; i < 40; ++i) ids.push_back(i * 37 % 256);
  const std::vector<std::string> run = {"run",        "--model",   "w8",
                                        "--generate", "9",         "--seed",
                                        "5",          "--threads", "1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), run.begin(), run.end());
    return more;
  };
  // Never forked, never asleep.
  const json twin =
      Succeeds(with({"--session", "twin", "--no-sleep", "--tokens",
                     Write("first.json", ids.dump())}));
  ASSERT_EQ(twin["tokens"].size(), 9);
  Succeeds({"fork", "s", "f", "--at", "40"});
  for (const char* mode : {"exact", "cold"}) {
    const json woken =
        Succeeds(with({"--session", "f", "--wake", mode, "--no-sleep"}));
    EXPECT_EQ(woken["tokens"], twin["tokens"]) << mode;
  }
  Succeeds(with({"--session", "f", "--wake", "bounded"}));
  EXPECT_EQ(Succeeds({"show", "f"})["n_tokens"], "49");
  Succeeds(
      with({"--session", "s", "--wake", "exact", "--cut", "40", "--no-sleep"}));
  Succeeds({"rewind", "s", "40"});
  EXPECT_EQ(Succeeds(with({"--session", "s", "--wake", "exact"}))["tokens"],
            twin["tokens"]);
  // Asleep with a sampler again.
  Succeeds(with({"--session", "s", "--wake", "exact"}));
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

// The weights of w8 as a model without windows.
TEST_F(CliTest, ASnapshotWakeWantsNoSnapshotWhereEveryLayerPersists) {
  const std::string full = dir().File("full");
  std::filesystem::copy(ModelDir("w8"), full);
  json config = json::parse(std::ifstream(full + "/config.json"));
  for (json& layer : config["layer_types"]) layer = "full_attention";
  Write("full/config.json", config.dump());
  Start();
  Succeeds({"model", "add", full});
  Succeeds({"run", "--session", "s", "--model", "full", "--tokens",
            Write("tokens.json", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"),
            "--generate", "4", "--threads", "1"});
  std::map<std::string, json> woken;
  for (const char* mode : {"exact", "snapshot"}) {
    woken[mode] =
        Succeeds({"run", "--session", "s", "--model", "full", "--generate",
                  "20", "--no-sleep", "--threads", "1", "--wake", mode});
  }
  EXPECT_EQ(woken["snapshot"]["tokens"], woken["exact"]["tokens"]);
  const json& receipt = woken["snapshot"]["resume"]["receipt"];
  EXPECT_EQ(receipt["mode_used"], "REPLAY_MODE_SNAPSHOT") << receipt;
  EXPECT_EQ(receipt["replayed_tokens"], "0") << receipt;
}

}  // namespace
}  // namespace torpor::e2e
