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
#include "store/record.h"

namespace torpor::store {
namespace {

constexpr uint32_t kEnvFormatVersion = 1;
// Records freed per transaction: a few MiB of pages, a few milliseconds.
constexpr size_t kReapPerTxn = 16;
constexpr size_t kExpirePerStep = 64;
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
    TORPOR_RETURN_IF_ERROR(
        core->writer.Run(64 * kPerTxn, [&](WriteTxn& txn) -> absl::Status {
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
        }));
  }
  return absl::OkStatus();
}

absl::Status CountLive(StoreCore* core) {
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                          core->env->BeginRead());
  TORPOR_RETURN_IF_ERROR(
      txn->Scan(Table::kRecords, "", [&](const Entry& entry) {
        const absl::StatusOr<RecordEntry> record =
            DecodeRecordEntry(entry.value);
        if (!record.ok()) return true;
        core->budget.AddLive(record->tenant,
                             RecordPageBytes(record->record_bytes), 0);
        if (record->quarantined) core->quarantined.fetch_add(1);
        return true;
      }));
  // Trash that never had an entry still occupies pages.
  absl::Status status;
  TORPOR_RETURN_IF_ERROR(txn->Scan(Table::kTrash, "", [&](const Entry& entry) {
    const auto extent = DecodeExtent(entry.value);
    const auto known = txn->Get(Table::kRecords, entry.key);
    if (extent.ok() && known.ok() && !known->has_value()) {
      core->budget.AddLive(extent->tenant,
                           RecordPageBytes(extent->record_bytes), 0);
    }
    return true;
  }));
  return txn->Scan(Table::kSessions, "", [&](const Entry& entry) {
    const absl::StatusOr<SessionManifest> manifest =
        DecodeManifest(entry.value);
    if (!manifest.ok()) return true;
    const SessionKey session{LoadBigEndian<uint32_t>(entry.key),
                             std::string(entry.key.substr(sizeof(uint32_t)))};
    core->Track(session, *manifest);
    if (manifest->session_class == SessionClass::kCache) {
      core->last_use.Set(session, manifest->updated_at_us);
    }
    return true;
  });
}

