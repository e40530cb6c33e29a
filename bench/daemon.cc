// SPDX-License-Identifier: Apache-2.0

#include "bench/daemon.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace torpor::bench {
namespace {

constexpr auto kSampleEvery = std::chrono::milliseconds(10);

// Who listens on a unix socket.
absl::StatusOr<pid_t> ListenerOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("socket %s: got %d bytes, wanted at most %d", path,
                        path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool ok = fd >= 0 &&
                  connect(fd, reinterpret_cast<const sockaddr*>(&address),
                          sizeof(address)) == 0 &&
                  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (ok) return peer.pid;
  return absl::UnavailableError(
      absl::StrFormat("connect to %s: %s", path, std::strerror(error)));
}

}  // namespace

Usage UsageOf(pid_t pid) {
  Usage usage;
  const std::string dir = absl::StrFormat("/proc/%d/", pid);
  std::ifstream io(dir + "io");
  std::string key;
  uint64_t value = 0;
  while (io >> key >> value) {
    if (key == "read_bytes:") usage.read_bytes = value;
    if (key == "wchar:") usage.written_bytes = value;
  }
  std::ifstream status(dir + "status");
  std::string line;
  while (std::getline(status, line)) {
    std::istringstream words(line);
    words >> key >> value;
    if (key == "RssAnon:" || key == "RssShmem:") {
      usage.private_bytes += value * 1024;
    }
  }
  return usage;
}

MemoryWatch::MemoryWatch(pid_t pid)
    : thread_([this, pid] {
        while (!stopping_.load()) {
          max_ = std::max(max_.load(), UsageOf(pid).private_bytes);
          std::this_thread::sleep_for(kSampleEvery);
        }
        max_ = std::max(max_.load(), UsageOf(pid).private_bytes);
      }) {}

uint64_t MemoryWatch::Stop() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
  return max_.load();
}

absl::StatusOr<Daemon> Daemon::Start(const DaemonOptions& options) {
  Daemon daemon;
  daemon.options_ = options;
  daemon.own_ = true;
  daemon.address_ = "unix://" + options.work_dir + "/torpor.sock";
  TORPOR_RETURN_IF_ERROR(daemon.Restart());
  return daemon;
}

absl::StatusOr<Daemon> Daemon::Attach(const std::string& address) {
  Daemon daemon;
  daemon.address_ = address;
  absl::string_view path = address;
  if (!absl::ConsumePrefix(&path, "unix://") &&
      !absl::ConsumePrefix(&path, "unix:")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "server: got '%s', wanted unix:///path: memory and disk are read from "
        "/proc of the same host",
        address));
  }
  TORPOR_ASSIGN_OR_RETURN(daemon.pid_, ListenerOf(std::string(path)));
  return daemon;
}

absl::StatusOr<std::unique_ptr<service::Client>> Daemon::Connect(
    service::RowPlane plane) const {
  service::ClientOptions client;
  client.plane = plane;
  client.address = address_;
  client.own_connection = true;
  return service::Client::Connect(client);
}

void Daemon::Kill() { process_.Kill(); }

absl::Status Daemon::Stop() { return process_.Stop(); }

absl::Status Daemon::Restart() {
  std::vector<std::string> argv = {options_.bin_dir + "/torpord", "--data-dir",
                                   data_dir(), "--listen", address_};
  argv.insert(argv.end(), options_.flags.begin(), options_.flags.end());
  TORPOR_ASSIGN_OR_RETURN(
      process_, Process::Start(argv, options_.work_dir + "/torpord.log"));
  pid_ = process_.pid();
  // The socket appears when it serves; gRPC's own retries are slower.
  const std::string socket = options_.work_dir + "/torpor.sock";
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!ListenerOf(socket).ok()) {
    if (!process_.Runs()) return process_.Wait();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrFormat("torpord does not serve %s after 120 s", socket));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

absl::Status DropPageCache(const std::string& data_dir) {
  const std::string file = data_dir + "/data.mdb";
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  const bool ok = fd >= 0 && fsync(fd) == 0 &&
                  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (ok) return absl::OkStatus();
  return absl::NotFoundError(absl::StrFormat("drop the page cache of %s: %s",
                                             file, std::strerror(error)));
}

absl::Status FillPageCache(const std::string& data_dir) {
  const std::string file = data_dir + "/data.mdb";
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  std::vector<char> buffer(1 << 20);
  ssize_t n = fd < 0 ? -1 : 1;
  while (n > 0) n = read(fd, buffer.data(), buffer.size());
  const int error = errno;
  if (fd >= 0) close(fd);
  if (n == 0) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrFormat("read %s: %s", file, std::strerror(error)));
}

absl::StatusOr<uint64_t> CommitsOf(service::Client* client) {
  TORPOR_ASSIGN_OR_RETURN(
      const v1::StatsResponse stats,
      client->Unary(client->admin(), &v1::AdminService::Stub::Stats,
                    v1::StatsRequest()));
  return stats.commits();
}

}  // namespace torpor::bench
