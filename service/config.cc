// SPDX-License-Identifier: Apache-2.0

#include "service/config.h"

#include <toml++/toml.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

// Takes a value; what was wanted when it is none of its kind, else nothing.
using Setter = std::function<std::string(const toml::node&)>;

// A hundred years: times are added to clocks that count nanoseconds.
constexpr std::chrono::seconds kMaxTime{3'155'760'000};

template <typename T>
Setter Exactly(T* out, const char* wanted) {
  return [=](const toml::node& node) -> std::string {
    const auto value = node.value_exact<T>();
    if (!value) return wanted;
    *out = *value;
    return "";
  };
}

Setter Text(std::string* out) { return Exactly(out, "a string"); }

Setter Flag(bool* out) { return Exactly(out, "true or false"); }

Setter Whole(int64_t max, std::function<void(int64_t)> set) {
  return [max, set = std::move(set)](const toml::node& node) -> std::string {
    const auto value = node.value_exact<int64_t>();
    if (!value || *value < 0 || *value > max) {
      return absl::StrFormat("a whole number from 0 to %d", max);
    }
    set(*value);
    return "";
  };
}

template <typename T>
Setter Number(T* out) {
  constexpr auto kMax = std::numeric_limits<T>::max();
  return Whole(
      std::in_range<int64_t>(kMax) ? static_cast<int64_t>(kMax) : INT64_MAX,
      [out](int64_t value) { *out = static_cast<T>(value); });
}

template <typename Duration>
Setter Time(Duration* out) {
  return Whole(std::chrono::duration_cast<Duration>(kMaxTime).count(),
               [out](int64_t value) { *out = Duration(value); });
}

Setter Texts(std::vector<std::string>* out) {
  return [out](const toml::node& node) -> std::string {
    constexpr const char* kWanted = "a list of strings";
    const toml::array* array = node.as_array();
    if (array == nullptr) return kWanted;
    out->clear();
    for (const toml::node& item : *array) {
      const auto value = item.value_exact<std::string>();
      if (!value) return kWanted;
      out->push_back(*value);
    }
    return "";
  };
}

std::string Shown(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& value) { text << value; });
  return text.str();
}

