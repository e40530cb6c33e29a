// SPDX-License-Identifier: Apache-2.0
//
// torpord: the daemon.

#include <malloc.h>
#include <signal.h>
#include <sodium.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "kernels/isa.h"
#include "service/config.h"
#include "service/device.h"
#include "service/grpc_lifetime.h"
#include "service/log.h"
#include "service/notify.h"
#include "service/server.h"
#include "service/unix_socket.h"
#include "service/version.h"

namespace torpor::service {
namespace {

// More would end the process with the first model.
constexpr int kMaxThreads = 1024;

struct Flags {
  std::string config;
  std::string data_dir;
  std::vector<std::string> listen;
  std::string metrics_listen;
  std::optional<uint64_t> max_bytes;
  std::string isa;
  int threads = 0;
  std::string device;
  std::string device_gemm;
  bool insecure_tcp = false;
  std::string log_level;
  // Of the service manager; empty = none.
  std::string notify_socket;
};

absl::StatusOr<DaemonConfig> Configure(const Flags& flags) {
  DaemonConfig config;
  if (!flags.config.empty()) {
    TORPOR_RETURN_IF_ERROR(LoadConfig(flags.config, &config));
  }
  ServerOptions& s = config.server;
  if (!flags.data_dir.empty()) s.store.data_dir = flags.data_dir;
  if (!flags.listen.empty()) s.listen = flags.listen;
  if (!flags.metrics_listen.empty()) s.metrics_listen = flags.metrics_listen;
  if (flags.max_bytes.has_value()) s.store.max_bytes = *flags.max_bytes;
  if (!flags.isa.empty()) config.isa = flags.isa;
  if (flags.threads > 0) config.threads = flags.threads;
  if (!flags.device.empty()) config.device.name = flags.device;
  if (!flags.device_gemm.empty()) config.device.gemm = flags.device_gemm;
  if (flags.insecure_tcp) s.insecure_tcp = true;
  if (!flags.log_level.empty()) config.log_level = flags.log_level;

  if (s.store.data_dir.empty()) {
    return absl::InvalidArgumentError(
        "data_dir: wanted a directory (--data-dir)");
  }
  if (s.listen.empty()) s.listen = {"unix:///run/torpor/torpor.sock"};
  if (!config.socket_group.empty()) {
    TORPOR_ASSIGN_OR_RETURN(s.socket_group, GroupNumber(config.socket_group));
  }
  TORPOR_ASSIGN_OR_RETURN(s.backend.models.isa, kernels::ParseIsa(config.isa));
  if (config.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrFormat("replay.threads: got %d, wanted at most %d",
                        config.threads, kMaxThreads));
  }
  s.backend.models.n_threads =
      config.threads > 0
          ? config.threads
          : static_cast<int>(std::thread::hardware_concurrency());
  return config;
}

// A service manager that does not hear us will stop us for it; that is no
// reason to stop by ourselves.
void TellServiceManager(const std::string& socket, std::string_view state) {
  if (const absl::Status s = Notify(socket, state); !s.ok()) {
    LogEvent(spdlog::level::warn, "notify",
             {{"error", std::string(s.message())}});
  }
}

absl::Status Serve(const Flags& flags) {
  TORPOR_ASSIGN_OR_RETURN(DaemonConfig config, Configure(flags));
  TORPOR_RETURN_IF_ERROR(StartLog(config.log_level));
  // Block buffers and LMDB's dirty pages are large and short-lived: handing
  // them back to the kernel each time would cost a page fault a page.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);

  // Signals are taken by this thread alone; others inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  // A file size limit is a full disk, not a reason to die.
  signal(SIGXFSZ, SIG_IGN);
  // gRPC never listens again once accept found no descriptor left.
  struct rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }

  KeepGrpcUp();
  TORPOR_ASSIGN_OR_RETURN(const Device device, ChooseDevice(config.device));
  config.server.backend.models.open_device = device.open;
  config.server.backend.models.cpu_replay_bytes =
      config.server.backend.replay.memory_bytes;
  const ServerOptions& s = config.server;
  const std::string data_dir = s.store.data_dir;
  const std::string isa(kernels::IsaName(s.backend.models.isa));
  const int threads = s.backend.models.n_threads;
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<Server> server,
                          Server::Start(std::move(config.server)));
  LogEvent(spdlog::level::info, "start",
           {{"version", kVersion},
            {"data_dir", data_dir},
            {"listen", absl::StrJoin(server->addresses(), ",")},
            {"device", device.name},
            {"device_reason", device.reason},
            {"device_gemm", device.open == nullptr ? "" : config.device.gemm},
            {"isa", isa},
            {"threads", std::to_string(threads)}});
  TellServiceManager(flags.notify_socket, "READY=1");
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  LogEvent(spdlog::level::info, "signal",
           {{"number", std::to_string(signal_number)}});
  TellServiceManager(flags.notify_socket, "STOPPING=1");
  server->Drain();
  LogEvent(spdlog::level::info, "stop", {});
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  if (sodium_init() < 0) {
    std::cerr << "torpord: libsodium does not start\n";
    return 1;
  }
  CLI::App app{"Keeps sleeping LLM sessions on SSD and wakes them"};
  app.set_version_flag("--version", std::string("torpord ") + kVersion);
  Flags flags;
  app.add_option("--config", flags.config, "TOML file");
  app.add_option("--data-dir", flags.data_dir, "Where sessions are kept")
      ->envname("TORPOR_DATA_DIR");
  app.add_option("--listen", flags.listen,
                 "unix:///path or host:port; may be given several times");
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "host:port for Prometheus");
  app.add_option("--max-bytes", flags.max_bytes,
                 "Budget of the store (default: 90 % of the disk)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--isa", flags.isa,
                 "CPU path: auto, portable, avx2, avx512bf16 or amx");
  app.add_option("--device", flags.device,
                 "Where models run: cpu (default), cuda:N or auto");
  app.add_option("--device-gemm", flags.device_gemm,
                 "What multiplies on a device: simt (default), or tensor: its "
                 "tensor cores, in bf16");
  app.add_option("--threads", flags.threads,
                 "Of replay (default: one a processor)")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--insecure-tcp", flags.insecure_tcp,
               "Allow TCP beyond loopback without TLS");
  app.add_option("--log-level", flags.log_level,
                 "trace, debug, info, warning, error or off");
  CLI11_PARSE(app, argc, argv);
  if (const char* socket = getenv("NOTIFY_SOCKET")) {
    flags.notify_socket = socket;
  }
  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  std::cerr << absl::StrFormat("torpord: %s: %s\n",
                               absl::StatusCodeToString(status.code()),
                               std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace torpor::service

int main(int argc, char** argv) { return torpor::service::Main(argc, argv); }
