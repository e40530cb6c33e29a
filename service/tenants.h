// SPDX-License-Identifier: Apache-2.0
//
// Who a call belongs to: a bearer token in its metadata or a TLS client
// certificate, mapped in the config file. Never a field of a request.
// Immutable.

#ifndef TORPOR_SERVICE_TENANTS_H_
#define TORPOR_SERVICE_TENANTS_H_

#include <grpcpp/server_context.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace torpor::service {

struct TenantConfig {
  std::string name;
  // Its number in keys on disk: chosen once, never changed. 0 is `default`.
  uint32_t number = 0;
  // Bearer tokens, as `sha256:` hex of the token.
  std::vector<std::string> token_hashes;
  // Subject common names of client certificates.
  std::vector<std::string> certificate_names;
  // May call what concerns every tenant, or the node.
  bool is_operator = false;
};

class Tenants {
 public:
  // kInvalidArgument when two tenants share a number, name, token or
  // certificate, or a hash is none.
  static absl::StatusOr<Tenants> Make(const std::vector<TenantConfig>& configs,
                                      bool require_credential);

  // kUnauthenticated for a token that nobody has, or for none where one is
  // required.
  [[nodiscard]] absl::StatusOr<uint32_t> TenantOf(
      const grpc::ServerContextBase& context) const;

  // Where no tenant is configured, `default` is an operator.
  [[nodiscard]] bool IsOperator(uint32_t tenant) const {
    return operators_.contains(tenant);
  }

 private:
  std::map<std::string, uint32_t> by_token_hash_;
  std::map<std::string, uint32_t> by_certificate_;
  std::set<uint32_t> operators_;
  bool require_credential_ = false;
};

// "sha256:" and the hex of a token, as the config file wants it.
std::string TokenHash(const std::string& token);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_TENANTS_H_
