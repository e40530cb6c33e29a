// SPDX-License-Identifier: Apache-2.0
//
// Where torpord agrees to stand, and where not: sockets, directories, TCP,
// TLS, its config file. Whatever it refuses it names, and leaves as it is.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <regex>

#include "tests/e2e/daemon_fixture.h"

namespace torpor::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DaemonStartTest : public DaemonTest {
 protected:
  static unsigned ModeOf(const std::string& path) {
    struct stat st = {};
    EXPECT_EQ(lstat(path.c_str(), &st), 0) << path;
    return st.st_mode & 07777;
  }
  // Of a daemon that listens on TCP, from its log.
  std::string TcpAddress() {
    std::smatch match;
    const std::string log = daemon().error();
    const bool found = std::regex_search(
        log, match,
        std::regex("((?:127\\.0\\.0\\.1|localhost|0\\.0\\.0\\.0):([0-9]+))"));
    EXPECT_TRUE(found) << log;
    return found ? match[1].str() : "";
  }
  std::vector<std::string> WithData(std::vector<std::string> options) {
    options.insert(options.end(), {"--data-dir", dir().File("data")});
    return options;
  }
  // A socket file that nobody serves any longer.
  static void LeaveStaleSocket(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size());
    ASSERT_EQ(
        bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
        0);
    close(fd);
  }
};

TEST_F(DaemonStartTest, SocketAndDirectoryAreTheOwnersAlone) {
  Start();
  EXPECT_EQ(ModeOf(Socket()), 0600);
  EXPECT_EQ(ModeOf(dir().File("run")), 0700);
  EXPECT_EQ(ModeOf(dir().File("data")), 0700);
  EXPECT_EQ(Torpor({"stats"}).code, 0);
  Stop();
  EXPECT_FALSE(std::filesystem::exists(Socket())) << "left behind";
}

TEST_F(DaemonStartTest, AGroupMayConnect) {
  if (geteuid() != 0) GTEST_SKIP() << "wants root, to be somebody else";
  ASSERT_EQ(chmod(dir().path().c_str(), 0755), 0);
  Start("socket_group = '4321'\n");
  EXPECT_EQ(ModeOf(Socket()), 0660);
  EXPECT_EQ(ModeOf(Socket() + ".fd"), 0660);
  EXPECT_EQ(ModeOf(dir().File("run")), 0750);
  EXPECT_EQ(ModeOf(dir().File("data")), 0700);
  const auto stats_as = [&](const std::string& group) {
    return RunToEnd({"/usr/bin/setpriv", "--reuid=65534", "--regid=" + group,
                     "--clear-groups", TorporPath(), "--server", Address(),
                     "--timeout", "2", "stats"})
        .code;
  };
  EXPECT_EQ(stats_as("4321"), 0);
  EXPECT_EQ(stats_as("4322"), 1);
}

TEST_F(DaemonStartTest, ADirectoryThatShutsTheGroupOutIsTold) {
  if (geteuid() != 0) GTEST_SKIP() << "wants root, to be somebody else";
  ASSERT_EQ(chmod(dir().path().c_str(), 0755), 0);
  const std::string run = dir().File("run");
  // As a start without socket_group makes it.
  ASSERT_EQ(mkdir(run.c_str(), 0700), 0);
  Start("socket_group = '4321'\n");
  EXPECT_EQ(ModeOf(run), 0700);
  EXPECT_THAT(daemon().error(), AllOf(HasSubstr("event=socket_group_shut_out"),
                                      HasSubstr("directory=" + run + " "),
                                      HasSubstr("socket_group=4321")));
  Finished doctor = Torpor({"doctor"});
  EXPECT_EQ(doctor.code, 1);
  EXPECT_THAT(doctor.out,
              HasSubstr("chgrp 4321 " + run + "; chmod g+x " + run));
  const Finished member = RunToEnd(
      {"/usr/bin/setpriv", "--reuid=65534", "--regid=4321", "--clear-groups",
       TorporPath(), "--server", Address(), "--timeout", "2", "doctor"});
  EXPECT_THAT(member.out, HasSubstr("this user may not open " + Socket()));

  ASSERT_EQ(chown(run.c_str(), -1, 4321), 0);
  ASSERT_EQ(chmod(run.c_str(), 0710), 0);
  doctor = Torpor({"doctor"});
  EXPECT_THAT(doctor.out, HasSubstr("ok    " + Socket() + ": open to group"));
  Stop();
  Start("socket_group = '4321'\n");
  EXPECT_THAT(daemon().error(), Not(HasSubstr("shut_out")));
}

