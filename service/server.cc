// SPDX-License-Identifier: Apache-2.0

#include "service/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/closed_directory.h"
#include "service/log.h"
#include "service/model_and_admin_service.h"
#include "service/session_service.h"
#include "service/unix_socket.h"

namespace torpor::service {
namespace {

constexpr char kUnixPrefix[] = "unix://";
// What gRPC may buffer for slow readers, all calls together.
constexpr size_t kQuotaBytes = size_t{256} << 20;
constexpr auto kDrainPoll = std::chrono::milliseconds(5);
constexpr auto kLastAnswers = std::chrono::seconds(1);

bool IsUnix(const std::string& address) {
  return absl::StartsWith(address, kUnixPrefix);
}

// A name such as 127.example.com is none, whatever it resolves to.
bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  in_addr ip = {};
  return host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &ip) == 1 &&
          ntohl(ip.s_addr) >> 24 == 127);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("TLS file %s: cannot be read", path));
  }
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> CredentialsOf(
    const ServerOptions& options) {
  if (options.tls_certificate.empty()) {
    return grpc::InsecureServerCredentials();
  }
  grpc::SslServerCredentialsOptions tls;
  TORPOR_ASSIGN_OR_RETURN(const std::string key, ReadFile(options.tls_key));
  TORPOR_ASSIGN_OR_RETURN(const std::string certificate,
                          ReadFile(options.tls_certificate));
  tls.pem_key_cert_pairs.push_back({key, certificate});
  if (!options.tls_client_ca.empty()) {
    TORPOR_ASSIGN_OR_RETURN(tls.pem_root_certs,
                            ReadFile(options.tls_client_ca));
    tls.client_certificate_request =
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(tls);
}

// A directory that stood there before keeps its mode: it may be another's.
void WarnOfClosedDirectory(const std::string& path,
                           std::optional<gid_t> group) {
  if (!group.has_value()) return;
  const std::string directory = DirectoryClosedTo(*group, path);
  if (directory.empty()) return;
  LogEvent(spdlog::level::warn, "socket_group_shut_out",
           {{"listen", path},
            {"directory", directory},
            {"socket_group", std::to_string(*group)}});
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  if (listen.empty()) {
    return absl::InvalidArgumentError(
        "listen: wanted at least one unix:///path or host:port");
  }
  if (tls_certificate.empty() != tls_key.empty()) {
    return absl::InvalidArgumentError(
        "tls: wanted both a certificate and a key, or neither");
  }
  if (!tls_client_ca.empty() && tls_certificate.empty()) {
    return absl::InvalidArgumentError(
        "tls_client_ca: wanted a certificate and a key with it");
  }
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"limits.calls", backend.max_calls},
        {"limits.tickets", backend.max_tickets},
        {"limits.leases", backend.max_leases},
        {"limits.idle_seconds", backend.idle_limit.count()},
        {"replay.max_batch", backend.replay.max_batch},
        {"maintain_every_ms", maintain_every.count()}}) {
    if (value == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: got 0, wanted at least 1", name));
    }
  }
  TORPOR_RETURN_IF_ERROR(backend.segments.Validate());
  TORPOR_RETURN_IF_ERROR(backend.prefetch.Validate());
  for (const std::string& address : listen) {
    if (IsUnix(address)) continue;
    // gRPC takes the lower 16 bits of what is no port.
    const size_t colon = address.rfind(':');
    uint32_t port = 0;
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        port > UINT16_MAX) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "listen: got '%s', wanted unix:///path or host:port, a port from 0 "
          "to 65535",
          address));
    }
    if (!IsLoopback(address) && tls_certificate.empty() && !insecure_tcp) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "listen: %s is no loopback address; give tls_certificate and "
          "tls_key, or --insecure-tcp",
          address));
    }
  }
  return absl::OkStatus();
}

struct Server::Impl {
  ServerOptions options;
  std::vector<std::unique_ptr<UnixSocketPath>> sockets;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<SessionServiceImpl> sessions;
  std::unique_ptr<ModelServiceImpl> models;
  std::unique_ptr<AdminServiceImpl> admin;
  std::unique_ptr<grpc::Server> server;
  std::vector<std::string> addresses;

  std::thread upkeep;
  Mutex mu;
  CondVar wake;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::atomic<bool> drained{false};

  absl::Status Build();
  absl::Status Listen();
  absl::Status ListenForSegments(const std::string& path);
  void Upkeep();
};

absl::Status Server::Impl::Build() {
  TORPOR_ASSIGN_OR_RETURN(
      Tenants tenants,
      Tenants::Make(options.tenants, options.require_credential));
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<store::LmdbSessionStore> store,
                          store::LmdbSessionStore::Open(options.store));
  backend = std::make_unique<Backend>(std::move(store), std::move(tenants),
                                      options.backend);
  TORPOR_RETURN_IF_ERROR(backend->models().Reload());
  if (!options.metrics_listen.empty()) {
    TORPOR_RETURN_IF_ERROR(backend->metrics().Listen(options.metrics_listen));
  }
  sessions = std::make_unique<SessionServiceImpl>(backend.get());
  models = std::make_unique<ModelServiceImpl>(backend.get());
  admin = std::make_unique<AdminServiceImpl>(
      backend.get(),
      ServerFacts{options.store.data_dir, store::SystemClock()() / 1'000'000,
                  absl::StrFormat(
                      "cpu/%s/%d threads",
                      std::string(kernels::IsaName(options.backend.models.isa)),
                      options.backend.models.n_threads)});
  return absl::OkStatus();
}

