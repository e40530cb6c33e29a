// SPDX-License-Identifier: Apache-2.0
//
// The words of the command line, and the commands that need neither a daemon
// nor a session: completion and dump.

#include <fstream>
#include <string>

#include "tests/e2e/cli_fixture.h"

namespace torpor::e2e {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(CliTest, WordsThatMeanNothing) {
  const Finished nothing = Torpor({});
  EXPECT_NE(nothing.code, 0);
  EXPECT_THAT(nothing.err, HasSubstr("subcommand"));
  Fails({"no-such-command"}, "no-such-command");
  Fails({"stats", "--no-such-option"}, "--no-such-option");
  Fails({"--timeout", "soon", "stats"}, "soon");
  for (const char* seconds : {"0", "-1", "nan", "1e+300", "0.0004"}) {
    Fails({"--timeout", seconds, "stats"},
          std::string("--timeout: got ") + seconds);
  }
  Fails({"model", "add", ""}, "model: got '', wanted a path");
  for (const char* at : {"-1", "many", "18446744073709551616"}) {
    Fails({"fork", "a", "b", "--at", at},
          std::string("got '") + at + "', wanted a whole number");
  }
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

}  // namespace
}  // namespace torpor::e2e
