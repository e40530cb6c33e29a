// SPDX-License-Identifier: Apache-2.0
//
// The LMDB environment: tables, short read transactions, write transactions.
// One Env per directory per process. After a meta page could not be written
// LMDB refuses everything until it is opened anew; Env does that by itself.
// Values handed out are views into the map, valid only inside their
// transaction; a read transaction is never held over an RPC, a replay or a
// lock. lock.mdb is never opened by us: closing any descriptor of it would drop
// LMDB's own locks.

#ifndef TORPOR_STORE_ENV_H_
#define TORPOR_STORE_ENV_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

struct MDB_env;
struct MDB_txn;
struct MDB_cursor;

namespace torpor::store {

// Named databases of the environment. The order is frozen only within a
// process; names on disk are frozen.
enum class Table : uint8_t {
  kMeta,
  kSessions,
  kRecords,
  kParts,
  kBlocks,
  kChain,
  kStaging,
  kTrash,
  kTombstones,
  kModels,
};
inline constexpr size_t kTableCount = 10;

struct EnvOptions {
  // Existing directory, mode 0700.
  std::string directory;
  // Bytes of address space; 0 = 1.25 x the disk. Fixed for the Env's lifetime.
  uint64_t map_bytes = 0;
  // For tests that show what a missing flush looks like. Never set otherwise.
  bool no_sync_for_test = false;
};

// A key and a value of a table, views into the map.
struct Entry {
  std::string_view key;
  std::span<const uint8_t> value;
};

// Reads of one consistent version. Not thread-safe.
class ReadView {
 public:
  virtual ~ReadView() = default;
  ReadView(const ReadView&) = delete;
  ReadView& operator=(const ReadView&) = delete;

  // The value, or nullopt when the key is absent.
  [[nodiscard]] absl::StatusOr<std::optional<std::span<const uint8_t>>> Get(
      Table table, std::string_view key) const;

  // Calls `visit` for entries in key order from the first key >= `from`, until
  // it returns false or the table ends. `visit` must not write.
  absl::Status Scan(Table table, std::string_view from,
                    const std::function<bool(const Entry&)>& visit) const;

  // The last key of a table; empty when it has no entries.
  [[nodiscard]] absl::StatusOr<std::string> LastKey(Table table) const;

  // Number of entries of a table.
  [[nodiscard]] uint64_t Count(Table table) const;

 protected:
  ReadView(const class Env* env, MDB_txn* txn) : env_(env), txn_(txn) {}

  const class Env* env_;
  MDB_txn* txn_;
};

class ReadTxn final : public ReadView {
 public:
  ~ReadTxn() override;

 private:
  friend class Env;
  ReadTxn(Env* env, MDB_txn* txn);
  Env* const owner_;
};

// The one write transaction of the environment. Aborts unless committed.
class WriteTxn final : public ReadView {
 public:
  ~WriteTxn() override;

  // kResourceExhausted when the map or the disk is full.
  absl::Status Put(Table table, std::string_view key,
                   std::span<const uint8_t> value);
  // Space for a new value, to be filled before the next call on this
  // transaction. kAlreadyExists when the key is present.
  absl::StatusOr<std::span<uint8_t>> Reserve(Table table, std::string_view key,
                                             size_t bytes);
  // False when the key was absent.
  absl::StatusOr<bool> Delete(Table table, std::string_view key);

  // A nested transaction: its abort undoes only its own writes. The parent is
  // not used while the child lives.
  absl::StatusOr<std::unique_ptr<WriteTxn>> Child();

  // Durable on return, for a transaction without a parent. The transaction is
  // over either way.
  absl::Status Commit();

 private:
  friend class Env;
  WriteTxn(class Env* env, MDB_txn* txn, bool nested);
  class Env* const owner_;
  const bool nested_;
};

struct EnvInfo {
  uint64_t map_bytes = 0;
  // Pages ever used x page size.
  uint64_t used_bytes = 0;
  // Set aside behind them (EnsureRoom).
  uint64_t allocated_bytes = 0;
  uint64_t readers = 0;
};

class Env {
 public:
  // Creates the environment when absent, then fsyncs the directory and its
  // parent (LMDB does not). kFailedPrecondition when this process has it open
  // already; kDataLoss when the file is no LMDB environment.
  static absl::StatusOr<std::unique_ptr<Env>> Open(const EnvOptions& options);
  ~Env();
  Env(const Env&) = delete;
  Env& operator=(const Env&) = delete;

  // kResourceExhausted when every reader slot is taken.
  absl::StatusOr<std::unique_ptr<ReadTxn>> BeginRead();
  // Waits for the current writer.
  absl::StatusOr<std::unique_ptr<WriteTxn>> BeginWrite();

  // Has the file system set aside blocks for `bytes` more behind the pages in
  // use, so that no page of a commit meets a full disk. kResourceExhausted when
  // it has none left. Only the writer calls this.
  absl::Status EnsureRoom(uint64_t bytes);
  // Bytes of free pages that the next write transaction may use.
  [[nodiscard]] absl::StatusOr<uint64_t> ReusableBytes();

  // Frees reader slots of dead processes; returns how many.
  int CheckReaders();
  // Zeros while the environment cannot be opened.
  [[nodiscard]] EnvInfo Info();
  [[nodiscard]] const std::string& directory() const { return directory_; }

  // Tells the kernel that a value is about to be read. The map is opened
  // without read-ahead, so a cold read without this is page by page.
  static void WillNeed(std::span<const uint8_t> value);
  // Whether all of it is in memory already, so that WillNeed would only look up
  // each page in the page cache: a quarter of the time of a hot read.
  static bool Resident(std::span<const uint8_t> value);

 private:
  friend class ReadView;
  friend class ReadTxn;
  friend class WriteTxn;

  Env() = default;
  void ReturnReader(MDB_txn* txn);
  // Opens LMDB and its tables.
  absl::Status OpenLmdb();
  [[nodiscard]] EnvInfo ReadInfo() const;
  void CloseLmdb();
  // A transaction is about to begin, or is over.
  absl::Status Enter() ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);
  // Closes and opens LMDB again once no transaction is open. `generation` is
  // the one that failed; nothing happens when another caller was faster.
  absl::Status Reopen(uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  [[nodiscard]] uint64_t generation() const ABSL_LOCKS_EXCLUDED(mu_);

  std::string directory_;
  std::string identity_;  // device and inode of the directory
  uint64_t map_bytes_ = 0;
  bool no_sync_ = false;
  // Change only in Reopen, while no transaction is open.
  MDB_env* env_ = nullptr;
  std::array<unsigned, kTableCount> dbi_{};
  // One past the last byte that EnsureRoom had set aside.
  std::atomic<uint64_t> allocated_end_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  uint64_t open_txns_ ABSL_GUARDED_BY(mu_) = 0;
  bool reopening_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // Reset read transactions, to be renewed: beginning one takes a lock on the
  // reader table.
  std::vector<MDB_txn*> idle_readers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace torpor::store

#endif  // TORPOR_STORE_ENV_H_