TEST_F(DaemonStartTest, AServiceManagerIsTold) {
  const std::string path = dir().File("notify");
  const int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
  const timeval limit = {.tv_sec = kPatience.count()};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ASSERT_EQ(
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
      0);
  const auto told = [&] {
    std::array<char, 64> text{};
    const ssize_t n = recv(fd, text.data(), text.size(), 0);
    return std::string(text.data(), n > 0 ? static_cast<size_t>(n) : 0);
  };
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  Start();
  EXPECT_EQ(told(), "READY=1");
  Stop();
  EXPECT_EQ(told(), "STOPPING=1");
  // Refused: it never says that it is ready.
  ExpectRefused(WithData({"--listen", "nonsense"}));
  std::array<char, 64> text{};
  EXPECT_EQ(recv(fd, text.data(), text.size(), MSG_DONTWAIT), -1);
  // A manager that is gone changes nothing.
  close(fd);
  Start();
  Stop();
  unsetenv("NOTIFY_SOCKET");
}

TEST_F(DaemonStartTest, AStaleSocketIsReplaced) {
  ASSERT_EQ(mkdir(dir().File("run").c_str(), 0700), 0);
  LeaveStaleSocket(Socket());
  Start();
  EXPECT_EQ(Torpor({"stats"}).code, 0);
  // Its own, after it was killed.
  Stop(9, 128 + 9);
  EXPECT_TRUE(std::filesystem::exists(Socket()));
  Start();
  EXPECT_EQ(Torpor({"stats"}).code, 0);
}

TEST_F(DaemonStartTest, ALiveSocketIsNeverStolen) {
  Start();
  const std::vector<std::string> second = {"--data-dir", dir().File("other"),
                                           "--listen", "unix://" + Socket()};
  EXPECT_THAT(ExpectRefused(second), HasSubstr(Socket()));
  EXPECT_EQ(Torpor({"stats"}).code, 0);
  // Not even when the lock beside it is gone.
  std::filesystem::remove(Socket() + ".lock");
  EXPECT_THAT(ExpectRefused(second), HasSubstr(Socket()));
  EXPECT_EQ(Torpor({"stats"}).code, 0);
  Stop();
}

TEST_F(DaemonStartTest, WhatIsNoSocketStays) {
  ASSERT_EQ(mkdir(dir().File("run").c_str(), 0700), 0);
  Write("run/s", "notes");
  EXPECT_THAT(ExpectRefused(WithData({"--listen", "unix://" + Socket()})),
              HasSubstr(Socket()));
  std::ifstream in(Socket());
  std::string text;
  in >> text;
  EXPECT_EQ(text, "notes");
}

TEST_F(DaemonStartTest, SocketPathsThatCannotBe) {
  const std::string deep = "/" + std::string(107, 'x');
  EXPECT_THAT(ExpectRefused(WithData({"--listen", "unix://" + deep})),
              HasSubstr("107"));
  EXPECT_THAT(ExpectRefused(WithData({"--listen", "unix://relative"})),
              HasSubstr("relative"));
  // A directory that others may write to.
  ASSERT_EQ(mkdir(dir().File("run").c_str(), 0700), 0);
  ASSERT_EQ(chmod(dir().File("run").c_str(), 0777), 0);
  EXPECT_THAT(ExpectRefused(WithData({"--listen", "unix://" + Socket()})),
              HasSubstr("0777"));
  EXPECT_THAT(ExpectRefused(WithData({"--listen", "nonsense"})),
              HasSubstr("nonsense"));
}