absl::Status Server::Impl::ListenForSegments(const std::string& path) {
  const absl::Status status = backend->segments().Listen(path);
  // A path that leaves no room for the second one: served without.
  if (!absl::IsInvalidArgument(status)) return status;
  LogEvent(spdlog::level::warn, "no_shared_memory",
           {{"listen", path}, {"error", std::string(status.message())}});
  return absl::OkStatus();
}

absl::Status Server::Impl::Listen() {
  static const bool health_enabled = [] {
    grpc::EnableDefaultHealthCheckService(true);
    return true;
  }();
  (void)health_enabled;
  if (options.reflection) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  }
  TORPOR_ASSIGN_OR_RETURN(
      const std::shared_ptr<grpc::ServerCredentials> tcp_credentials,
      CredentialsOf(options));
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("torpor");
  quota.Resize(kQuotaBytes);
  builder.SetResourceQuota(quota);
  // A client may ping through a long replay without being sent away.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  std::map<std::string, int> ports;
  for (const std::string& address : options.listen) {
    if (IsUnix(address)) {
      TORPOR_ASSIGN_OR_RETURN(
          std::unique_ptr<UnixSocketPath> path,
          UnixSocketPath::Take(address.substr(sizeof(kUnixPrefix) - 1),
                               options.socket_group));
      sockets.push_back(std::move(path));
      WarnOfClosedDirectory(sockets.back()->path(), options.socket_group);
      TORPOR_RETURN_IF_ERROR(ListenForSegments(sockets.back()->path()));
      builder.AddListeningPort("unix:" + sockets.back()->path(),
                               grpc::InsecureServerCredentials());
    } else {
      builder.AddListeningPort(address, tcp_credentials, &ports[address]);
    }
  }
  builder.RegisterService(sessions.get());
  builder.RegisterService(models.get());
  builder.RegisterService(admin.get());
  // Sockets are made with mode 0600, never wider even for a moment.
  const mode_t before = umask(0177);
  server = builder.BuildAndStart();
  umask(before);
  if (server == nullptr) {
    return absl::UnavailableError(
        "listen: no address could be bound; is one in use?");
  }
  for (const auto& socket : sockets) {
    TORPOR_RETURN_IF_ERROR(socket->Share());
  }
  // Clients may ask for a service by name as well as for the daemon.
  for (const char* const name : {v1::SessionService::service_full_name(),
                                 v1::ModelService::service_full_name(),
                                 v1::AdminService::service_full_name()}) {
    server->GetHealthCheckService()->SetServingStatus(name, true);
  }
  for (const std::string& address : options.listen) {
    if (IsUnix(address)) {
      addresses.push_back("unix:" + address.substr(sizeof(kUnixPrefix) - 1));
      continue;
    }
    if (ports[address] == 0) {
      return absl::UnavailableError(
          absl::StrFormat("listen: %s could not be bound", address));
    }
    addresses.push_back(address.substr(0, address.rfind(':') + 1) +
                        std::to_string(ports[address]));
  }
  return absl::OkStatus();
}

void Server::Impl::Upkeep() {
  for (;;) {
    {
      MutexLock lock(&mu);
      const auto deadline =
          std::chrono::steady_clock::now() + options.maintain_every;
      while (!stopping && std::chrono::steady_clock::now() < deadline) {
        wake.WaitUntil(&mu, deadline);
      }
      if (stopping) return;
    }
    backend->Maintain();
  }
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options) {
  TORPOR_RETURN_IF_ERROR(options.Validate());
  auto impl = std::make_unique<Impl>();
  options.backend.segments.group = options.socket_group;
  impl->options = std::move(options);
  TORPOR_RETURN_IF_ERROR(impl->Build());
  std::unique_ptr<Server> server(new Server(std::move(impl)));
  TORPOR_RETURN_IF_ERROR(server->impl_->Listen());
  server->impl_->upkeep =
      std::thread([i = server->impl_.get()] { i->Upkeep(); });
  return server;
}

Server::~Server() { Drain(); }

const std::vector<std::string>& Server::addresses() const {
  return impl_->addresses;
}

Backend& Server::backend() { return *impl_->backend; }

void Server::Drain() {
  if (impl_->drained.exchange(true)) return;
  impl_->backend->Drain();
  if (impl_->server != nullptr) {
    if (auto* health = impl_->server->GetHealthCheckService()) {
      health->SetServingStatus(false);
    }
    LogEvent(spdlog::level::info, "drain",
             {{"calls", std::to_string(impl_->backend->running_calls())}});
    // New calls are told why until the running ones have ended; once gRPC shuts
    // down it only cancels.
    const auto limit =
        std::chrono::steady_clock::now() + impl_->options.drain_limit;
    while (impl_->backend->running_calls() > 0 &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(kDrainPoll);
    }
    // The last answers are still on their way.
    impl_->server->Shutdown(impl_->backend->running_calls() > 0
                                ? std::chrono::system_clock::now()
                                : std::chrono::system_clock::now() +
                                      kLastAnswers);
    impl_->server->Wait();
  }
  {
    MutexLock lock(&impl_->mu);
    impl_->stopping = true;
  }
  impl_->wake.NotifyAll();
  if (impl_->upkeep.joinable()) impl_->upkeep.join();
  impl_->backend->segments().Stop();
}

}  // namespace torpor::service
