// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/child_run.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace torpor::gpu_check {
namespace {

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> out;
  for (std::string& s : *strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

// Waits, and kills the child's process group at the deadline. True: in time.
bool WaitUntil(pid_t pid, Clock::time_point deadline, int* status) {
  while (waitpid(pid, status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) {
      kill(-pid, SIGKILL);
      waitpid(pid, status, 0);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string TextFrom(const std::string& path, std::streamoff begin) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(begin);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

ChildEnd RunChild(const std::vector<std::string>& argv,
                  const std::vector<std::string>& environment,
                  const std::string& log, Clock::time_point deadline) {
  ChildEnd end;
  std::error_code no_file;
  const auto size = std::filesystem::file_size(log, no_file);
  const auto begin = static_cast<std::streamoff>(no_file ? 0 : size);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  std::vector<std::string> variables = environment;
  for (char** at = environ; *at != nullptr; ++at) variables.emplace_back(*at);
  std::vector<std::string> words = argv;
  pid_t pid = -1;
  const int error =
      posix_spawn(&pid, words[0].c_str(), &actions, &attributes,
                  Pointers(&words).data(), Pointers(&variables).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    end.how = "start " + argv[0] + ": " + std::strerror(error);
    return end;
  }
  int status = 0;
  end.stopped = !WaitUntil(pid, deadline, &status);
  end.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  end.how = WIFEXITED(status)
                ? "exit status " + std::to_string(WEXITSTATUS(status))
                : "signal " + std::to_string(WTERMSIG(status));
  end.output = TextFrom(log, begin);
  return end;
}

std::string ThisProgram() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

}  // namespace torpor::gpu_check