absl::Status DropOldTombstones(StoreCore* core) {
  const int64_t horizon = core->Now() - kTombstoneLifeUs;
  std::vector<std::string> old;
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            core->env->BeginRead());
    TORPOR_RETURN_IF_ERROR(
        txn->Scan(Table::kTombstones, "", [&](const Entry& entry) {
          const absl::StatusOr<Tombstone> tombstone =
              DecodeTombstone(entry.value);
          if (!tombstone.ok() || tombstone->deleted_at_us < horizon) {
            old.emplace_back(entry.key);
          }
          return old.size() < kExpirePerStep;
        }));
  }
  if (old.empty()) return absl::OkStatus();
  return core->writer.Run(64 * old.size(), [&](WriteTxn& txn) -> absl::Status {
    for (const std::string& key : old) {
      TORPOR_RETURN_IF_ERROR(txn.Delete(Table::kTombstones, key).status());
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status StartUp(StoreCore* core) {
  TORPOR_RETURN_IF_ERROR(CheckFormat(core));
  TORPOR_RETURN_IF_ERROR(TrashAllStaged(core));
  return CountLive(core);
}

absl::StatusOr<bool> RunMaintenance(StoreCore* core) {
  core->env->CheckReaders();
  const std::vector<SessionKey> expired =
      core->expiry.Earliest(core->Now(), kExpirePerStep);
  for (const SessionKey& session : expired) {
    TORPOR_RETURN_IF_ERROR(
        core->Evict(session,
                    [&](const SessionManifest& m) { return core->Expired(m); })
            .status());
  }
  TORPOR_RETURN_IF_ERROR(DropOldTombstones(core));
  TORPOR_ASSIGN_OR_RETURN(const size_t reaped, core->Reap(kReapPerTxn));
  // A freed record may have been the last name of its parent.
  return reaped > 0 || expired.size() == kExpirePerStep;
}

absl::Status DeleteSession(WriteTxn& txn, const SessionKey& session,
                           const SessionManifest& manifest) {
  TORPOR_ASSIGN_OR_RETURN(const uint64_t next, FirstVersion(txn));
  ByteWriter floor;
  floor.Int(std::max(next - 1, manifest.version));
  TORPOR_RETURN_IF_ERROR(
      txn.Put(Table::kMeta, kMetaVersionFloor, AsBytes(floor.str())));
  TORPOR_RETURN_IF_ERROR(
      txn.Delete(Table::kSessions, SessionTableKey(session)).status());
  return DropManifestNames(txn, manifest);
}

absl::Status ApplyTouch(const StoreCore& core, const TouchSpec& spec,
                        WriteTxn& txn, SessionManifest* manifest) {
  const int64_t now = core.Now();
  const auto from_now = [&](int64_t seconds) {
    return seconds == 0 ? 0 : now + seconds * 1'000'000;
  };
  if (spec.session_class.has_value()) {
    manifest->session_class = *spec.session_class;
  }
  if (spec.ttl_seconds.has_value()) {
    manifest->expires_at_us = from_now(*spec.ttl_seconds);
  }
  for (const auto& [key, value] : spec.labels) {
    if (value.empty()) {
      manifest->labels.erase(key);
    } else {
      manifest->labels[key] = value;
    }
  }
  if (manifest->labels.size() > kMaxLabels) {
    return absl::InvalidArgumentError(
        absl::StrFormat("labels: %d after the merge, wanted at most %d",
                        manifest->labels.size(), kMaxLabels));
  }
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
  std::vector<Reaped> freed;
  const absl::Status status =
      writer.Run(4096, [&](WriteTxn& txn) -> absl::Status {
        freed.clear();
        // Only what lay in the trash before this transaction: see store/pins.h.
        std::vector<RecordNumber> numbers;
        TORPOR_RETURN_IF_ERROR(
            txn.Scan(Table::kTrash, "", [&](const Entry& entry) {
              const auto number = LoadBigEndian<uint64_t>(entry.key);
              if (!pins.IsPinned(number)) numbers.push_back(number);
              return numbers.size() < limit;
            }));
        for (const RecordNumber number : numbers) {
          TORPOR_ASSIGN_OR_RETURN(const Reaped reaped, ReapRecord(txn, number));
          freed.push_back(reaped);
        }
        // Nothing to do: no commit, no flush.
        return numbers.empty() ? absl::CancelledError("the trash is empty")
                               : absl::OkStatus();
      });
  if (status.code() == absl::StatusCode::kCancelled) return size_t{0};
  TORPOR_RETURN_IF_ERROR(status);
  for (const Reaped& reaped : freed) {
    budget.DropLive(reaped.extent.tenant,
                    RecordPageBytes(reaped.extent.record_bytes));
    if (reaped.quarantined) quarantined.fetch_sub(1);
  }
  return freed.size();
}

absl::StatusOr<bool> StoreCore::Evict(
    const SessionKey& session,
    const std::function<bool(const SessionManifest&)>& still) {
  bool gone = false;
  bool absent = false;
  TORPOR_RETURN_IF_ERROR(writer.Run(4096, [&](WriteTxn& txn) -> absl::Status {
    gone = false;
    TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> manifest,
                            FindSession(txn, session));
    absent = !manifest.has_value();
    if (absent || !still(*manifest)) return absl::OkStatus();
    gone = true;
    return DeleteSession(txn, session, *manifest);
  }));
  if (gone || absent) Untrack(session);
  return gone;
}

absl::Status StoreCore::DropIfExpired(const SessionKey& session) {
  {
    TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn,
                            env->BeginRead());
    TORPOR_ASSIGN_OR_RETURN(const std::optional<SessionManifest> manifest,
                            FindSession(*txn, session));
    if (!manifest.has_value() || !Expired(*manifest)) return absl::OkStatus();
  }
  return Evict(session, [&](const SessionManifest& m) { return Expired(m); })
      .status();
}

absl::Status StoreCore::Admit(uint32_t tenant, uint64_t bytes) {
  TORPOR_ASSIGN_OR_RETURN(const uint64_t disk_free, dir->FreeBytes());
  // Pages that the file has and nothing live occupies can be written again.
  const uint64_t used = env->Info().used_bytes;
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
  if (budget.ShortageFor(tenant, bytes).any()) {
    for (const SessionKey& session : last_use.Earliest(Now(), SIZE_MAX)) {
      const Budget::Shortage shortage = budget.ShortageFor(tenant, bytes);
      if (!shortage.any()) break;
      if (shortage.tenant > 0 && session.tenant != tenant) continue;
      TORPOR_ASSIGN_OR_RETURN(
          const bool gone, Evict(session, [&](const SessionManifest& m) {
            return m.session_class == SessionClass::kCache &&
                   m.pinned_until_us <= Now() && !pins.IsPinned(m.tip);
          }));
      if (gone) TORPOR_RETURN_IF_ERROR(reap_while_short());
    }
  }
  return budget.Reserve(tenant, bytes);
}

}  // namespace torpor::store
