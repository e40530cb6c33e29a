// SPDX-License-Identifier: Apache-2.0
//
// Objects that clients hold by name between calls (tickets, leases):
// unguessable ids, bound to a tenant, dropped when nobody used them for a
// while. Thread-safe; an object in use outlives its removal.

#ifndef TORPOR_SERVICE_HANDLES_H_
#define TORPOR_SERVICE_HANDLES_H_

#include <sodium.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"

namespace torpor::service {

template <typename T>
class Handles {
 public:
  using SteadyClock = std::chrono::steady_clock;

  // `what` names the kind in errors, for example "ticket".
  Handles(std::string what, size_t limit, std::chrono::seconds idle_limit)
      : what_(std::move(what)), limit_(limit), idle_limit_(idle_limit) {}

  // kResourceExhausted when too many are open.
  absl::StatusOr<std::string> Add(uint32_t tenant, std::shared_ptr<T> object) {
    std::array<char, 16> raw;
    randombytes_buf(raw.data(), raw.size());
    std::string id =
        absl::BytesToHexString(absl::string_view(raw.data(), raw.size()));
    MutexLock lock(&mu_);
    if (entries_.size() >= limit_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%d %ss are open, which is the limit", entries_.size(), what_));
    }
    entries_[id] = {tenant, std::move(object), SteadyClock::now()};
    return id;
  }

  // kNotFound, also for another tenant's.
  absl::StatusOr<std::shared_ptr<T>> Get(uint32_t tenant,
                                         const std::string& id) {
    MutexLock lock(&mu_);
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.tenant != tenant) {
      return absl::NotFoundError(
          absl::StrFormat("%s '%s': unknown, ended, or idle for more than %d s",
                          what_, id, idle_limit_.count()));
    }
    it->second.last_use = SteadyClock::now();
    return it->second.object;
  }

  // Takes it out; null when it is not there.
  std::shared_ptr<T> Remove(uint32_t tenant, const std::string& id) {
    MutexLock lock(&mu_);
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.tenant != tenant) return nullptr;
    std::shared_ptr<T> object = std::move(it->second.object);
    entries_.erase(it);
    return object;
  }

  // Drops what was idle too long; returns those objects.
  std::vector<std::shared_ptr<T>> TakeIdle() {
    const auto horizon = SteadyClock::now() - idle_limit_;
    std::vector<std::shared_ptr<T>> idle;
    MutexLock lock(&mu_);
    for (auto it = entries_.begin(); it != entries_.end();) {
      // Held by a call that runs now: not idle.
      if (it->second.last_use < horizon && it->second.object.use_count() == 1) {
        idle.push_back(std::move(it->second.object));
        it = entries_.erase(it);
      } else {
        ++it;
      }
    }
    return idle;
  }

  std::vector<std::shared_ptr<T>> TakeAll() {
    std::vector<std::shared_ptr<T>> all;
    MutexLock lock(&mu_);
    for (auto& [id, entry] : entries_) all.push_back(std::move(entry.object));
    entries_.clear();
    return all;
  }

  // Those of a tenant for which `is` holds.
  template <typename Predicate>
  [[nodiscard]] size_t CountIf(uint32_t tenant, const Predicate& is) const {
    MutexLock lock(&mu_);
    size_t n = 0;
    for (const auto& [id, entry] : entries_) {
      if (entry.tenant == tenant && is(*entry.object)) ++n;
    }
    return n;
  }

  [[nodiscard]] size_t size() const {
    MutexLock lock(&mu_);
    return entries_.size();
  }

 private:
  struct Entry {
    uint32_t tenant = 0;
    std::shared_ptr<T> object;
    SteadyClock::time_point last_use;
  };

  const std::string what_;
  const size_t limit_;
  const std::chrono::seconds idle_limit_;
  mutable Mutex mu_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_HANDLES_H_
