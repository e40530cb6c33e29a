// SPDX-License-Identifier: Apache-2.0
//
// A child that is this very test program, started again with other arguments:
//   int main(int argc, char** argv) {
//     if (argc > 1 && std::string(argv[1]) == "--child") return RunChild(...);
//     ::testing::InitGoogleTest(&argc, argv);
//     return RUN_ALL_TESTS();
//   }
// What it writes to kChildOutput the parent reads. Not thread-safe.

#ifndef TORPOR_TESTS_TESTING_CHILD_PROCESS_H_
#define TORPOR_TESTS_TESTING_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace torpor::testing {

inline constexpr int kChildOutput = 3;

// In the child: one line to the parent, in one write.
void Report(const std::string& line);

class ChildProcess {
 public:
  explicit ChildProcess(const std::vector<std::string>& arguments);
  // Kills and reaps it if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // The next complete line, without its end; empty when the child is gone or
  // nothing came in time.
  std::string ReadLine(std::chrono::milliseconds timeout);

  // SIGKILL. Lines that it wrote before can still be read.
  void Kill();
  // Waits for its end; the status of waitpid.
  int Wait();

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string unread_;
};

}  // namespace torpor::testing

#endif  // TORPOR_TESTS_TESTING_CHILD_PROCESS_H_
