// SPDX-License-Identifier: Apache-2.0
//
// Two daemons that share nothing: a session moves from one to the other, by a
// file and by a pull, and wakes there as if it had never moved; transfers that
// are killed half way go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/daemon_fixture.h"
#include "tests/service/socket_proxy.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class TransferTest : public DaemonTest {
 protected:
  // A daemon with a directory and sockets of its own.
  struct Node {
    std::string name;
    std::unique_ptr<Process> daemon;
  };

  void StartNode(Node* node) {
    node->daemon = Spawn({"--config", WriteConfig(), "--data-dir",
                          dir().File(node->name + "-data"), "--listen",
                          "unix://" + SocketOf(*node), "--listen",
                          "127.0.0.1:0", "--threads", "1"});
    ASSERT_TRUE(node->daemon->AwaitError("event=start"))
        << node->daemon->error();
  }
  void Kill(Node* node) {
    node->daemon->Signal(SIGKILL);
    EXPECT_EQ(node->daemon->Wait(), 128 + SIGKILL);
  }
  std::string SocketOf(const Node& node) const {
    return dir().File(node.name + "/s");
  }
  std::vector<std::string> Words(const Node& node,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> words = {TorporPath(), "--server",
                                      "unix:" + SocketOf(node)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  json Succeeds(const Node& node, std::vector<std::string> more) {
    more.emplace_back("--json");
    const Finished finished = RunToEnd(Words(node, more));
    EXPECT_EQ(finished.code, 0) << more[0] << ": " << finished.err;
    json out = json::parse(finished.out, nullptr, false);
    EXPECT_FALSE(out.is_discarded()) << more[0] << ": " << finished.out;
    return out;
  }
  std::string Fails(const Node& node, const std::vector<std::string>& more) {
    const Finished finished = RunToEnd(Words(node, more));
    EXPECT_NE(finished.code, 0) << more[0] << ": " << finished.out;
    return finished.err;
  }
  // Session "s" of `n` tokens and 5 more on a model of windows; its state.
  json Sleep(const Node& node, const std::string& model, int n) {
    if (Succeeds(node, {"model", "list"})["models"].empty()) {
      Succeeds(node, {"model", "add", ModelDir(model)});
    }
    json ids = json::array();
    for (int i = 0; i < n; ++i) ids.push_back(i * 37 % 256);
    Succeeds(node, {"run", "--session", "s", "--model", model, "--tokens",
                    Write("tokens.json", ids.dump()), "--generate", "5",
                    "--seed", "7", "--threads", "1"});
    Succeeds(node, {"touch", "s", "--label", "owner=me"});
    return Succeeds(node, {"show", "s"});
  }
  // 12 more tokens, and the receipt of the wake.
  json Wake(const Node& node, const std::string& session,
            const std::string& model, const std::string& mode) {
    return Succeeds(
        node, {"run", "--session", session, "--model", model, "--generate",
               "12", "--no-sleep", "--threads", "1", "--wake", mode});
  }
  static std::string Slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void ExpectVerifies(const Node& node) {
    const json report = Succeeds(node, {"verify", "--deep"});
    EXPECT_EQ(report["problems"].size(), 0);
  }

  static constexpr int kLong = 2'000;
  Node a_{"a", nullptr};
  Node b_{"b", nullptr};
};

TEST_F(TransferTest, ASessionWakesElsewhereToTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(StartNode(&a_));
  const json state = Sleep(a_, "w8", 90);
  const json truth = Wake(a_, "s", "w8", "exact");
  const std::string file = dir().File("s.torpor");
  const json exported = Succeeds(a_, {"export", "s", file});
  EXPECT_EQ(exported["bytes"], std::filesystem::file_size(file));
  EXPECT_EQ(
      std::filesystem::status(file).permissions(),
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_FALSE(std::filesystem::exists(file + ".part"));
  EXPECT_THAT(Fails(a_, {"export", "s", file}), HasSubstr("--force"));
  EXPECT_THAT(Fails(a_, {"export", "nobody", file, "--force"}),
              HasSubstr("nobody"));
  const std::string bytes = Slurp(file);
  Succeeds(a_, {"export", "s", file, "--force"});
  EXPECT_EQ(Slurp(file), bytes);
  Kill(&a_);

  ASSERT_NO_FATAL_FAILURE(StartNode(&b_));
  // Another model under any name will not do.
  Succeeds(b_, {"model", "add", ModelDir("w7"), "--name", "w8"});
  const std::string refused = Fails(b_, {"import", file});
  EXPECT_THAT(refused, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_THAT(refused, HasSubstr("fingerprint field 'weights'"));
  Succeeds(b_, {"model", "add", ModelDir("w8"), "--name", "eight"});
  const json imported = Succeeds(b_, {"import", file});
  EXPECT_EQ(imported["state"]["version"], state["version"]);
  EXPECT_EQ(imported["state"]["labels"], state["labels"]);
  EXPECT_EQ(imported["state"]["provenance"], state["provenance"]);
  EXPECT_EQ(imported["state"]["created_at"], state["created_at"]);
  EXPECT_EQ(imported["state"]["has_witness"], true);
  const json woken = Wake(b_, "s", "eight", "exact");
  EXPECT_EQ(woken["tokens"], truth["tokens"]);
  EXPECT_EQ(woken["resume"]["receipt"]["verdict"], "WITNESS_VERDICT_EXACT");
  EXPECT_EQ(woken["resume"]["receipt"]["exact"], true);
  // Once more is harmless, another name shares its blocks, an own session is
  // not replaced.
  EXPECT_EQ(Succeeds(b_, {"import", file})["repeated"], true);
  const json twin = Succeeds(b_, {"import", file, "--as", "twin"});
  EXPECT_EQ(Succeeds(b_, {"sessions", "twin"}).size(), 1);
  EXPECT_EQ(Wake(b_, "twin", "eight", "exact")["tokens"], truth["tokens"]);
  ExpectVerifies(b_);
}

TEST_F(TransferTest, FilesThatAreNotWholeAreRefusedWithTheirPlace) {
  ASSERT_NO_FATAL_FAILURE(StartNode(&a_));
  Sleep(a_, "w8", 60);
  const std::string file = dir().File("s.torpor");
  Succeeds(a_, {"export", "s", file});
  const std::string bytes = Slurp(file);
  std::string flipped = bytes;
  flipped[flipped.size() / 2] ^= 4;
  EXPECT_THAT(Fails(a_, {"import", Write("x", flipped), "--as", "x"}),
              HasSubstr("x: container byte "));
  EXPECT_THAT(
      Fails(a_, {"import", Write("x", bytes.substr(0, 1000)), "--as", "x"}),
      HasSubstr("ends after byte 1000"));
  EXPECT_THAT(Fails(a_, {"import", Write("x", bytes + "z"), "--as", "x"}),
              HasSubstr("1 bytes behind its end"));
  EXPECT_THAT(Fails(a_, {"import", Write("x", ""), "--as", "x"}),
              HasSubstr("ends after byte 0"));
  EXPECT_THAT(Fails(a_, {"import", dir().File("none")}), HasSubstr("none"));
  EXPECT_EQ(Succeeds(a_, {"sessions"}).size(), 1);
}

// What an export left behind that was killed at any byte.
TEST_F(TransferTest, AnExportGoesOnBehindTheBlocksOfItsPartFile) {
  ASSERT_NO_FATAL_FAILURE(StartNode(&a_));
  Sleep(a_, "w8", 200);
  const std::string file = dir().File("s.torpor");
  Succeeds(a_, {"export", "s", file});
  const std::string bytes = Slurp(file);
  uint64_t went_on = 0;
  for (const size_t n :
       {size_t{10}, bytes.size() / 2, bytes.size() - 1, bytes.size()}) {
    Write("s.torpor.part", bytes.substr(0, n));
    const json again = Succeeds(a_, {"export", "s", file, "--force"});
    went_on += again["from_block"].get<uint64_t>();
    EXPECT_EQ(Slurp(file), bytes);
  }
  EXPECT_GT(went_on, 0);
  // A part of another session is no beginning of this one.
  Succeeds(a_, {"fork", "s", "f"});
  Write("s.torpor.part", bytes.substr(0, bytes.size() / 2));
  EXPECT_EQ(Succeeds(a_, {"export", "f", file, "--force"})["from_block"], 0);
  Succeeds(a_, {"import", file, "--as", "g"});
}

// The client dies half way, or the daemon it pulls from does.
TEST_F(TransferTest, APullGoesOnWhereAKillBrokeIt) {
  ASSERT_NO_FATAL_FAILURE(StartNode(&a_));
  ASSERT_NO_FATAL_FAILURE(StartNode(&b_));
  // Several messages and many blocks.
  Succeeds(a_, {"model", "add", ModelDir("w8"), "--block-size", "64"});
  Sleep(a_, "w8", kLong);
  Succeeds(b_, {"model", "add", ModelDir("w8")});
  const uint64_t size =
      Succeeds(a_, {"export", "s", dir().File("s.torpor")})["bytes"];
  ASSERT_GT(size, uint64_t{900} << 10);
  const json truth = Wake(a_, "s", "w8", "bounded");
  service::SocketProxy proxy(dir().File("proxy"), SocketOf(a_));
  for (const bool kill_source : {false, true}) {
    uint64_t from_block = 0;
    std::string name;
    // A slow machine may not have passed a block on yet: more time then.
    for (int ms = 100; from_block == 0 && ms < 20'000; ms *= 2) {
      name = "p" + std::to_string(ms) + (kill_source ? "a" : "c");
      const std::vector<std::string> pull = {
          "import", "--from", "unix:" + dir().File("proxy"), "s", "--as", name};
      proxy.HoldAfter(size / 2);
      {
        Process client(Words(b_, pull));
        while (!proxy.held()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(ms));
        if (kill_source) {
          Kill(&a_);
        } else {
          client.Signal(SIGKILL);
        }
        proxy.Cut();
        EXPECT_NE(client.Wait(), 0);
      }
      // Nothing is seen of half a session.
      EXPECT_THAT(Fails(b_, {"show", name}), HasSubstr("NOT_FOUND"));
      if (kill_source) {
        ASSERT_NO_FATAL_FAILURE(StartNode(&a_));
      }
      from_block = Succeeds(b_, pull)["from_block"].get<uint64_t>();
    }
    EXPECT_GT(from_block, 0);
    EXPECT_EQ(Wake(b_, name, "w8", "bounded")["tokens"], truth["tokens"]);
  }
  ExpectVerifies(b_);
}

}  // namespace
}  // namespace torpor::e2e
