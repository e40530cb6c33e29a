// SPDX-License-Identifier: Apache-2.0
//
// Programs of this project as their users start them: torpord in the
// background, torpor to its end.

#ifndef TORPOR_TESTS_E2E_PROCESS_H_
#define TORPOR_TESTS_E2E_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace torpor::e2e {

// Longer than anything here takes, even under a sanitizer.
inline constexpr std::chrono::seconds kPatience{120};

class Process {
 public:
  // Words of the command line, the program's path first.
  explicit Process(const std::vector<std::string>& words);
  // Kills it if it still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  void Signal(int number) const;

  // Until what it wrote to stderr contains the text; false when it ends
  // without.
  bool AwaitError(const std::string& text);
  // Its exit code, 128 + n when signal n ended it, -1 when it does not end.
  int Wait();
  // What it wrote so far; all of it after Wait.
  std::string output();
  std::string error();

 private:
  struct Stream {
    int fd = -1;
    std::string text;
    bool ended = false;
    std::thread pump;
  };
  void Pump(Stream* stream);

  pid_t pid_ = -1;
  bool reaped_ = false;
  int code_ = -1;
  Mutex mu_;
  CondVar changed_;
  Stream out_;
  Stream err_;
};

struct Finished {
  int code = -1;
  std::string out;
  std::string err;
};

// Starts a program and waits for its end.
Finished RunToEnd(const std::vector<std::string>& words);

// The programs under test.
std::string TorpordPath();
std::string TorporPath();

}  // namespace torpor::e2e

#endif  // TORPOR_TESTS_E2E_PROCESS_H_
