// SPDX-License-Identifier: Apache-2.0
//
// A torpord process over a directory of its own, and torpor commands to it.

#ifndef TORPOR_TESTS_E2E_DAEMON_FIXTURE_H_
#define TORPOR_TESTS_E2E_DAEMON_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/process.h"
#include "tests/testing/temp_dir.h"

namespace torpor::e2e {

class DaemonTest : public ::testing::Test {
 protected:
  // A small store; `more` is appended.
  std::string WriteConfig(const std::string& more = "") {
    return Write("torpord.toml", "maintain_every_ms = 50\n" + more +
                                     "\n[store]\nmap_bytes = 1073741824\n"
                                     "max_bytes = 268435456\n");
  }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name), std::ios::binary) << text;
    return dir_.File(name);
  }

  // Started, whether or not it will serve.
  std::unique_ptr<Process> Spawn(const std::vector<std::string>& options) {
    std::vector<std::string> words = {TorpordPath()};
    words.insert(words.end(), options.begin(), options.end());
    return std::make_unique<Process>(words);
  }
  // The daemon of this test, serving when it returns.
  void Start(const std::string& config_more = "",
             const std::vector<std::string>& options = {}) {
    std::vector<std::string> words = {
        "--config", WriteConfig(config_more), "--data-dir", dir_.File("data"),
        "--listen", "unix://" + Socket(),     "--threads",  "1"};
    words.insert(words.end(), options.begin(), options.end());
    daemon_ = Spawn(words);
    ASSERT_TRUE(daemon_->AwaitError("event=start")) << daemon_->error();
  }
  // Refused: it says so and ends; returns what it said.
  std::string ExpectRefused(const std::vector<std::string>& options) {
    const auto process = Spawn(options);
    EXPECT_EQ(process->Wait(), 1) << process->error();
    EXPECT_NE(process->error(), "");
    return process->error();
  }
  void Stop(int signal_number = 15, int code = 0) {
    daemon_->Signal(signal_number);
    EXPECT_EQ(daemon_->Wait(), code) << daemon_->error();
    daemon_.reset();
  }

  std::string Socket() const { return dir_.File("run/s"); }
  std::string Address() const { return "unix:" + Socket(); }
  Finished Torpor(const std::vector<std::string>& arguments) const {
    std::vector<std::string> words = {TorporPath(), "--server", Address()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return RunToEnd(words);
  }
  static std::string ModelDir(const std::string& name) {
    return std::string(TORPOR_ORACLES_DIR) + "/gemma3/" + name;
  }
  const testing::TempDir& dir() const { return dir_; }
  Process& daemon() { return *daemon_; }

 private:
  const testing::TempDir dir_;
  std::unique_ptr<Process> daemon_;
};

}  // namespace torpor::e2e

#endif  // TORPOR_TESTS_E2E_DAEMON_FIXTURE_H_