TEST_F(DaemonStartTest, TheDataDirectoryHasOneDaemon) {
  Start();
  EXPECT_THAT(ExpectRefused(
                  WithData({"--listen", "unix://" + dir().File("run/other")})),
              HasSubstr(dir().File("data")));
  EXPECT_EQ(Torpor({"stats"}).code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir().File("run/other")));
}

TEST_F(DaemonStartTest, PortsThatCannotBe) {
  for (const char* port : {"99999", "65536", "-1", "", "http"}) {
    const std::string address = std::string("localhost:") + port;
    EXPECT_THAT(ExpectRefused(WithData({"--listen", address})),
                HasSubstr("listen: got '" + address + "'"));
  }
}

TEST_F(DaemonStartTest, TcpStaysAtHome) {
  for (const char* address : {"0.0.0.0:0", "[::]:0", "192.0.2.1:0",
                              "127.example.com:0", "localhost.example.com:0"}) {
    EXPECT_THAT(ExpectRefused(WithData({"--listen", address})),
                HasSubstr("insecure-tcp"))
        << address;
  }
  Start("", {"--listen", "127.0.0.1:0"});
  const Finished stats =
      RunToEnd({TorporPath(), "--server", TcpAddress(), "stats"});
  EXPECT_EQ(stats.code, 0) << stats.err;
  Stop();
  Start("", {"--listen", "0.0.0.0:0", "--insecure-tcp"});
  EXPECT_EQ(Torpor({"stats"}).code, 0);
}

