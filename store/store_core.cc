// SPDX-License-Identifier: Apache-2.0

#include "store/store_core.h"

#include <sodium.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/codec.h"
#include "store/keys.h"

namespace torpor::store {
namespace {

// Numbers drawn per commit of the counter.
constexpr uint64_t kRecordsPerDraw = 65'536;

// Hashing at about 1 GB/s a thread is ahead of any disk well before this many.
constexpr size_t kMaxSealThreads = 8;

size_t SealThreads(size_t asked) {
  if (asked != 0) return asked;
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1,
                            kMaxSealThreads);
}

}  // namespace

void TimeOrder::Set(const SessionKey& session, int64_t time_us) {
  MutexLock lock(&mu_);
  const auto [it, inserted] = time_.try_emplace(session, time_us);
  if (!inserted) {
    order_.erase({it->second, session});
    it->second = time_us;
  }
  order_.insert({time_us, session});
}

void TimeOrder::Forget(const SessionKey& session) {
  MutexLock lock(&mu_);
  const auto it = time_.find(session);
  if (it == time_.end()) return;
  order_.erase({it->second, session});
  time_.erase(it);
}

std::vector<SessionKey> TimeOrder::Earliest(int64_t until_us,
                                            size_t limit) const {
  MutexLock lock(&mu_);
  std::vector<SessionKey> out;
  for (const auto& [time_us, session] : order_) {
    if (out.size() == limit || time_us > until_us) break;
    out.push_back(session);
  }
  return out;
}

StoreCore::StoreCore(LmdbStoreOptions store_options,
                     std::unique_ptr<DataDir> data_dir,
                     std::unique_ptr<Env> environment,
                     const BudgetOptions& limits)
    : options(std::move(store_options)),
      dir(std::move(data_dir)),
      env(std::move(environment)),
      reader(env.get()),
      budget(limits),
      pool(options.buffer_bytes),
      sealers(SealThreads(options.seal_threads)),
      writer(env.get()) {}

StoreCore::~StoreCore() = default;

absl::StatusOr<TenantSecret> StoreCore::Secret(uint32_t tenant) {
  {
    MutexLock lock(&mu_);
    const auto it = secrets_.find(tenant);
    if (it != secrets_.end()) return it->second;
  }
  TenantSecret fresh;
  randombytes_buf(fresh.data(), fresh.size());
  TenantSecret secret{};
  TORPOR_RETURN_IF_ERROR(writer.Run(64, [&](WriteTxn& txn) -> absl::Status {
    const std::string key = TenantSecretKey(tenant);
    TORPOR_ASSIGN_OR_RETURN(const auto value, txn.Get(Table::kMeta, key));
    if (!value.has_value()) {
      secret = fresh;
      return txn.Put(Table::kMeta, key, fresh);
    }
    ByteReader r(*value);
    secret = r.Array<32>();
    if (!r.Done()) {
      return absl::DataLossError(
          absl::StrFormat("secret of tenant %d: got %d bytes, wanted 32",
                          tenant, value->size()));
    }
    return absl::OkStatus();
  }));
  MutexLock lock(&mu_);
  return secrets_.try_emplace(tenant, secret).first->second;
}

absl::StatusOr<RecordNumber> StoreCore::DrawRecords(uint64_t count) {
  MutexLock lock(&draw_mu_);
  if (drawn_end_ - next_record_ < count) {
    const uint64_t draw = std::max(count, kRecordsPerDraw);
    RecordNumber first = 0;
    TORPOR_RETURN_IF_ERROR(writer.Run(64, [&](WriteTxn& txn) -> absl::Status {
      TORPOR_ASSIGN_OR_RETURN(first, DrawRecordNumbers(txn, draw));
      return absl::OkStatus();
    }));
    next_record_ = first;
    drawn_end_ = first + draw;
  }
  const RecordNumber first = next_record_;
  next_record_ += count;
  return first;
}

