// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss from outside: sessions of a tiny one sleep in a real daemon, which is
// killed, and wake in every mode; `torpor dump` on its directory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;

class GptOssTest : public DaemonTest {
 protected:
  static std::string Directory(const std::string& name) {
    return std::string(TORPOR_ORACLES_DIR) + "/gpt_oss/" + name;
  }
  json Succeeds(std::vector<std::string> words) {
    words.emplace_back("--json");
    const Finished finished = Torpor(words);
    EXPECT_EQ(finished.code, 0) << words[0] << ": " << finished.err;
    return json::parse(finished.out, nullptr, false);
  }
  std::string Tokens(int n) {
    json ids = json::array();
    for (int i = 0; i < n; ++i) ids.push_back((i * 37 + i * i) % 40);
    return Write("tokens.json", ids.dump());
  }
  void ExpectWakes(const std::string& model, int n_tokens) {
    SCOPED_TRACE(model + " " + std::to_string(n_tokens));
    ASSERT_NO_FATAL_FAILURE(Start());
    EXPECT_EQ(Succeeds({"model", "add", Directory(model)})["executors"],
              json::array({"daemon", "engine"}));
    std::vector<std::string> sleep = {
        "run",      "--session",      "s",          "--model",   model,
        "--tokens", Tokens(n_tokens), "--generate", "3",         "--seed",
        "7",        "--threads",      "1",          "--snapshot"};
    // What the session that never sleeps says next.
    std::vector<std::string> awake = sleep;
    awake[8] = "15";
    awake.emplace_back("--no-sleep");
    const std::vector<uint32_t> truth = Succeeds(awake)["tokens"];
    Succeeds(sleep);
    Stop(SIGKILL, 128 + SIGKILL);
    ASSERT_NO_FATAL_FAILURE(Start());
    for (const std::string mode : {"exact", "bounded", "snapshot", "cold"}) {
      SCOPED_TRACE(mode);
      const json woken =
          Succeeds({"run", "--session", "s", "--model", model, "--generate",
                    "12", "--no-sleep", "--threads", "1", "--wake", mode});
      EXPECT_EQ(woken["resume"]["receipt"]["mode_used"],
                "REPLAY_MODE_" + absl::AsciiStrToUpper(mode))
          << woken.dump();
      if (mode == "bounded") continue;
      EXPECT_EQ(woken["tokens"],
                json(std::vector<uint32_t>(truth.end() - 12, truth.end())));
    }
    Stop();
  }
};

TEST_F(GptOssTest, SleepsAndWakes) { ExpectWakes("yarn", 77); }
TEST_F(GptOssTest, WakesInF32) { ExpectWakes("plain", 80); }
TEST_F(GptOssTest, WakesWithPackedExperts) { ExpectWakes("mxfp4", 90); }

TEST_F(GptOssTest, DumpWritesLogitsAndWindows) {
  const std::string out = dir().File("out.safetensors");
  const Finished finished =
      Torpor({"dump", "--model", Directory("mxfp4"), "--tokens", Tokens(33),
              "--out", out, "--threads", "1", "--dtype", "f32", "--mode",
              "exact", "--resume-at", "29", "--hidden"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_GT(std::filesystem::file_size(out), 4 * 56 * 4);
}

}  // namespace
}  // namespace torpor::e2e
