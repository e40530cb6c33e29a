// SPDX-License-Identifier: Apache-2.0

#include "store/maintenance.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"
#include "store/parallel_scan.h"
#include "store/record.h"

namespace torpor::store {
namespace {

constexpr uint32_t kEnvFormatVersion = 1;
// Records freed per transaction: a few MiB of pages, a few milliseconds.
constexpr size_t kReapPerTxn = 16;
constexpr size_t kExpirePerStep = 64;
// Tombstones looked at per step: a day's deletes may be millions.
constexpr size_t kTombstonesPerStep = 1024;
// Cache sessions looked at first when room is short.
constexpr size_t kEvictLook = 64;
constexpr int64_t kTombstoneLifeUs = int64_t{24} * 3600 * 1'000'000;

absl::Status CheckFormat(StoreCore* core) {
  return core->writer.Run(64, [](WriteTxn& txn) -> absl::Status {
    TORPOR_ASSIGN_OR_RETURN(const auto value,
                            txn.Get(Table::kMeta, kMetaFormat));
    if (!value.has_value()) {
      ByteWriter w;
      w.Int(kEnvFormatVersion);
      return txn.Put(Table::kMeta, kMetaFormat, AsBytes(w.str()));
    }
    ByteReader r(*value);
    const auto version = r.Int<uint32_t>();
    if (!r.Done() || version != kEnvFormatVersion) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "data directory: format version %d, this build reads %d", version,
          kEnvFormatVersion));
    }
    return absl::OkStatus();
  });
}

// Nothing staged survives a start: its ticket died with its process.
absl::Status TrashAllStaged(StoreCore* core) {
  constexpr size_t kPerTxn = 4096;
  for (bool more = true; more;) {
    TORPOR_RETURN_IF_ERROR(core->writer.Run(
        64 * kPerTxn,
        [&](WriteTxn& txn) -> absl::Status {
          std::vector<std::pair<RecordNumber, RecordExtent>> staged;
          TORPOR_RETURN_IF_ERROR(
              txn.Scan(Table::kStaging, "", [&](const Entry& entry) {
                const auto extent = DecodeExtent(entry.value);
                staged.emplace_back(LoadBigEndian<uint64_t>(entry.key),
                                    extent.ok() ? *extent : RecordExtent{});
                return staged.size() < kPerTxn;
              }));
          more = staged.size() == kPerTxn;
          for (const auto& [number, extent] : staged) {
            TORPOR_RETURN_IF_ERROR(TrashStaged(txn, number, extent));
          }
          return absl::OkStatus();
        },
        Room::kMakes));
  }
  return absl::OkStatus();
}

// Trash that never had an entry still occupies pages.
absl::Status CountTrash(StoreCore* core) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core->env->BeginRead());
  return txn->Scan(Table::kTrash, "", [&](const Entry& entry) {
    const auto extent = DecodeExtent(entry.value);
    const auto known = txn->Get(Table::kRecords, entry.key);
    if (extent.ok() && known.ok() && !known->has_value()) {
      core->budget.AddLive(extent->tenant,
                           RecordPageBytes(extent->record_bytes), 0);
    }
    return true;
  });
}

absl::Status CountLive(StoreCore* core) {
  TORPOR_RETURN_IF_ERROR(
      ParallelScan(core->env.get(), Table::kRecords, [&](const Entry& entry) {
        const absl::StatusOr<RecordEntry> record =
            DecodeRecordEntry(entry.value);
        if (!record.ok()) return;
        core->budget.AddLive(record->tenant,
                             RecordPageBytes(record->record_bytes), 0);
        if (record->quarantined) core->quarantined.fetch_add(1);
      }));
  TORPOR_RETURN_IF_ERROR(CountTrash(core));
  return ParallelScan(core->env.get(), Table::kSessions,
                      [&](const Entry& entry) {
                        const absl::StatusOr<SessionManifest> manifest =
                            DecodeManifest(entry.value);
                        if (!manifest.ok()) return;
                        const SessionKey session{
                            LoadBigEndian<uint32_t>(entry.key),
                            std::string(entry.key.substr(sizeof(uint32_t)))};
                        core->Track(session, *manifest);
                        if (manifest->session_class == SessionClass::kCache) {
                          core->last_use.Set(session, manifest->updated_at_us);
                        }
                      });
}

