// SPDX-License-Identifier: Apache-2.0
//
// Commands of torpor against a daemon: as they should be used, with text and
// JSON, and wrongly: then they exit non-zero and say why.

#ifndef TORPOR_TESTS_E2E_CLI_FIXTURE_H_
#define TORPOR_TESTS_E2E_CLI_FIXTURE_H_

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {

class CliTest : public DaemonTest {
 protected:
  // Succeeds, in text and JSON; returns the JSON.
  nlohmann::json Succeeds(std::vector<std::string> words) {
    words.emplace_back("--json");
    const Finished finished = Torpor(words);
    EXPECT_EQ(finished.code, 0) << words[0] << ": " << finished.err;
    nlohmann::json out = nlohmann::json::parse(finished.out, nullptr, false);
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
    EXPECT_THAT(finished.err, ::testing::HasSubstr(why)) << words[0];
  }
  // A daemon with model w8 and its session "s" of 60 tokens and 4 more.
  void StartWithSession() {
    ASSERT_NO_FATAL_FAILURE(Start());
    Succeeds({"model", "add", ModelDir("w8")});
    nlohmann::json ids = nlohmann::json::array();
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

}  // namespace torpor::e2e

#endif  // TORPOR_TESTS_E2E_CLI_FIXTURE_H_
