// SPDX-License-Identifier: Apache-2.0

#include "tests/e2e/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

extern char** environ;

namespace torpor::e2e {

Process::Process(const std::vector<std::string>& words) {
  std::array<int, 2> out{};
  std::array<int, 2> err{};
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int rc =
      posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ);
  EXPECT_EQ(rc, 0) << "spawn " << words[0];
  if (rc != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  out_.fd = out[0];
  err_.fd = err[0];
  out_.pump = std::thread([this] { Pump(&out_); });
  err_.pump = std::thread([this] { Pump(&err_); });
}

Process::~Process() {
  if (!reaped_) Signal(SIGKILL);
  Wait();
  for (Stream* stream : {&out_, &err_}) {
    stream->pump.join();
    close(stream->fd);
  }
}

void Process::Pump(Stream* stream) {
  std::array<char, 4096> bytes{};
  for (;;) {
    const ssize_t n = read(stream->fd, bytes.data(), bytes.size());
    MutexLock lock(&mu_);
    if (n <= 0) {
      stream->ended = true;
      changed_.NotifyAll();
      return;
    }
    stream->text.append(bytes.data(), static_cast<size_t>(n));
    changed_.NotifyAll();
  }
}

void Process::Signal(int number) const {
  if (pid_ > 0 && !reaped_) kill(pid_, number);
}

bool Process::AwaitError(const std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(&mu_);
  while (err_.text.find(text) == std::string::npos) {
    if (err_.ended || std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
    changed_.WaitUntil(&mu_, deadline);
  }
  return true;
}

int Process::Wait() {
  if (reaped_ || pid_ < 0) return code_;
  // Its end closes its output.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  {
    MutexLock lock(&mu_);
    while (!out_.ended || !err_.ended) {
      if (std::chrono::steady_clock::now() >= deadline) {
        ADD_FAILURE() << "process " << pid_ << " does not end";
        kill(pid_, SIGKILL);
        break;
      }
      changed_.WaitUntil(&mu_, deadline);
    }
  }
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) return -1;
  reaped_ = true;
  code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return code_;
}

std::string Process::output() {
  MutexLock lock(&mu_);
  return out_.text;
}

std::string Process::error() {
  MutexLock lock(&mu_);
  return err_.text;
}

Finished RunToEnd(const std::vector<std::string>& words) {
  Process process(words);
  Finished finished;
  finished.code = process.Wait();
  finished.out = process.output();
  finished.err = process.error();
  return finished;
}

std::string TorpordPath() { return TORPORD_PATH; }
std::string TorporPath() { return TORPOR_PATH; }

}  // namespace torpor::e2e
