// SPDX-License-Identifier: Apache-2.0

#include "tests/testing/child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <utility>

#include "tests/testing/random.h"

extern char** environ;

namespace torpor::testing {

void Report(const std::string& line) {
  const std::string text = line + "\n";
  // A parent that is gone needs no report.
  if (write(kChildOutput, text.data(), text.size()) < 0) _exit(1);
}

ChildProcess::ChildProcess(const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "pipe2";
    return;
  }
  output_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kChildOutput);
  // Its errors are the parent's, its chatter is not.
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null",
                                   O_WRONLY, 0);
  // One seed for all.
  setenv("TORPOR_TEST_SEED", std::to_string(TestSeed()).c_str(), 1);
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "child");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int rc = posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr,
                             argv.data(), environ);
  EXPECT_EQ(rc, 0) << "posix_spawn";
  if (rc != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
}

ChildProcess::~ChildProcess() {
  Kill();
  Wait();
  if (output_ >= 0) close(output_);
}

std::string ChildProcess::ReadLine(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    if (const size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd readable = {.fd = output_, .events = POLLIN};
    if (left.count() < 0 ||
        poll(&readable, 1, static_cast<int>(left.count())) <= 0) {
      return "";
    }
    std::array<char, 4096> bytes{};
    const ssize_t n = read(output_, bytes.data(), bytes.size());
    if (n <= 0) return "";
    unread_.append(bytes.data(), static_cast<size_t>(n));
  }
}

void ChildProcess::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

int ChildProcess::Wait() {
  int status = 0;
  if (const pid_t pid = std::exchange(pid_, -1); pid > 0) {
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
  }
  return status;
}

}  // namespace torpor::testing