// Goes on where the last step stopped.
absl::Status DropOldTombstones(StoreCore* core) {
  const int64_t horizon = core->Now() - kTombstoneLifeUs;
  std::vector<std::string> old;
  MutexLock lock(&core->sweep_mu);
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    size_t visited = 0;
    std::string next;
    TORPOR_RETURN_IF_ERROR(txn->Scan(
        Table::kTombstones, core->sweep_from, [&](const Entry& entry) {
          if (visited == kTombstonesPerStep || old.size() == kExpirePerStep) {
            next = entry.key;
            return false;
          }
          ++visited;
          const absl::StatusOr<Tombstone> tombstone =
              DecodeTombstone(entry.value);
          if (!tombstone.ok() || tombstone->deleted_at_us < horizon) {
            old.emplace_back(entry.key);
          }
          return true;
        }));
    core->sweep_from = std::move(next);
  }
  if (old.empty()) return absl::OkStatus();
  return core->writer.Run(
      64 * old.size(),
      [&](WriteTxn& txn) -> absl::Status {
        for (const std::string& key : old) {
          TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kTombstones, key).status());
        }
        return absl::OkStatus();
      },
      Room::kMakes);
}

// Deletes a manifest; sessions created from now on begin above `version`,
// as far as one deletion lifts them.
absl::Status DeleteKey(WriteTxn& txn, const SessionKey& session,
                       uint64_t version) {
  TORPOR_ASSIGN_OR_RETURN(const uint64_t next, FirstVersion(txn));
  ByteWriter floor;
  floor.Int(LiftedFloor(next - 1, version));
  TORPOR_RETURN_IF_ERROR(
      txn.Put(Table::kMeta, kMetaVersionFloor, AsBytes(floor.str())));
  return txn.Delete(Table::kSessions, SessionTableKey(session)).status();
}

// Damage leaves counts behind that are too high; see Recount.
absl::Status RecountIfDue(StoreCore* core) {
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const bool due, RecountIsDue(*txn));
    if (!due) return absl::OkStatus();
  }
  return core->writer.Run(
      4096, [](WriteTxn& txn) -> absl::Status { return Recount(txn).status(); },
      Room::kMakes);
}

}  // namespace

absl::Status StartUp(StoreCore* core) {
  TORPOR_RETURN_IF_ERROR(CheckFormat(core));
  TORPOR_RETURN_IF_ERROR(TrashAllStaged(core));
  return CountLive(core);
}

absl::StatusOr<bool> RunMaintenance(StoreCore* core) {
  core->env->CheckReaders();
  core->TrashOrphans();
  const std::vector<SessionKey> expired =
      core->expiry.Earliest(core->Now(), kExpirePerStep);
  // What fails for one session must not stop the work for the others.
  absl::Status failed;
  for (const SessionKey& session : expired) {
    failed.Update(
        core->Evict(session,
                    [&](const SessionManifest& m) { return core->Expired(m); })
            .status());
  }
  failed.Update(DropOldTombstones(core));
  failed.Update(RecountIfDue(core));
  TORPOR_ASSIGN_OR_RETURN(const size_t reaped, core->Reap(kReapPerTxn));
  TORPOR_RETURN_IF_ERROR(failed);
  // A freed record may have been the last name of its parent.
  return reaped > 0 || expired.size() == kExpirePerStep;
}

absl::Status DeleteSession(WriteTxn& txn, const SessionKey& session,
                           const SessionManifest& manifest) {
  TORPOR_RETURN_IF_ERROR(DeleteKey(txn, session, manifest.version));
  return DropManifestNames(txn, manifest);
}

absl::Status DeleteDamagedSession(WriteTxn& txn, const SessionKey& session,
                                  uint64_t version) {
  TORPOR_RETURN_IF_ERROR(DeleteKey(txn, session, version));
  return AskForRecount(txn);
}

absl::Status ApplyTouch(const StoreCore& core, const TouchSpec& spec,
                        WriteTxn& txn, SessionManifest* manifest) {
  const int64_t now = core.Now();
  const auto from_now = [&](int64_t seconds) {
    return DeadlineAfter(now, seconds);
  };
  if (spec.session_class.has_value()) {
    manifest->session_class = *spec.session_class;
  }
  if (spec.ttl_seconds.has_value()) {
    manifest->expires_at_us = from_now(*spec.ttl_seconds);
  }
  TORPOR_RETURN_IF_ERROR(MergeLabels(spec.labels, &manifest->labels));
  if (spec.pin_seconds.has_value()) {
    if (*spec.pin_seconds > 0) {
      const uint64_t pinned =
          core.PinnedBytes(spec.session) + manifest->page_bytes;
      const uint64_t limit = core.options.pinned_max_bytes != 0
                                 ? core.options.pinned_max_bytes
                                 : core.budget.max_bytes() / 2;
      if (pinned > limit) {
        return absl::ResourceExhaustedError(absl::StrFormat(
            "pin session '%s': %d bytes would be pinned, limit %d",
            spec.session.id, pinned, limit));
      }
    }
    manifest->pinned_until_us = from_now(*spec.pin_seconds);
  }
  return PutSession(txn, spec.session, *manifest);
}

