// SPDX-License-Identifier: Apache-2.0

#include "store/memory_session_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "base/status.h"
#include "store/manifest.h"
#include "store/memory_lease.h"
#include "store/memory_sessions.h"
#include "store/memory_ticket.h"

namespace torpor::store {
namespace {

class MemorySessionStore final : public SessionStore {
 public:
  explicit MemorySessionStore(Clock clock) {
    core_.clock = clock ? std::move(clock) : SystemClock();
  }

  absl::StatusOr<BeginResult> Begin(SuspendSpec spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateSuspend(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    const MemorySession* found = core_.FindLocked(spec.session);
    if (found != nullptr) {
      if (const Operation* done = found->Find(spec.operation_id, spec.verb())) {
        return BeginResult{nullptr, done->receipt};
      }
    }
    MemorySession base;
    if (spec.expected_version == 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireAbsentLocked(spec.session));
    } else {
      TORPOR_ASSIGN_OR_RETURN(
          const MemorySession* session,
          core_.RequireLocked(spec.session, spec.expected_version));
      base = *session;
      if (base.info.fingerprint != spec.layout.fingerprint) {
        return absl::FailedPreconditionError("another model fingerprint");
      }
      if (spec.tokens_kept > base.info.n_tokens) {
        return absl::InvalidArgumentError("more tokens kept than there are");
      }
      TORPOR_RETURN_IF_ERROR(CheckCut(base, spec.tokens_kept));
      if (spec.kv_len < spec.tokens_kept) {
        TORPOR_RETURN_IF_ERROR(CheckCut(base, spec.kv_len));
      }
    }
    const auto layout = core_.layouts.find(spec.layout.fingerprint);
    if (layout != core_.layouts.end() &&
        (layout->second.block_size != spec.layout.block_size ||
         layout->second.slots != spec.layout.slots)) {
      return absl::FailedPreconditionError(
          "another layout under this fingerprint");
    }
    const uint64_t rows_kept =
        std::min({spec.tokens_kept, base.info.kv_len, spec.kv_len});
    for (const Floor& floor : spec.floors) {
      if (floor.resume_at < rows_kept) {
        return absl::InvalidArgumentError("floor below the rows that stay");
      }
    }
    ++core_.open_tickets;
    return BeginResult{std::make_unique<MemoryTicket>(&core_, std::move(spec),
                                                      std::move(base)),
                       std::nullopt};
  }

  absl::StatusOr<std::unique_ptr<SessionLease>> Open(
      const SessionKey& key, uint64_t version) override {
    TORPOR_RETURN_IF_ERROR(ValidateSession(key));
    MutexLock lock(&core_.mu);
    const MemorySession* session = core_.FindLocked(key);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", key.id));
    }
    if (version != 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireLocked(key, version).status());
    }
    ++core_.open_leases;
    return std::unique_ptr<SessionLease>(
        std::make_unique<MemoryLease>(&core_, *session));
  }

  absl::StatusOr<PrefixHit> Lookup(uint32_t tenant, const RecordLayout& layout,
                                   const TokenRun& tokens) override {
    MutexLock lock(&core_.mu);
    PrefixHit hit;
    const MemorySession* best = nullptr;
    for (const auto& [key, session] : core_.sessions) {
      if (key.tenant != tenant ||
          session.info.fingerprint != layout.fingerprint) {
        continue;
      }
      TokenRun stored = session.tokens;
      stored.ids.resize(session.info.kv_len);
      uint64_t len = CommonLength(stored, tokens, 0);
      for (const ExtraKeySpan& span : stored.spans) {
        if (span.bidirectional && span.begin < len && len < span.end) {
          len = span.begin;
        }
      }
      if (len > hit.hit_len) {
        hit.hit_len = len;
        best = &session;
      }
    }
    if (best == nullptr) return hit;
    MemorySession prefix = *best;
    prefix.Truncate(hit.hit_len);
    prefix.info.key = {};
    prefix.operations.clear();
    ++core_.open_leases;
    hit.lease = std::make_unique<MemoryLease>(&core_, std::move(prefix));
    return hit;
  }

