// SPDX-License-Identifier: Apache-2.0

#include "bench/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"

namespace torpor::bench {

absl::StatusOr<Process> Process::Start(const std::vector<std::string>& argv,
                                       const std::string& log) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) {
    return absl::InternalError(
        absl::StrFormat("pipe: %s", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  std::vector<char*> args;
  for (const std::string& arg : argv) {
    args.push_back(const_cast<char*>(arg.c_str()));
  }
  args.push_back(nullptr);
  Process process;
  const int error = posix_spawn(&process.pid_, args[0], &actions, nullptr,
                                args.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  process.stdout_ = pipe_ends[0];
  process.name_ = argv[0];
  process.log_ = log;
  if (error != 0) {
    process.pid_ = -1;
    return absl::NotFoundError(
        absl::StrFormat("start %s: %s", argv[0], std::strerror(error)));
  }
  return process;
}

Process& Process::operator=(Process&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  pid_ = std::exchange(other.pid_, -1);
  stdout_ = std::exchange(other.stdout_, -1);
  name_ = std::move(other.name_);
  log_ = std::move(other.log_);
  return *this;
}

bool Process::Runs() const {
  siginfo_t info{};
  return running() &&
         waitid(P_PID, static_cast<id_t>(pid_), &info,
                WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

absl::StatusOr<std::string> Process::ReadJson() {
  std::string text;
  std::array<char, 65'536> buffer{};
  while (true) {
    const ssize_t n = read(stdout_, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer.data(), static_cast<size_t>(n));
    const bool may_be_whole = text.ends_with("}\n") || text.ends_with("]\n");
    if (may_be_whole && nlohmann::json::accept(text)) return text;
  }
  return absl::AbortedError(
      absl::StrFormat("%s ended without a result: %s", name_, LogTail()));
}

void Process::Kill() {
  if (running()) kill(pid_, SIGKILL);
  Reap(nullptr);
}

absl::Status Process::Wait() {
  int wait_status = 0;
  Reap(&wait_status);
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
    return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrFormat("%s ended with wait status %d: %s",
                                            name_, wait_status, LogTail()));
}

absl::Status Process::Stop() {
  if (running()) kill(pid_, SIGTERM);
  return Wait();
}

void Process::Reap(int* wait_status) {
  if (running()) {
    while (waitpid(pid_, wait_status, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
  if (stdout_ >= 0) close(std::exchange(stdout_, -1));
}

std::string Process::LogTail() const {
  std::ifstream in(log_);
  std::stringstream text;
  text << in.rdbuf();
  const std::string all = text.str();
  return all.substr(all.size() - std::min<size_t>(all.size(), 600));
}

}  // namespace torpor::bench