// ---- StoreCore ------------------------------------------------------------

absl::StatusOr<size_t> StoreCore::Reap(size_t limit) {
  for (;; limit /= 2) {
    absl::StatusOr<size_t> reaped = ReapOnce(limit);
    // On a full disk a smaller step may find the pages that it needs.
    if (reaped.status().code() != absl::StatusCode::kResourceExhausted ||
        limit == 1) {
      return reaped;
    }
  }
}

absl::StatusOr<std::vector<Reaped>> StoreCore::ReapIn(WriteTxn& txn,
                                                      size_t limit) {
  std::vector<RecordNumber> numbers;
  {
    // Of the last commit, not of `txn`: see store/pins.h.
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> committed,
                            env->BeginRead());
    TORPOR_RETURN_IF_ERROR(
        committed->Scan(Table::kTrash, "", [&](const Entry& entry) {
          const auto number = LoadBigEndian<uint64_t>(entry.key);
          if (!pins.IsPinned(number)) numbers.push_back(number);
          return numbers.size() < limit;
        }));
  }
  std::vector<Reaped> freed;
  for (const RecordNumber number : numbers) {
    // An earlier operation of the group may have named it again.
    TORPOR_ASSIGN_OR_RETURN(const auto trash,
                            txn.Get(Table::kTrash, RecordKey(number)));
    if (!trash.has_value()) continue;
    TORPOR_ASSIGN_OR_RETURN(const Reaped reaped, ReapRecord(txn, number));
    freed.push_back(reaped);
  }
  return freed;
}

absl::StatusOr<size_t> StoreCore::ReapOnce(size_t limit) {
  std::vector<Reaped> freed;
  const absl::Status status = writer.Run(
      4096,
      [&](WriteTxn& txn) -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(freed, ReapIn(txn, limit));
        // Nothing to do: no commit, no flush.
        return freed.empty() ? absl::CancelledError("the trash is empty")
                             : absl::OkStatus();
      },
      Room::kMakes);
  if (status.code() == absl::StatusCode::kCancelled) return size_t{0};
  TORPOR_RETURN_IF_ERROR(status);
  for (const Reaped& reaped : freed) {
    budget.DropLive(reaped.extent.tenant,
                    RecordPageBytes(reaped.extent.record_bytes));
    if (reaped.quarantined) quarantined.fetch_sub(1);
  }
  return freed.size();
}

void StoreCore::AddOrphans(
    std::vector<std::pair<RecordNumber, RecordExtent>> orphans) {
  {
    MutexLock lock(&mu_);
    orphans_.insert(orphans_.end(), orphans.begin(), orphans.end());
  }
  TrashOrphans();
}

void StoreCore::TrashOrphans() {
  std::vector<std::pair<RecordNumber, RecordExtent>> orphans;
  {
    MutexLock lock(&mu_);
    orphans.swap(orphans_);
  }
  if (orphans.empty()) return;
  writer.Submit(
      orphans.size() * 64,
      [orphans](WriteTxn& txn) -> absl::Status {
        for (const auto& [number, extent] : orphans) {
          TORPOR_RETURN_IF_ERROR(TrashStaged(txn, number, extent));
        }
        return absl::OkStatus();
      },
      [this, orphans](const absl::Status& status) {
        if (status.ok()) return;
        MutexLock lock(&mu_);
        orphans_.insert(orphans_.end(), orphans.begin(), orphans.end());
      },
      Room::kMakes);
}

absl::StatusOr<bool> StoreCore::Evict(
    const SessionKey& session,
    const std::function<bool(const SessionManifest&)>& still) {
  bool gone = false;
  bool absent = false;
  TORPOR_RETURN_IF_ERROR(writer.Run(
      4096,
      [&](WriteTxn& txn) -> absl::Status {
        gone = false;
        const absl::StatusOr<std::optional<SessionManifest>> manifest =
            FindSession(txn, session);
        if (!manifest.ok() && !absl::IsDataLoss(manifest.status())) {
          return manifest.status();
        }
        // A damaged manifest does not say whether it may go: it stays.
        absent = !manifest.ok() || !manifest->has_value();
        if (absent || !still(**manifest)) return absl::OkStatus();
        gone = true;
        return DeleteSession(txn, session, **manifest);
      },
      Room::kMakes,
      [&] {
        if (gone || absent) Untrack(session);
      }));
  return gone;
}

absl::Status StoreCore::DropIfExpired(const SessionKey& session) {
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            env->BeginRead());
    const absl::StatusOr<std::optional<SessionManifest>> manifest =
        FindSession(*txn, session);
    // A damaged one is the caller's to judge.
    if (absl::IsDataLoss(manifest.status())) return absl::OkStatus();
    if (!manifest.ok()) return manifest.status();
    if (!manifest->has_value() || !Expired(**manifest)) return absl::OkStatus();
  }
  return Evict(session, [&](const SessionManifest& m) { return Expired(m); })
      .status();
}

