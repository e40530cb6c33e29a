// SPDX-License-Identifier: Apache-2.0

#include "store/budget.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace torpor::store {

absl::Status Budget::Reserve(uint32_t tenant, uint64_t bytes) {
  MutexLock lock(&mu_);
  Use& own = tenants_[tenant];
  const auto refuse = [&](const char* whose, const Use& use, uint64_t limit) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s budget: %d bytes live, %d promised, %d asked, limit %d", whose,
        use.live, use.reserved, bytes, limit));
  };
  if (all_.live + all_.reserved + bytes > options_.max_bytes) {
    return refuse("store", all_, options_.max_bytes);
  }
  if (options_.tenant_max_bytes != 0 &&
      own.live + own.reserved + bytes > options_.tenant_max_bytes) {
    return refuse("tenant", own, options_.tenant_max_bytes);
  }
  all_.reserved += bytes;
  own.reserved += bytes;
  return absl::OkStatus();
}

void Budget::Unreserve(uint32_t tenant, uint64_t bytes) {
  MutexLock lock(&mu_);
  all_.reserved -= bytes;
  tenants_[tenant].reserved -= bytes;
}

void Budget::AddLive(uint32_t tenant, uint64_t bytes, uint64_t promised) {
  MutexLock lock(&mu_);
  for (Use* use : {&all_, &tenants_[tenant]}) {
    use->live += bytes;
    use->reserved -= promised;
  }
}

void Budget::DropLive(uint32_t tenant, uint64_t bytes) {
  MutexLock lock(&mu_);
  for (Use* use : {&all_, &tenants_[tenant]}) use->live -= bytes;
}

Budget::Shortage Budget::ShortageFor(uint32_t tenant, uint64_t bytes) const {
  const auto over = [&](const Use& use, uint64_t limit) {
    const uint64_t wanted = use.live + use.reserved + bytes;
    return wanted > limit ? wanted - limit : 0;
  };
  MutexLock lock(&mu_);
  Shortage shortage{.store = over(all_, options_.max_bytes)};
  const auto own = tenants_.find(tenant);
  if (options_.tenant_max_bytes != 0) {
    shortage.tenant = over(own == tenants_.end() ? Use{} : own->second,
                           options_.tenant_max_bytes);
  }
  return shortage;
}

uint64_t Budget::live_bytes() const {
  MutexLock lock(&mu_);
  return all_.live;
}

uint64_t Budget::reserved_bytes() const {
  MutexLock lock(&mu_);
  return all_.reserved;
}

}  // namespace torpor::store