TEST_F(DaemonStartTest, TlsServesThoseWhoTrustIt) {
  if (!std::filesystem::exists("/usr/bin/openssl")) {
    GTEST_SKIP() << "no openssl to make a certificate with";
  }
  const std::string key = dir().File("key.pem");
  const std::string certificate = dir().File("cert.pem");
  const Finished made =
      RunToEnd({"/usr/bin/openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string tls =
      "[tls]\ncertificate = '" + certificate + "'\nkey = '" + key + "'\n";
  // Beyond loopback too.
  Start(tls, {"--listen", "0.0.0.0:0"});
  const std::string address = TcpAddress();
  const std::string at_home = "127.0.0.1" + address.substr(address.rfind(':'));
  const Finished trusted = RunToEnd(
      {TorporPath(), "--server", at_home, "--tls-ca", certificate, "stats"});
  EXPECT_EQ(trusted.code, 0) << trusted.err;
  const Finished plain = RunToEnd({TorporPath(), "--server", at_home, "stats"});
  EXPECT_NE(plain.code, 0);
  const Finished no_file = RunToEnd(
      {TorporPath(), "--server", at_home, "--tls-ca", "/no/such/ca", "stats"});
  EXPECT_NE(no_file.code, 0);
  EXPECT_THAT(no_file.err, HasSubstr("/no/such/ca"));
  Stop();

  // Half of it, or none of it there.
  EXPECT_THAT(
      ExpectRefused(WithData(
          {"--config", Write("half.toml", "[tls]\nkey = '" + key + "'\n"),
           "--listen", "127.0.0.1:0"})),
      HasSubstr("certificate"));
  EXPECT_THAT(ExpectRefused(WithData(
                  {"--config",
                   Write("gone.toml",
                         "[tls]\nkey = '/no/key'\ncertificate = '/no/cert'\n"),
                   "--listen", "127.0.0.1:0"})),
              HasSubstr("/no/"));
}

TEST_F(DaemonStartTest, ConfigErrorsNameFileLineAndKey) {
  struct Case {
    const char* text;
    std::vector<const char*> named;
  };
  const std::vector<Case> cases = {
      {"unknown = 1\n", {":1", "unknown"}},
      {"listen = 'unix:///x'\n", {":1", "listen"}},
      {"\n[store]\nmax_byte = 1\n", {":3", "store.max_byte"}},
      {"[store]\nmax_bytes = 'many'\n", {":2", "store.max_bytes"}},
      {"[store]\nmax_bytes = -1\n", {":2", "store.max_bytes"}},
      {"[store]\nmax_bytes = 1.5\n", {":2", "store.max_bytes"}},
      {"[store]\nmap_bytes = 1\n", {"store.map_bytes: got 1, wanted"}},
      {"reflection = 'yes'\n", {":1", "reflection"}},
      {"store = 3\n", {":1", "store"}},
      {"[[tenant]]\nname = 'a'\nnumbr = 1\n", {":3", "numbr"}},
      {"[[tenant]]\nname = 'a'\nnumber = 4294967297\n", {":3", "number"}},
      {"[replay]\nthreads = 4294967297\n", {":2", "threads"}},
      {"[[tenant]]\nname = 'a'\nnumber = 1\n[[tenant]]\nname = 'a'\nnumber = "
       "2\n",
       {"'a'"}},
      {"[[tenant]]\nname = 'a'\nnumber = 1\ntoken_hashes = ['plain']\n",
       {"plain", "sha256"}},
      {"[limits]\ncalls = 0\n", {"calls"}},
      {"[limits]\nidle_seconds = 0\n", {"limits.idle_seconds"}},
      // No wake would ever get its turn.
      {"[replay]\nmax_batch = 0\n", {"replay.max_batch"}},
      {"[replay]\nthreads = 100000\n", {"replay.threads", "100000"}},
      {"maintain_every_ms = 0\n", {"maintain_every_ms"}},
      {"log_level = 'loud'\n", {"loud"}},
      {"socket_group = 'no-such-group'\n", {"no-such-group"}},
      {"[replay]\nisa = 'z80'\n", {"z80"}},
      {"[replay]\ndevice_gemm = 'fast'\n", {"device_gemm", "'fast'"}},
      {"this is no toml", {":1"}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const std::string file = Write("bad.toml", c.text);
    const std::string error = ExpectRefused(
        WithData({"--config", file, "--listen", "unix://" + Socket()}));
    for (const char* named : c.named) EXPECT_THAT(error, HasSubstr(named));
  }
  EXPECT_THAT(
      ExpectRefused({"--config", "/no/such.toml"}),
      ::testing::AllOf(HasSubstr("/no/such.toml"), HasSubstr("NOT_FOUND")));
  EXPECT_THAT(ExpectRefused({"--listen", "unix://" + Socket()}),
              HasSubstr("data_dir"));
  EXPECT_THAT(ExpectRefused({"--listen", "unix://" + Socket(), "--data-dir",
                             "/proc/no/data"}),
              HasSubstr("/proc/no"));
}

// A shell's soft limit is 1,024 as a rule, and gRPC never accepts again once it
// has met it.
TEST_F(DaemonStartTest, TakesAllTheDescriptorsThatItMay) {
  const rlim_t soft = 64;
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low = {.rlim_cur = soft, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  Start();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit its = {};
  ASSERT_EQ(prlimit(daemon().pid(), RLIMIT_NOFILE, nullptr, &its), 0);
  EXPECT_EQ(its.rlim_cur, before.rlim_max);
  EXPECT_GT(its.rlim_cur, soft);
}

TEST_F(DaemonStartTest, FlagsThatCannotBe) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--no-such-flag"},
                                             {"--threads", "many"},
                                             {"--threads", "-1"},
                                             {"--threads", "100000"},
                                             {"--max-bytes", "-5"},
                                             {"--device-gemm", "fast"},
                                             {"stray"}}) {
    SCOPED_TRACE(words[0]);
    const auto process = Spawn(WithData(words));
    EXPECT_NE(process->Wait(), 0);
    EXPECT_NE(process->error(), "");
  }
  const auto version = Spawn({"--version"});
  EXPECT_EQ(version->Wait(), 0);
  EXPECT_TRUE(std::regex_match(version->output(),
                               std::regex("torpord [0-9]+(\\.[0-9]+){2}\n")))
      << version->output();
}

}  // namespace
}  // namespace torpor::e2e