bool StoreCore::MayEvict(const SessionManifest& manifest) {
  return manifest.session_class == SessionClass::kCache &&
         manifest.pinned_until_us <= Now() && !pins.IsPinned(manifest.tip);
}

absl::StatusOr<std::vector<SessionKey>> StoreCore::Evictable(
    uint32_t tenant, const Budget::Shortage& shortage) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, env->BeginRead());
  // A few are enough as a rule, and there may be very many.
  for (size_t limit = kEvictLook;; limit *= 4) {
    // Those of a time to come as well: the clock may have been set back, and an
    // import may bring the time of another.
    const std::vector<SessionKey> oldest = last_use.Earliest(INT64_MAX, limit);
    TORPOR_ASSIGN_OR_RETURN(std::vector<SessionKey> sessions,
                            EvictableOf(*txn, oldest, tenant, shortage));
    // Not even all of them together: then none has to go.
    if (!sessions.empty() || oldest.size() < limit) return sessions;
  }
}

absl::StatusOr<std::vector<SessionKey>> StoreCore::EvictableOf(
    const ReadView& view, const std::vector<SessionKey>& oldest,
    uint32_t tenant, const Budget::Shortage& shortage) {
  std::vector<SessionKey> sessions;
  uint64_t bytes = 0;
  uint64_t tenant_bytes = 0;
  for (const SessionKey& session : oldest) {
    if (bytes >= shortage.store && tenant_bytes >= shortage.tenant) break;
    // What other tenants hold is of no help to one beyond its own limit.
    if (session.tenant != tenant && tenant_bytes < shortage.tenant) continue;
    const absl::StatusOr<std::optional<SessionManifest>> manifest =
        FindSession(view, session);
    if (!manifest.ok() || !manifest->has_value()) continue;
    if (!MayEvict(**manifest)) continue;
    uint64_t freed = (*manifest)->page_bytes;
    for (const AttachmentRef& a : (*manifest)->attachments) {
      freed += a.page_bytes;
    }
    bytes += freed;
    if (session.tenant == tenant) tenant_bytes += freed;
    sessions.push_back(session);
  }
  if (bytes < shortage.store || tenant_bytes < shortage.tenant) {
    sessions.clear();
  }
  return sessions;
}

absl::Status StoreCore::Admit(uint32_t tenant, uint64_t bytes) {
  TrashOrphans();
  TORPOR_ASSIGN_OR_RETURN(uint64_t disk_free, dir->FreeBytes());
  const EnvInfo file = env->Info();
  disk_free += file.allocated_bytes;
  // Pages that the file has and nothing live occupies can be written again.
  const uint64_t used = file.used_bytes;
  const uint64_t live = budget.live_bytes();
  const uint64_t reusable = used > live ? used - live : 0;
  const uint64_t promised = budget.reserved_bytes();
  if (disk_free + reusable < promised + bytes + options.disk_reserve_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "disk: %d bytes free and %d reusable, %d promised, %d asked, %d kept "
        "in reserve",
        disk_free, reusable, promised, bytes, options.disk_reserve_bytes));
  }
  // What lies in the trash makes room first, then cache sessions, least
  // recently used first; the reaper frees their pages.
  const auto reap_while_short = [&]() -> absl::Status {
    while (budget.ShortageFor(tenant, bytes).any()) {
      TORPOR_ASSIGN_OR_RETURN(const size_t reaped, Reap(kReapPerTxn));
      if (reaped == 0) break;
    }
    return absl::OkStatus();
  };
  TORPOR_RETURN_IF_ERROR(reap_while_short());
  // What goes may free less than its pages, which others may share: look again
  // while sessions go.
  for (bool going = true; going;) {
    going = false;
    const Budget::Shortage shortage = budget.ShortageFor(tenant, bytes);
    if (!shortage.any()) break;
    TORPOR_ASSIGN_OR_RETURN(const std::vector<SessionKey> evictable,
                            Evictable(tenant, shortage));
    for (const SessionKey& session : evictable) {
      if (!budget.ShortageFor(tenant, bytes).any()) break;
      TORPOR_ASSIGN_OR_RETURN(const bool gone,
                              Evict(session, [&](const SessionManifest& m) {
                                return MayEvict(m);
                              }));
      if (!gone) continue;
      going = true;
      TORPOR_RETURN_IF_ERROR(reap_while_short());
    }
  }
  return budget.Reserve(tenant, bytes);
}

}  // namespace torpor::store
