// SPDX-License-Identifier: Apache-2.0
//
// SessionStore over LMDB: payload and index in one environment, one writer
// thread with group commit, short read transactions, a budget of its own.
// docs/FORMAT.md gives the bytes, docs/ARCHITECTURE.md the walk of a suspend.

#ifndef TORPOR_STORE_LMDB_SESSION_STORE_H_
#define TORPOR_STORE_LMDB_SESSION_STORE_H_

#include <chrono>
#include <memory>
#include <string>

#include "store/session_store.h"

namespace torpor::store {

struct StoreCore;

// A map of less has room for the tables and a commit, and for little else.
inline constexpr uint64_t kMinMapBytes = uint64_t{16} << 20;

struct LmdbStoreOptions {
  std::string data_dir;
  // Page bytes of all records; 0 = 90 % of the disk, and at most
  // 80 % of a map that is given.
  uint64_t max_bytes = 0;
  // The same per tenant; 0 = no limit of its own.
  uint64_t tenant_max_bytes = 0;
  // A suspend is refused when it would leave less than this on the disk.
  uint64_t disk_reserve_bytes = uint64_t{64} << 20;
  // LMDB address space; 0 = 1.25 x the disk. Otherwise at least
  // kMinMapBytes, 1.25 x max_bytes and what is stored already.
  uint64_t map_bytes = 0;
  // Block buffers of all tickets together.
  uint64_t buffer_bytes = uint64_t{96} << 20;
  // How far one ticket's rows may run ahead of its oldest incomplete block.
  uint64_t ahead_bytes = uint64_t{64} << 20;
  // How long a Put waits for rows of an older block.
  std::chrono::milliseconds put_timeout{30'000};
  // Payload that waits for the publishing commit instead of one of its own: a
  // commit more costs a small suspend as much as its hashing.
  uint64_t publish_bytes = uint64_t{2} << 20;
  // Threads that hash and seal complete blocks; 0 = one a processor, at most 8.
  size_t seal_threads = 0;
  // Pinned bytes of cache sessions; a pin above it is refused. 0 = half of
  // max_bytes.
  uint64_t pinned_max_bytes = 0;
  // For tests only; see EnvOptions.
  bool no_sync_for_test = false;
  // Null = SystemClock().
  Clock clock;
};

class LmdbSessionStore final : public SessionStore {
 public:
  // Takes the directory, opens or creates the environment and sweeps what a
  // crash left staged. kFailedPrecondition when another process holds it or a
  // newer format wrote it; kInvalidArgument for a map that is too small.
  static absl::StatusOr<std::unique_ptr<LmdbSessionStore>> Open(
      LmdbStoreOptions options);
  ~LmdbSessionStore() override;

  absl::StatusOr<BeginResult> Begin(SuspendSpec spec) override;
  absl::StatusOr<std::unique_ptr<SessionLease>> Open(const SessionKey& session,
                                                     uint64_t version) override;
  absl::StatusOr<PrefixHit> Lookup(uint32_t tenant, const RecordLayout& layout,
                                   const TokenRun& tokens) override;
  absl::StatusOr<SessionInfo> Describe(const SessionKey& session) override;
  absl::StatusOr<ListResult> List(uint32_t tenant, std::string_view prefix,
                                  std::string_view after,
                                  size_t limit) override;
  absl::StatusOr<SessionInfo> Fork(const ForkSpec& spec) override;
  absl::StatusOr<SessionInfo> Rewind(const MutateSpec& spec,
                                     uint64_t at) override;
  absl::StatusOr<uint64_t> Erase(const MutateSpec& spec) override;
  absl::StatusOr<SessionInfo> Touch(const TouchSpec& spec) override;
  absl::Status PutModel(std::string_view name, std::string_view value) override;
  absl::StatusOr<std::vector<std::pair<std::string, std::string>>> Models()
      override;
  absl::StatusOr<bool> Maintain() override;
  StoreStats Stats() override;
  absl::StatusOr<VerifyReport> Verify(
      bool deep, const Progress<VerifyReport>& progress) override;
  absl::StatusOr<BackupReport> Backup(
      const std::string& directory,
      const Progress<BackupReport>& progress) override;

 private:
  explicit LmdbSessionStore(std::unique_ptr<StoreCore> core);

  const std::unique_ptr<StoreCore> core_;
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_LMDB_SESSION_STORE_H_
