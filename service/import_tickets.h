// SPDX-License-Identifier: Apache-2.0
//
// Imports under way, by the operation ids of their callers: whole blocks of a
// transfer that broke stay until the next call of the operation, or until
// nobody asked for a while. Thread-safe.

#ifndef TORPOR_SERVICE_IMPORT_TICKETS_H_
#define TORPOR_SERVICE_IMPORT_TICKETS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "store/session_import.h"

namespace torpor::service {

struct ImportTicket {
  // Held by a call while it feeds bytes.
  Mutex mu;
  std::unique_ptr<store::SessionImport> import ABSL_GUARDED_BY(mu);
  // Number of the call that has it; an earlier one gives way.
  std::atomic<uint64_t> turn{0};
};

// A call's claim on a ticket.
struct ImportTurn {
  std::shared_ptr<ImportTicket> ticket;
  uint64_t turn = 0;

  [[nodiscard]] bool current() const { return ticket->turn.load() == turn; }
};

class ImportTickets {
 public:
  ImportTickets(size_t limit, std::chrono::seconds idle_limit)
      : limit_(limit), idle_limit_(idle_limit) {}

  // The operation's ticket, or a new one without an import. From then on
  // earlier calls of the operation are not current. kResourceExhausted when too
  // many are open.
  absl::StatusOr<ImportTurn> Take(uint32_t tenant,
                                  const std::string& operation_id);
  // Ends the operation's ticket, if it is this one.
  void Drop(uint32_t tenant, const std::string& operation_id,
            const ImportTicket* ticket);
  // Ends the operation's ticket and the call that has it.
  void Abandon(uint32_t tenant, const std::string& operation_id);
  // Ends those that no call has and none had for the idle limit.
  void DropIdle();
  void DropAll();

 private:
  using Key = std::pair<uint32_t, std::string>;
  using SteadyClock = std::chrono::steady_clock;
  struct Entry {
    std::shared_ptr<ImportTicket> ticket;
    SteadyClock::time_point last_use;
  };

  const size_t limit_;
  const std::chrono::seconds idle_limit_;
  Mutex mu_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_IMPORT_TICKETS_H_
