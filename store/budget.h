// SPDX-License-Identifier: Apache-2.0
//
// Admission by bytes: what is live, what is promised, what may be. LMDB's map
// is never grown and never the limit; this is. Thread-safe.

#ifndef TORPOR_STORE_BUDGET_H_
#define TORPOR_STORE_BUDGET_H_

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "base/mutex.h"

namespace torpor::store {

struct BudgetOptions {
  // Page bytes of all records together. REQUIRES: above 0.
  uint64_t max_bytes = 0;
  // The same for each tenant; 0 = no limit of its own.
  uint64_t tenant_max_bytes = 0;
};

class Budget {
 public:
  explicit Budget(const BudgetOptions& options) : options_(options) {}

  // Promises `bytes` to a tenant. kResourceExhausted names used, asked, limit.
  absl::Status Reserve(uint32_t tenant, uint64_t bytes);
  // A promise that is not needed any more.
  void Unreserve(uint32_t tenant, uint64_t bytes);
  // Bytes that a record now occupies; `promised` of them had been reserved.
  void AddLive(uint32_t tenant, uint64_t bytes, uint64_t promised);
  void DropLive(uint32_t tenant, uint64_t bytes);

  // Bytes that must be freed before `bytes` more fit; 0 = they fit.
  struct Shortage {
    uint64_t store = 0;
    uint64_t tenant = 0;
    [[nodiscard]] bool any() const { return store > 0 || tenant > 0; }
  };
  [[nodiscard]] Shortage ShortageFor(uint32_t tenant, uint64_t bytes) const;

  [[nodiscard]] uint64_t live_bytes() const;
  [[nodiscard]] uint64_t reserved_bytes() const;
  [[nodiscard]] uint64_t max_bytes() const { return options_.max_bytes; }

 private:
  struct Use {
    uint64_t live = 0;
    uint64_t reserved = 0;
  };

  const BudgetOptions options_;
  mutable Mutex mu_;
  Use all_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Use> tenants_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_BUDGET_H_
