// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V4.1 from outside: sessions of a tiny one sleep in a real daemon,
// which is killed, and wake in every mode, from odd and even cuts, prefilled
// with a decoder tail and without; `torpor dump` on its directory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;

class DeepSeekV41Test : public DaemonTest {
 protected:
  static std::string Directory(const std::string& name) {
    return std::filesystem::path(ModelDir("w8"))
               .parent_path()
               .parent_path()
               .string() +
           "/deepseek_v41/" + name;
  }
  json Succeeds(std::vector<std::string> words) {
    words.emplace_back("--json");
    const Finished finished = Torpor(words);
    EXPECT_EQ(finished.code, 0) << words[0] << ": " << finished.err;
    return json::parse(finished.out, nullptr, false);
  }
  std::string Tokens(int n) {
    json ids = json::array();
    for (int i = 0; i < n; ++i) ids.push_back((i * 37 + i * i) % 160);
    return Write("tokens.json", ids.dump());
  }
  // 12 tokens sampled after a wake of session "s".
  json WakeAndGoOn(const std::string& model, const std::string& mode) {
    return Succeeds({"run", "--session", "s", "--model", model, "--generate",
                     "12", "--no-sleep", "--threads", "1", "--wake", mode});
  }
  void ExpectWakes(const std::string& model, int n_tokens, bool tail) {
    SCOPED_TRACE(model + " " + std::to_string(n_tokens));
    ASSERT_NO_FATAL_FAILURE(Start());
    Succeeds({"model", "add", Directory(model)});
    std::vector<std::string> sleep = {
        "run",      "--session",      "s",          "--model",   model,
        "--tokens", Tokens(n_tokens), "--generate", "3",         "--seed",
        "7",        "--threads",      "1",          "--snapshot"};
    if (tail) sleep.emplace_back("--decoder-tail");
    // What the session that never sleeps says next.
    std::vector<std::string> awake = sleep;
    awake[8] = "15";
    awake.emplace_back("--no-sleep");
    const json truth = Succeeds(awake);
    Succeeds(sleep);
    Stop(SIGKILL, 128 + SIGKILL);
    ASSERT_NO_FATAL_FAILURE(Start());
    std::vector<std::string> modes = {"exact", "bounded", "snapshot"};
    // A cold prefill has no tail.
    if (!tail) modes.emplace_back("cold");
    for (const std::string& mode : modes) {
      SCOPED_TRACE(mode);
      const json woken = WakeAndGoOn(model, mode);
      const json& receipt = woken["resume"]["receipt"];
      EXPECT_FALSE(receipt.is_null()) << woken.dump();
      EXPECT_EQ(receipt["mode_used"],
                "REPLAY_MODE_" + absl::AsciiStrToUpper(mode));
      if (mode == "bounded") continue;
      const std::vector<uint32_t> all = truth["tokens"];
      EXPECT_EQ(json(std::vector<uint32_t>(all.end() - 12, all.end())),
                woken["tokens"]);
    }
    Stop();
  }
};

TEST_F(DeepSeekV41Test, SleepsAndWakes) {
  ExpectWakes("plain", 77, /*tail=*/false);
}
TEST_F(DeepSeekV41Test, WakesFromAnOddCut) {
  ExpectWakes("plain", 80, /*tail=*/false);
}
TEST_F(DeepSeekV41Test, WakesToTheBitsOfATail) {
  ExpectWakes("plain", 78, /*tail=*/true);
}
TEST_F(DeepSeekV41Test, WakesInTheReleasesFormats) {
  ExpectWakes("release", 79, /*tail=*/true);
}

// Every turn wakes from the snapshot of the one before; cuts are odd and even.
TEST_F(DeepSeekV41Test, TurnsGoFromSnapshotToSnapshot) {
  ASSERT_NO_FATAL_FAILURE(Start());
  Succeeds({"model", "add", Directory("plain")});
  std::vector<std::string> first = {
      "run",      "--session", "s",          "--model",    "plain",
      "--tokens", Tokens(77),  "--generate", "18",         "--seed",
      "7",        "--threads", "1",          "--snapshot", "--no-sleep"};
  const std::vector<uint32_t> truth = Succeeds(first)["tokens"];
  first.pop_back();
  first[8] = "3";
  std::vector<uint32_t> got = Succeeds(first)["tokens"];
  for (const char* n : {"4", "5", "6"}) {
    const json turn =
        Succeeds({"run", "--session", "s", "--model", "plain", "--generate", n,
                  "--threads", "1", "--wake", "snapshot", "--snapshot"});
    EXPECT_EQ(turn["resume"]["receipt"]["mode_used"], "REPLAY_MODE_SNAPSHOT");
    const std::vector<uint32_t> more = turn["tokens"];
    got.insert(got.end(), more.begin(), more.end());
  }
  EXPECT_EQ(got, truth);
}

TEST_F(DeepSeekV41Test, DumpWritesLogitsAndWindows) {
  const std::string out = dir().File("out.safetensors");
  const Finished finished =
      Torpor({"dump", "--model", Directory("plain"), "--tokens", Tokens(33),
              "--out", out, "--threads", "1", "--dtype", "f32", "--mode",
              "exact", "--resume-at", "29", "--hidden"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(std::filesystem::file_size(out), 33 * 160 * 4);
}

}  // namespace
}  // namespace torpor::e2e
