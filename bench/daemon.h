// SPDX-License-Identifier: Apache-2.0
//
// The torpord that a benchmark measures: one of its own, which it may kill and
// start again, or one that runs already. And what the kernel says of a process.
// Not thread-safe, but for Connect.

#ifndef TORPOR_BENCH_DAEMON_H_
#define TORPOR_BENCH_DAEMON_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/process.h"
#include "service/client.h"

namespace torpor::bench {

// Of /proc/<pid>/io and /proc/<pid>/status; zeros for a process that is gone.
struct Usage {
  // From the disk, all time.
  uint64_t read_bytes = 0;
  // Handed to write calls, sockets not among them: gRPC's are sent. Not
  // write_bytes, which counts a large folio whole when 4 KiB of it are written.
  uint64_t written_bytes = 0;
  // RssAnon + RssShmem: memory that is the process's own, not page cache.
  uint64_t private_bytes = 0;
};
Usage UsageOf(pid_t pid);

// Samples a process's private memory until it goes out of scope.
class MemoryWatch {
 public:
  explicit MemoryWatch(pid_t pid);
  ~MemoryWatch() { Stop(); }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  // The most that was seen; ends the watch.
  uint64_t Stop();

 private:
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> max_{0};
  std::thread thread_;
};

struct DaemonOptions {
  std::string bin_dir;
  // Data directory, socket and log go here.
  std::string work_dir;
  // More words for torpord's command line.
  std::vector<std::string> flags;
};

class Daemon {
 public:
  // Serves when it returns.
  static absl::StatusOr<Daemon> Start(const DaemonOptions& options);
  // One that runs, at a unix socket of this host.
  static absl::StatusOr<Daemon> Attach(const std::string& address);

  Daemon(Daemon&&) = default;
  Daemon& operator=(Daemon&&) = default;

  // A client with a connection of its own.
  [[nodiscard]] absl::StatusOr<std::unique_ptr<service::Client>> Connect(
      service::RowPlane plane = service::RowPlane::kAuto) const;
  [[nodiscard]] pid_t pid() const { return pid_; }
  // Whether it may be killed.
  [[nodiscard]] bool own() const { return own_; }
  [[nodiscard]] std::string data_dir() const {
    return options_.work_dir + "/data";
  }

  // REQUIRES for all three: own().
  // kill -9.
  void Kill();
  // SIGTERM; returns when it has drained.
  absl::Status Stop();
  // After one of them; serves when it returns.
  absl::Status Restart();

 private:
  Daemon() = default;

  DaemonOptions options_;
  std::string address_;
  pid_t pid_ = -1;
  bool own_ = false;
  Process process_;
};

// Writes what is dirty of the daemon's data file to disk and drops its pages
// from the page cache. REQUIRES: no daemon has it open, or pages stay.
absl::Status DropPageCache(const std::string& data_dir);

// Reads the data file once, so that its pages are in the page cache.
absl::Status FillPageCache(const std::string& data_dir);

// Transactions that the daemon has committed since it started: each is one
// fdatasync and one synchronous write of LMDB's meta page.
absl::StatusOr<uint64_t> CommitsOf(service::Client* client);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_DAEMON_H_
