// SPDX-License-Identifier: Apache-2.0

#include "service/import_tickets.h"

#include <vector>

#include "absl/strings/str_format.h"

namespace torpor::service {

absl::StatusOr<ImportTurn> ImportTickets::Take(
    uint32_t tenant, const std::string& operation_id) {
  MutexLock lock(&mu_);
  const Key key{tenant, operation_id};
  auto it = entries_.find(key);
  if (it == entries_.end()) {
    if (entries_.size() >= limit_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "import: %d transfers are open, which is the limit", limit_));
    }
    it = entries_.emplace(key, Entry{std::make_shared<ImportTicket>(), {}})
             .first;
  }
  it->second.last_use = SteadyClock::now();
  const std::shared_ptr<ImportTicket>& ticket = it->second.ticket;
  return ImportTurn{ticket, ticket->turn.fetch_add(1) + 1};
}

void ImportTickets::Drop(uint32_t tenant, const std::string& operation_id,
                         const ImportTicket* ticket) {
  // Its destructor waits for the writer: not under the lock.
  std::shared_ptr<ImportTicket> dropped;
  MutexLock lock(&mu_);
  const auto it = entries_.find({tenant, operation_id});
  if (it == entries_.end() || it->second.ticket.get() != ticket) return;
  dropped = std::move(it->second.ticket);
  entries_.erase(it);
}

void ImportTickets::Abandon(uint32_t tenant, const std::string& operation_id) {
  std::shared_ptr<ImportTicket> dropped;
  MutexLock lock(&mu_);
  const auto it = entries_.find({tenant, operation_id});
  if (it == entries_.end()) return;
  dropped = std::move(it->second.ticket);
  dropped->turn.fetch_add(1);
  entries_.erase(it);
}

void ImportTickets::DropIdle() {
  std::vector<std::shared_ptr<ImportTicket>> dropped;
  MutexLock lock(&mu_);
  const SteadyClock::time_point horizon = SteadyClock::now() - idle_limit_;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    if (entry.ticket.use_count() > 1) {
      entry.last_use = SteadyClock::now();
      ++it;
    } else if (entry.last_use < horizon) {
      dropped.push_back(std::move(entry.ticket));
      it = entries_.erase(it);
    } else {
      ++it;
    }
  }
}

void ImportTickets::DropAll() {
  std::map<Key, Entry> dropped;
  MutexLock lock(&mu_);
  dropped.swap(entries_);
}

}  // namespace torpor::service