absl::Status StoreCore::Quarantine(RecordNumber number, absl::Status damage) {
  if (damage.code() != absl::StatusCode::kDataLoss) return damage;
  bool marked = false;
  const absl::Status status =
      writer.Run(256, [&](WriteTxn& txn) -> absl::Status {
        TORPOR_ASSIGN_OR_RETURN(RecordEntry entry, FindRecord(txn, number));
        marked = !entry.quarantined;
        entry.quarantined = true;
        return PutRecord(txn, number, entry);
      });
  if (status.ok() && marked) quarantined.fetch_add(1);
  return damage;
}

void StoreCore::Track(const SessionKey& session,
                      const SessionManifest& manifest) {
  if (manifest.session_class == SessionClass::kCache) {
    last_use.Set(session, Now());
  } else {
    last_use.Forget(session);
  }
  if (manifest.expires_at_us != 0) {
    expiry.Set(session, manifest.expires_at_us);
  } else {
    expiry.Forget(session);
  }
  MutexLock lock(&mu_);
  if (manifest.pinned_until_us != 0) {
    session_pins_[session] = {manifest.pinned_until_us, manifest.page_bytes};
  } else {
    session_pins_.erase(session);
  }
}

void StoreCore::Untrack(const SessionKey& session) {
  last_use.Forget(session);
  expiry.Forget(session);
  MutexLock lock(&mu_);
  session_pins_.erase(session);
}

uint64_t StoreCore::PinnedBytes(const SessionKey& except) const {
  const int64_t now = Now();
  MutexLock lock(&mu_);
  uint64_t bytes = 0;
  for (const auto& [session, pin] : session_pins_) {
    if (pin.until_us > now && session != except) bytes += pin.bytes;
  }
  return bytes;
}

absl::StatusOr<SessionInfo> StoreCore::InfoOf(
    const ReadView& view, const SessionKey& session,
    const SessionManifest& manifest) const {
  TORPOR_ASSIGN_OR_RETURN(const std::optional<RecordLayout> layout,
                          FindLayout(view, manifest.fingerprint));
  if (!layout.has_value()) {
    return absl::DataLossError(absl::StrFormat(
        "session '%s': the layout of its fingerprint is gone", session.id));
  }
  SessionInfo info;
  info.key = session;
  info.version = manifest.version;
  info.n_tokens = manifest.n_tokens;
  info.kv_len = manifest.kv_len;
  info.usable_len = manifest.kv_len;
  info.model = manifest.model;
  info.fingerprint = manifest.fingerprint;
  info.fingerprint_fields = manifest.fingerprint_fields;
  info.numerics_id = manifest.numerics_id;
  info.holder = manifest.holder;
  info.session_class = manifest.session_class;
  info.expires_at_us = manifest.expires_at_us;
  info.pinned_until_us = manifest.pinned_until_us;
  info.created_at_us = manifest.created_at_us;
  info.updated_at_us = manifest.updated_at_us;
  info.labels = manifest.labels;
  info.provenance = manifest.provenance;
  info.n_blocks = manifest.n_blocks;
  info.token_bytes = uint64_t{4} * manifest.n_tokens;
  info.stored_bytes = manifest.page_bytes;
  for (const SlotSpec& slot : layout->slots) {
    info.compact_bytes += RowsOf(slot, manifest.kv_len) * slot.row_bytes;
  }
  for (const AttachmentRef& a : manifest.attachments) {
    info.stored_bytes += a.page_bytes;
    switch (a.kind) {
      case AttachmentKind::kWitness:
        info.witness_bytes = a.bytes;
        break;
      case AttachmentKind::kClientState:
        info.client_state_bytes = a.bytes;
        break;
      case AttachmentKind::kSnapshot:
        info.snapshot_bytes = a.bytes;
        break;
      case AttachmentKind::kOpenGroups:
        break;
    }
  }
  return info;
}

}  // namespace torpor::store