absl::Status Apply(const std::string& path, const std::string& prefix,
                   const toml::table& table,
                   const std::map<std::string, Setter>& setters) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    const auto setter = setters.find(std::string(key.str()));
    if (setter == setters.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s:%d: unknown key '%s'", path, key.source().begin.line, name));
    }
    if (const std::string wanted = setter->second(node); !wanted.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s:%d: key '%s': got %s, wanted %s", path,
                          node.source().begin.line, name, Shown(node), wanted));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadConfig(const std::string& path, DaemonConfig* config) {
  toml::table table;
  std::ifstream in(path);
  if (!in) {
    return absl::NotFoundError(
        absl::StrFormat("config file %s: %s", path, std::strerror(errno)));
  }
  if (std::filesystem::is_directory(path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config file %s: is a directory", path));
  }
  try {
    table = toml::parse(in, path);
  } catch (const toml::parse_error& e) {
    std::ostringstream text;
    text << path << ":" << e.source().begin.line << ": " << e.description();
    return absl::InvalidArgumentError(text.str());
  }
  ServerOptions& s = config->server;
  store::LmdbStoreOptions& st = s.store;
  BackendOptions& b = s.backend;
  // Errors of nested tables are carried out of their setters.
  absl::Status nested;
  const auto section = [&](const std::string& name,
                           std::map<std::string, Setter> setters) -> Setter {
    return [&nested, &path, name, setters = std::move(setters)](
               const toml::node& node) -> std::string {
      const toml::table* inner = node.as_table();
      if (inner == nullptr) return "a table";
      if (absl::Status e = Apply(path, name + ".", *inner, setters); !e.ok()) {
        nested = e;
      }
      return "";
    };
  };
  const Setter tenants = [&](const toml::node& node) -> std::string {
    constexpr const char* kWanted = "a list of tables";
    const toml::array* array = node.as_array();
    if (array == nullptr) return kWanted;
    for (const toml::node& item : *array) {
      const toml::table* inner = item.as_table();
      if (inner == nullptr) return kWanted;
      TenantConfig tenant;
      if (absl::Status e =
              Apply(path, "tenant.", *inner,
                    {{"name", Text(&tenant.name)},
                     {"number", Number(&tenant.number)},
                     {"token_hashes", Texts(&tenant.token_hashes)},
                     {"certificate_names", Texts(&tenant.certificate_names)},
                     {"operator", Flag(&tenant.is_operator)}});
          !e.ok()) {
        nested = e;
      }
      s.tenants.push_back(std::move(tenant));
    }
    return "";
  };
  TORPOR_RETURN_IF_ERROR(Apply(
      path, "", table,
      {{"data_dir", Text(&st.data_dir)},
       {"listen", Texts(&s.listen)},
       {"socket_group", Text(&config->socket_group)},
       {"metrics_listen", Text(&s.metrics_listen)},
       {"insecure_tcp", Flag(&s.insecure_tcp)},
       {"reflection", Flag(&s.reflection)},
       {"require_credential", Flag(&s.require_credential)},
       {"log_level", Text(&config->log_level)},
       {"drain_limit_ms", Time(&s.drain_limit)},
       {"maintain_every_ms", Time(&s.maintain_every)},
       {"tenant", tenants},
       {"tls", section("tls", {{"certificate", Text(&s.tls_certificate)},
                               {"key", Text(&s.tls_key)},
                               {"client_ca", Text(&s.tls_client_ca)}})},
       {"store",
        section("store",
                {{"max_bytes", Number(&st.max_bytes)},
                 {"tenant_max_bytes", Number(&st.tenant_max_bytes)},
                 {"disk_reserve_bytes", Number(&st.disk_reserve_bytes)},
                 {"map_bytes", Number(&st.map_bytes)},
                 {"buffer_bytes", Number(&st.buffer_bytes)},
                 {"ahead_bytes", Number(&st.ahead_bytes)},
                 {"put_timeout_ms", Time(&st.put_timeout)},
                 {"pinned_max_bytes", Number(&st.pinned_max_bytes)}})},
       {"replay",
        section("replay",
                {{"isa", Text(&config->isa)},
                 {"threads", Number(&config->threads)},
                 {"device", Text(&config->device.name)},
                 {"device_memory_bytes", Number(&config->device.memory_bytes)},
                 {"device_gemm", Text(&config->device.gemm)},
                 {"memory_bytes", Number(&b.replay.memory_bytes)},
                 {"max_batch", Number(&b.replay.max_batch)}})},
       {"prefetch",
        section("prefetch",
                {{"held_bytes", Number(&b.prefetch.held_bytes)},
                 {"sessions", Number(&b.prefetch.sessions)},
                 {"hold_limit_seconds", Time(&b.prefetch.hold_limit)}})},
       {"plane",
        section("plane", {{"shared_memory", Flag(&b.segments.enabled)},
                          {"segment_bytes", Number(&b.segments.segment_bytes)},
                          {"max_bytes", Number(&b.segments.max_bytes)},
                          {"device_bytes", Number(&b.segments.device_bytes)},
                          {"take_limit_ms", Time(&b.segments.take_limit)},
                          {"keep_limit_ms", Time(&b.segments.keep_limit)},
                          {"stall_limit_ms", Time(&b.segments.stall_limit)}})},
       {"limits",
        section("limits", {{"calls", Number(&b.max_calls)},
                           {"tickets", Number(&b.max_tickets)},
                           {"leases", Number(&b.max_leases)},
                           {"idle_seconds", Time(&b.idle_limit)}})}}));
  return nested;
}

}  // namespace torpor::service
