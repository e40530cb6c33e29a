// SPDX-License-Identifier: Apache-2.0
//
// What the LMDB store's verbs, tickets, leases and maintenance share. Internal
// to store/. Members are thread-safe or const after Open.

#ifndef TORPOR_STORE_STORE_CORE_H_
#define TORPOR_STORE_STORE_CORE_H_

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/worker_pool.h"
#include "store/block_id.h"
#include "store/budget.h"
#include "store/buffer_pool.h"
#include "store/catalog.h"
#include "store/data_dir.h"
#include "store/env.h"
#include "store/lmdb_session_store.h"
#include "store/pins.h"
#include "store/record_reader.h"
#include "store/writer.h"

namespace torpor::store {

// Sessions in order of a time of theirs; rebuilt at start-up. Thread-safe.
class TimeOrder {
 public:
  void Set(const SessionKey& session, int64_t time_us);
  void Forget(const SessionKey& session);
  // Earliest first, those with a time up to `until_us`.
  [[nodiscard]] std::vector<SessionKey> Earliest(int64_t until_us,
                                                 size_t limit) const;

 private:
  mutable Mutex mu_;
  std::map<SessionKey, int64_t> time_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<int64_t, SessionKey>> order_ ABSL_GUARDED_BY(mu_);
};

struct StoreCore {
  StoreCore(LmdbStoreOptions store_options, std::unique_ptr<DataDir> data_dir,
            std::unique_ptr<Env> environment, const BudgetOptions& limits);
  ~StoreCore();

  // ---- identity
  // The tenant's secret, drawn at its first use.
  absl::StatusOr<TenantSecret> Secret(uint32_t tenant);
  // The first of `count` consecutive record numbers nobody else gets.
  absl::StatusOr<RecordNumber> DrawRecords(uint64_t count);

  // ---- damage
  // Marks a record so that nothing reads it again; returns `damage`.
  absl::Status Quarantine(RecordNumber number, absl::Status damage);

  // ---- space (store/maintenance.cc)
  // Promises `bytes`, evicting cache sessions if that makes room, and checks
  // the disk.
  absl::Status Admit(uint32_t tenant, uint64_t bytes);
  // Reaps up to `limit` records of the trash; how many were reaped.
  absl::StatusOr<size_t> Reap(size_t limit);
  // The same inside a transaction of the writer's: what it freed. Leaves what
  // that transaction itself, or an earlier one of its group, put into the
  // trash.
  absl::StatusOr<std::vector<Reaped>> ReapIn(WriteTxn& txn, size_t limit);
  // Staged records of a suspend that is over: to the trash, now or, where a
  // write fails, with the next call.
  void AddOrphans(std::vector<std::pair<RecordNumber, RecordExtent>> orphans);
  void TrashOrphans();
  // Deletes one session as if by its owner, without a tombstone. False when it
  // is not there or `still` says no.
  absl::StatusOr<bool> Evict(
      const SessionKey& session,
      const std::function<bool(const SessionManifest&)>& still);
  // A session whose time is over is gone, reaped or not.
  absl::Status DropIfExpired(const SessionKey& session);
  // Pinned bytes of every session but this one.
  uint64_t PinnedBytes(const SessionKey& except) const;

  // Keeps the orders below in step with a manifest that was stored, or whose
  // session is gone. On the writer thread: in the order of the commits.
  void Track(const SessionKey& session, const SessionManifest& manifest);
  void Untrack(const SessionKey& session);

  // ---- views
  absl::StatusOr<SessionInfo> InfoOf(const ReadView& view,
                                     const SessionKey& session,
                                     const SessionManifest& manifest) const;
  [[nodiscard]] int64_t Now() const { return options.clock(); }
  [[nodiscard]] bool Expired(const SessionManifest& manifest) const {
    return manifest.expires_at_us != 0 && manifest.expires_at_us <= Now();
  }

  const LmdbStoreOptions options;
  const std::unique_ptr<DataDir> dir;
  const std::unique_ptr<Env> env;
  RecordReader reader;
  Pins pins;
  Budget budget;
  BufferPool pool;
  // Seals complete blocks, so that hashing one overlaps receiving the next and
  // writing the last.
  WorkerPool sealers;
  // Cache sessions by last use; sessions with a TTL by its end.
  TimeOrder last_use;
  TimeOrder expiry;
  // Where the next step of the sweep over tombstones begins.
  Mutex sweep_mu;
  std::string sweep_from ABSL_GUARDED_BY(sweep_mu);
  std::atomic<uint64_t> open_tickets{0};
  std::atomic<uint64_t> open_leases{0};
  std::atomic<uint64_t> quarantined{0};

 private:
  absl::StatusOr<size_t> ReapOnce(size_t limit);
  bool MayEvict(const SessionManifest& manifest);
  // Cache sessions whose going covers the shortage, least recently used first;
  // none when all of them do not.
  absl::StatusOr<std::vector<SessionKey>> Evictable(
      uint32_t tenant, const Budget::Shortage& shortage);
  // The same of some sessions, in their order.
  absl::StatusOr<std::vector<SessionKey>> EvictableOf(
      const ReadView& view, const std::vector<SessionKey>& oldest,
      uint32_t tenant, const Budget::Shortage& shortage);

  mutable Mutex mu_;
  std::map<uint32_t, TenantSecret> secrets_ ABSL_GUARDED_BY(mu_);
  struct Pin {
    int64_t until_us;
    uint64_t bytes;
  };
  std::map<SessionKey, Pin> session_pins_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<RecordNumber, RecordExtent>> orphans_
      ABSL_GUARDED_BY(mu_);
  Mutex draw_mu_;
  RecordNumber next_record_ ABSL_GUARDED_BY(draw_mu_) = 0;
  RecordNumber drawn_end_ ABSL_GUARDED_BY(draw_mu_) = 0;

 public:
  // Last member: its thread ends before anything it uses is gone.
  Writer writer;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_STORE_CORE_H_
