// SPDX-License-Identifier: Apache-2.0

#include "service/backend.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_format.h"
#include "replay/planner.h"
#include "service/log.h"

namespace torpor::service {

Backend::Backend(std::unique_ptr<store::SessionStore> store, Tenants tenants,
                 const BackendOptions& options)
    : options_(options),
      store_(std::move(store)),
      tenants_(std::move(tenants)),
      models_(store_.get(), options.models),
      replay_(options.replay),
      segments_(options.segments),
      tickets_("ticket", options.max_tickets, options.idle_limit),
      leases_("lease", options.max_leases, options.idle_limit),
      imports_(options.max_tickets, options.idle_limit),
      prefetcher_(options.prefetch, &metrics_),
      // A resume rebuilds its window on a thread of its own while rows travel.
      workers_(2 * options.max_calls + 8) {}

Backend::~Backend() {
  // Nobody is told of lost segments any more.
  segments_.Stop();
  // Leases, tickets and what was prefetched hold parts of the store.
  for (const auto& ticket : tickets_.TakeAll()) ticket->stored->Cancel();
  leases_.TakeAll();
  imports_.DropAll();
  prefetcher_.Stop();
}

absl::Status Backend::Serve(
    std::string_view method, Call& call,
    const std::function<absl::Status(uint32_t tenant)>& body) {
  const auto begin = std::chrono::steady_clock::now();
  absl::Status status;
  if (draining_.load()) {
    status = absl::UnavailableError("the daemon is draining; try another");
  } else if (running_.fetch_add(1) >= options_.max_calls) {
    status = absl::ResourceExhaustedError(absl::StrFormat(
        "%d calls are running, which is the limit", options_.max_calls));
    running_.fetch_sub(1);
  } else {
    const absl::StatusOr<uint32_t> tenant = tenants_.TenantOf(*call.context());
    status = tenant.ok() ? body(*tenant) : tenant.status();
    // What a cancelled call ran into on its way out says little.
    if (call.cancelled() && !status.ok()) {
      status = absl::CancelledError(status.message());
    }
    // To a client a range that is not there is a bad request.
    if (absl::IsOutOfRange(status)) {
      status = absl::InvalidArgumentError(status.message());
    }
    running_.fetch_sub(1);
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  metrics_.CountCall(method, status, seconds.count());
  LogCall(method, status, seconds.count());
  return status;
}

absl::Status Backend::ServeOperator(std::string_view method, Call& call,
                                    const std::function<absl::Status()>& body) {
  return Serve(method, call, [&](uint32_t tenant) -> absl::Status {
    if (tenants_.IsOperator(tenant)) return body();
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s: got tenant %d, wanted an operator: a [[tenant]] of the daemon's "
        "configuration with operator = true",
        std::string(method), tenant));
  });
}

void Backend::Account(const v1::SuspendReceipt& r) {
  metrics_.CountSuspend(r);
  LogEvent(spdlog::level::info, "suspend",
           {{"session", r.session()},
            {"version", std::to_string(r.version())},
            {"tokens", std::to_string(r.n_tokens())},
            {"tokens_kept", std::to_string(r.tokens_kept())},
            {"row_bytes", std::to_string(r.row_bytes_received())},
            {"shared_bytes", std::to_string(r.shared_memory_bytes())},
            {"stored_bytes", std::to_string(r.stored_bytes())},
            {"commit_us", std::to_string(r.times().commit_us())}});
}

void Backend::Account(const v1::ResumeReceipt& r) {
  metrics_.CountResume(r);
  LogEvent(spdlog::level::info, "resume",
           {{"session", r.session()},
            {"version", std::to_string(r.version())},
            {"mode", std::string(replay::ReplayModeName(
                         static_cast<replay::ReplayMode>(r.mode_used())))},
            {"exact", r.exact() ? "true" : "false"},
            {"verdict", v1::WitnessVerdict_Name(r.verdict())},
            {"loaded", std::to_string(r.loaded_tokens())},
            {"replayed", std::to_string(r.replayed_tokens())},
            {"recomputed", std::to_string(r.recomputed_tokens())},
            {"prefetched", r.prefetched() ? "true" : "false"},
            {"sent_bytes", std::to_string(r.bytes_sent())},
            {"shared_bytes", std::to_string(r.shared_memory_bytes())},
            {"replay_us", std::to_string(r.times().replay_us())}});
}

void Backend::Maintain() {
  for (int round = 0; round < 64; ++round) {
    const absl::StatusOr<bool> more = store_->Maintain();
    if (!more.ok()) {
      LogEvent(spdlog::level::warn, "maintenance",
               {{"error", std::string(more.status().message())}});
      break;
    }
    if (!*more) break;
  }
  for (const auto& ticket : tickets_.TakeIdle()) {
    ticket->stored->Cancel();
    LogEvent(spdlog::level::info, "ticket_expired",
             {{"session", ticket->session}});
  }
  leases_.TakeIdle();
  imports_.DropIdle();
  prefetcher_.DropExpired();
  metrics_.SetStore(store_->Stats());
  metrics_.SetReplayQueue(replay_.waiting());
  metrics_.SetSegments(segments_.stats());
  const Prefetcher::Stats prefetched = prefetcher_.stats();
  metrics_.SetPrefetched(prefetched.sessions, prefetched.held_bytes);
}

}  // namespace torpor::service
