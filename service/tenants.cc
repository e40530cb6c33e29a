// SPDX-License-Identifier: Apache-2.0

#include "service/tenants.h"

#include <grpcpp/security/auth_context.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace torpor::service {
namespace {

constexpr char kBearer[] = "Bearer ";
constexpr char kHashPrefix[] = "sha256:";
constexpr size_t kHashText = 7 + 64;

absl::Status Twice(const char* what, const std::string& value) {
  return absl::InvalidArgumentError(
      absl::StrFormat("tenants: %s '%s' is given twice", what, value));
}

}  // namespace

std::string TokenHash(const std::string& token) {
  std::array<uint8_t, crypto_hash_sha256_BYTES> hash;
  crypto_hash_sha256(hash.data(),
                     reinterpret_cast<const uint8_t*>(token.data()),
                     token.size());
  return kHashPrefix +
         absl::BytesToHexString(absl::string_view(
             reinterpret_cast<const char*>(hash.data()), hash.size()));
}

absl::StatusOr<Tenants> Tenants::Make(const std::vector<TenantConfig>& configs,
                                      bool require_credential) {
  Tenants tenants;
  tenants.require_credential_ = require_credential;
  if (configs.empty()) tenants.operators_.insert(0);
  std::set<uint32_t> numbers;
  std::set<std::string> names;
  for (const TenantConfig& config : configs) {
    // Number 0 and the name go together: calls without a credential are its.
    if ((config.name == "default") != (config.number == 0)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tenant '%s': number %d, but number 0 is that of 'default'",
          config.name, config.number));
    }
    if (!names.insert(config.name).second) return Twice("name", config.name);
    if (!numbers.insert(config.number).second) {
      return Twice("number", std::to_string(config.number));
    }
    if (config.is_operator) tenants.operators_.insert(config.number);
    for (const std::string& given : config.token_hashes) {
      const std::string hash = absl::AsciiStrToLower(given);
      if (hash.size() != kHashText || !hash.starts_with(kHashPrefix) ||
          !std::all_of(hash.begin() + sizeof(kHashPrefix) - 1, hash.end(),
                       absl::ascii_isxdigit)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "tenant '%s': token hash '%s', wanted sha256: and 64 hex digits",
            config.name, given));
      }
      if (!tenants.by_token_hash_.emplace(hash, config.number).second) {
        return Twice("token hash", hash);
      }
    }
    for (const std::string& name : config.certificate_names) {
      if (!tenants.by_certificate_.emplace(name, config.number).second) {
        return Twice("certificate", name);
      }
    }
  }
  return tenants;
}

absl::StatusOr<uint32_t> Tenants::TenantOf(
    const grpc::ServerContextBase& context) const {
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find("authorization");
  if (header != metadata.end()) {
    const std::string value(header->second.data(), header->second.size());
    if (value.starts_with(kBearer)) {
      const auto it =
          by_token_hash_.find(TokenHash(value.substr(sizeof(kBearer) - 1)));
      if (it != by_token_hash_.end()) return it->second;
    }
    return absl::UnauthenticatedError(
        "authorization: not a bearer token of any tenant");
  }
  if (!by_certificate_.empty()) {
    const auto auth = context.auth_context();
    if (auth != nullptr) {
      for (const auto& name : auth->FindPropertyValues("x509_common_name")) {
        const auto it =
            by_certificate_.find(std::string(name.data(), name.size()));
        if (it != by_certificate_.end()) return it->second;
      }
    }
  }
  if (require_credential_) {
    return absl::UnauthenticatedError(
        "authorization: this daemon requires a bearer token or a client "
        "certificate");
  }
  return uint32_t{0};
}

}  // namespace torpor::service