  absl::StatusOr<SessionInfo> Describe(const SessionKey& key) override {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<SessionLease> lease,
                            Open(key, 0));
    return lease->info();
  }

  absl::StatusOr<ListResult> List(uint32_t tenant, std::string_view prefix,
                                  std::string_view after,
                                  size_t limit) override {
    MutexLock lock(&core_.mu);
    ListResult result;
    for (const auto& [key, session] : core_.sessions) {
      if (key.tenant != tenant || !key.id.starts_with(prefix) ||
          (!after.empty() && key.id <= after) ||
          core_.FindLocked(key) == nullptr) {
        continue;
      }
      if (result.sessions.size() == limit) {
        result.next = result.sessions.back().key.id;
        break;
      }
      result.sessions.push_back(session.info);
    }
    return result;
  }

  absl::StatusOr<SessionInfo> Fork(const ForkSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateFork(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.target.session);
    if (const MemorySession* target = core_.FindLocked(spec.target.session)) {
      if (target->Find(spec.target.operation_id, Verb::kFork) != nullptr) {
        return target->info;
      }
    }
    const MemorySession* source = core_.FindLocked(spec.source);
    if (source == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", spec.source.id));
    }
    if (spec.source_version != 0) {
      TORPOR_RETURN_IF_ERROR(
          core_.RequireLocked(spec.source, spec.source_version).status());
    }
    const uint64_t at = spec.at.value_or(source->info.n_tokens);
    TORPOR_RETURN_IF_ERROR(CheckCut(*source, at));
    MemorySession fork = *source;
    fork.Truncate(at);
    fork.operations.clear();
    fork.info.created_at_us = core_.clock();
    if (spec.target.expected_version == 0) {
      TORPOR_RETURN_IF_ERROR(core_.RequireAbsentLocked(spec.target.session));
      fork.info.version = core_.version_floor + 1;
    } else {
      TORPOR_ASSIGN_OR_RETURN(
          const MemorySession* replaced,
          core_.RequireLocked(spec.target.session,
                              spec.target.expected_version));
      fork.info.version = replaced->info.version + 1;
      fork.info.created_at_us = replaced->info.created_at_us;
      fork.operations = replaced->operations;
    }
    fork.info.key = spec.target.session;
    fork.info.updated_at_us = core_.clock();
    fork.info.expires_at_us = fork.info.pinned_until_us = 0;
    fork.Remember({spec.target.operation_id,
                   Verb::kFork,
                   {.version = fork.info.version}});
    ++core_.commits;
    return (core_.sessions[spec.target.session] = std::move(fork)).info;
  }

  absl::StatusOr<SessionInfo> Rewind(const MutateSpec& spec,
                                     uint64_t at) override {
    TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    if (const MemorySession* session = core_.FindLocked(spec.session)) {
      if (session->Find(spec.operation_id, Verb::kRewind) != nullptr) {
        return session->info;
      }
    }
    TORPOR_ASSIGN_OR_RETURN(
        MemorySession * session,
        core_.RequireLocked(spec.session, spec.expected_version));
    TORPOR_RETURN_IF_ERROR(CheckCut(*session, at));
    session->Truncate(at);
    ++session->info.version;
    session->info.updated_at_us = core_.clock();
    session->Remember(
        {spec.operation_id, Verb::kRewind, {.version = session->info.version}});
    ++core_.commits;
    return session->info;
  }

  absl::StatusOr<uint64_t> Erase(const MutateSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateMutation(spec));
    MutexLock lock(&core_.mu);
    core_.DropIfExpiredLocked(spec.session);
    const auto key = std::pair(spec.session, spec.operation_id);
    if (const auto it = core_.erased.find(key); it != core_.erased.end()) {
      return it->second;
    }
    TORPOR_RETURN_IF_ERROR(
        core_.RequireLocked(spec.session, spec.expected_version).status());
    const uint64_t version = spec.expected_version;
    core_.version_floor = LiftedFloor(core_.version_floor, version);
    core_.erased[key] = version;
    core_.sessions.erase(spec.session);
    ++core_.commits;
    return version;
  }

  absl::StatusOr<SessionInfo> Touch(const TouchSpec& spec) override {
    TORPOR_RETURN_IF_ERROR(ValidateSession(spec.session));
    MutexLock lock(&core_.mu);
    MemorySession* session = core_.FindLocked(spec.session);
    if (session == nullptr) {
      return absl::NotFoundError(
          absl::StrFormat("session '%s': unknown", spec.session.id));
    }
    const int64_t now = core_.clock();
    const auto from_now = [&](int64_t seconds) {
      return DeadlineAfter(now, seconds);
    };
    SessionInfo& info = session->info;
    TORPOR_RETURN_IF_ERROR(MergeLabels(spec.labels, &info.labels));
    if (spec.session_class.has_value())
      info.session_class = *spec.session_class;
    if (spec.ttl_seconds.has_value()) {
      info.expires_at_us = from_now(*spec.ttl_seconds);
    }
    if (spec.pin_seconds.has_value()) {
      info.pinned_until_us = from_now(*spec.pin_seconds);
    }
    return info;
  }

  absl::Status PutModel(std::string_view name,
                        std::string_view value) override {
    MutexLock lock(&core_.mu);
    core_.models[std::string(name)] = std::string(value);
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Models()
      override {
    MutexLock lock(&core_.mu);
    return std::vector<std::pair<std::string, std::string>>(
        core_.models.begin(), core_.models.end());
  }

  absl::StatusOr<bool> Maintain() override {
    MutexLock lock(&core_.mu);
    for (auto it = core_.sessions.begin(); it != core_.sessions.end();) {
      const SessionInfo& info = it->second.info;
      const bool expired =
          info.expires_at_us != 0 && info.expires_at_us <= core_.clock();
      if (expired) {
        core_.version_floor = LiftedFloor(core_.version_floor, info.version);
      }
      it = expired ? core_.sessions.erase(it) : std::next(it);
    }
    return false;
  }

  StoreStats Stats() override {
    MutexLock lock(&core_.mu);
    StoreStats stats;
    stats.sessions = core_.sessions.size();
    stats.open_tickets = core_.open_tickets;
    stats.open_leases = core_.open_leases;
    stats.commits = core_.commits;
    for (const auto& [key, session] : core_.sessions) {
      stats.live_bytes += session.info.stored_bytes;
    }
    return stats;
  }

  absl::StatusOr<VerifyReport> Verify(bool,
                                      const Progress<VerifyReport>&) override {
    MutexLock lock(&core_.mu);
    VerifyReport report;
    report.sessions_checked = core_.sessions.size();
    return report;
  }

  absl::StatusOr<BackupReport> Backup(const std::string&,
                                      const Progress<BackupReport>&) override {
    return absl::UnimplementedError("backup: this store is in memory");
  }

 private:
  static absl::Status CheckCut(const MemorySession& session, uint64_t at) {
    if (at > session.info.n_tokens) {
      return absl::OutOfRangeError(absl::StrFormat(
          "cut at %d: the session has %d tokens", at, session.info.n_tokens));
    }
    return ValidateCut(session.tokens.spans, at);
  }

  MemoryCore core_;
};

}  // namespace

std::unique_ptr<SessionStore> MakeMemorySessionStore(Clock clock) {
  return std::make_unique<MemorySessionStore>(std::move(clock));
}

}  // namespace torpor::store
