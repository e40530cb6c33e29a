// SPDX-License-Identifier: Apache-2.0
//
// Child processes that benchmarks start, read and kill. One thread uses a
// Process; a child that still runs when its Process goes is killed.

#ifndef TORPOR_BENCH_PROCESS_H_
#define TORPOR_BENCH_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace torpor::bench {

class Process {
 public:
  // Starts argv[0]. Its stderr goes to the end of file `log`.
  static absl::StatusOr<Process> Start(const std::vector<std::string>& argv,
                                       const std::string& log);

  Process() = default;
  Process(Process&& other) noexcept { *this = std::move(other); }
  Process& operator=(Process&& other) noexcept;
  ~Process() { Kill(); }

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] bool running() const { return pid_ > 0; }

  // False when it has ended by itself; Wait says how.
  [[nodiscard]] bool Runs() const;

  // Its stdout up to the end of the first JSON document; the child may go on.
  // kAborted, with the end of its log, when it ends without one.
  absl::StatusOr<std::string> ReadJson();

  // kill -9, and waits for the end.
  void Kill();
  // Waits for the end; kAborted, with the end of its log, unless it exits 0.
  absl::Status Wait();
  // SIGTERM, then Wait.
  absl::Status Stop();

 private:
  [[nodiscard]] std::string LogTail() const;
  void Reap(int* wait_status);

  pid_t pid_ = -1;
  int stdout_ = -1;
  std::string name_;
  std::string log_;
};

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_PROCESS_H_
