// SPDX-License-Identifier: Apache-2.0
//
// The daemon as an object: opens the store, listens, serves, drains. One per
// process as a rule; tests run several.

#ifndef TORPOR_SERVICE_SERVER_H_
#define TORPOR_SERVICE_SERVER_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/backend.h"
#include "service/tenants.h"
#include "store/lmdb_session_store.h"

namespace torpor::service {

struct ServerOptions {
  store::LmdbStoreOptions store;
  BackendOptions backend;
  // "unix:///path" or "host:port"; several are served at once. Port 0 picks
  // one.
  std::vector<std::string> listen;
  // May connect to the unix sockets beside the daemon's own user.
  std::optional<gid_t> socket_group;
  // PEM files; both or none. With them, TCP other than loopback is allowed.
  std::string tls_certificate;
  std::string tls_key;
  // Clients must show a certificate that this signs; empty = none asked.
  std::string tls_client_ca;
  // TCP beyond loopback without TLS.
  bool insecure_tcp = false;
  std::vector<TenantConfig> tenants;
  bool require_credential = false;
  // "host:port" for Prometheus; empty = none.
  std::string metrics_listen;
  bool reflection = true;
  std::chrono::milliseconds maintain_every{1000};
  // How long a drain waits for calls before it cancels them.
  std::chrono::milliseconds drain_limit{10'000};

  // kInvalidArgument names the option.
  [[nodiscard]] absl::Status Validate() const;
};

class Server {
 public:
  // Listens when it returns.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options);
  // Drains.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Addresses to connect to, in the order of ServerOptions::listen, ports
  // filled in.
  [[nodiscard]] const std::vector<std::string>& addresses() const;
  Backend& backend();

  // Health turns NOT_SERVING, new calls get UNAVAILABLE, running ones may end
  // within the limit; then everything stops. Idempotent.
  void Drain();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_SERVER_H_
