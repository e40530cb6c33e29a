// SPDX-License-Identifier: Apache-2.0

#include "store/env.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::store {
namespace {

constexpr std::array<const char*, kTableCount> kTableNames = {
    "meta",  "sessions", "records", "parts",      "blocks",
    "chain", "staging",  "trash",   "tombstones", "models"};

// Read transactions are short, but a few hundred may run at once.
constexpr unsigned kMaxReaders = 1024;

#ifdef TORPOR_SANITIZED
constexpr uint64_t kDefaultMapCap = uint64_t{4} << 30;
#else
constexpr uint64_t kDefaultMapCap = uint64_t{1} << 46;
#endif

absl::Status LmdbError(std::string_view what, int rc) {
  const std::string message =
      absl::StrFormat("%s: LMDB says: %s", what, mdb_strerror(rc));
  switch (rc) {
    case MDB_MAP_FULL:
    case MDB_TXN_FULL:
    case MDB_READERS_FULL:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    // A short write on a full disk reaches us as EIO.
    case EIO:
      return absl::ResourceExhaustedError(message);
    case MDB_NOTFOUND:
      return absl::NotFoundError(message);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_VERSION_MISMATCH:
      return absl::DataLossError(message);
    case MDB_PANIC:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

MDB_val ToVal(std::string_view s) {
  return {s.size(), const_cast<char*>(s.data())};
}

std::span<const uint8_t> ToSpan(const MDB_val& v) {
  return {static_cast<const uint8_t*>(v.mv_data), v.mv_size};
}

absl::Status SyncDirectory(const std::filesystem::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return absl::InternalError(absl::StrFormat(
        "open directory %s: %s", path.string(), std::strerror(errno)));
  }
  const int rc = fsync(fd);
  const int saved = errno;
  close(fd);
  if (rc != 0) {
    return absl::InternalError(absl::StrFormat(
        "fsync directory %s: %s", path.string(), std::strerror(saved)));
  }
  return absl::OkStatus();
}

// Directories that this process has open: a second LMDB handle on one path
// would release the first one's locks when it closes.
Mutex& OpenMutex() {
  static Mutex* const mu = new Mutex;
  return *mu;
}
std::set<std::string>& OpenDirectories() {
  static auto* const set = new std::set<std::string>;
  return *set;
}

absl::StatusOr<std::string> DirectoryIdentity(const std::string& directory) {
  struct stat st;
  if (stat(directory.c_str(), &st) != 0) {
    return absl::NotFoundError(absl::StrFormat(
        "data directory %s: %s", directory, std::strerror(errno)));
  }
  return absl::StrFormat("%d:%d", st.st_dev, st.st_ino);
}

// A file shorter than its pages would end a read of the map in SIGBUS. Grown
// back with zeros, the lost pages read as damage instead.
absl::Status RestoreLength(const std::string& path, uint64_t used_bytes) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) {
    return absl::InternalError(
        absl::StrFormat("stat %s: %s", path, std::strerror(errno)));
  }
  if (static_cast<uint64_t>(st.st_size) >= used_bytes) return absl::OkStatus();
  if (truncate(path.c_str(), static_cast<off_t>(used_bytes)) != 0) {
    return absl::DataLossError(
        absl::StrFormat("%s has %d bytes, wanted %d, and cannot be grown: %s",
                        path, st.st_size, used_bytes, std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DefaultMapBytes(const std::string& directory) {
  struct statvfs fs;
  if (statvfs(directory.c_str(), &fs) != 0) {
    return absl::InternalError(
        absl::StrFormat("statvfs %s: %s", directory, std::strerror(errno)));
  }
  const uint64_t disk = uint64_t{fs.f_blocks} * fs.f_frsize;
  return std::min(kDefaultMapCap,
                  std::max<uint64_t>(disk + disk / 4, uint64_t{1} << 28));
}

}  // namespace

// ---- reads ----------------------------------------------------------------

absl::StatusOr<std::optional<std::span<const uint8_t>>> ReadView::Get(
    Table table, std::string_view key) const {
  MDB_val k = ToVal(key);
  MDB_val v;
  const int rc = mdb_get(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v);
  if (rc == MDB_NOTFOUND) return std::nullopt;
  if (rc != 0) {
    return LmdbError(absl::StrFormat("get from table %s",
                                     kTableNames[static_cast<size_t>(table)]),
                     rc);
  }
  return ToSpan(v);
}

absl::Status ReadView::Scan(
    Table table, std::string_view from,
    const std::function<bool(const Entry&)>& visit) const {
  const std::string what = absl::StrFormat(
      "scan of table %s", kTableNames[static_cast<size_t>(table)]);
  MDB_cursor* raw = nullptr;
  if (const int rc =
          mdb_cursor_open(txn_, env_->dbi_[static_cast<size_t>(table)], &raw);
      rc != 0) {
    return LmdbError(what, rc);
  }
  const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> cursor(
      raw, &mdb_cursor_close);
  MDB_val k = ToVal(from);
  MDB_val v;
  int rc =
      mdb_cursor_get(raw, &k, &v, from.empty() ? MDB_FIRST : MDB_SET_RANGE);
  for (; rc == 0; rc = mdb_cursor_get(raw, &k, &v, MDB_NEXT)) {
    const Entry entry{{static_cast<const char*>(k.mv_data), k.mv_size},
                      ToSpan(v)};
    if (!visit(entry)) return absl::OkStatus();
  }
  return rc == MDB_NOTFOUND ? absl::OkStatus() : LmdbError(what, rc);
}

uint64_t ReadView::Count(Table table) const {
  MDB_stat stat;
  const int rc = mdb_stat(txn_, env_->dbi_[static_cast<size_t>(table)], &stat);
  return rc == 0 ? stat.ms_entries : 0;
}

ReadTxn::ReadTxn(Env* env, MDB_txn* txn) : ReadView(env, txn), owner_(env) {}
ReadTxn::~ReadTxn() { owner_->ReturnReader(txn_); }

// ---- writes ---------------------------------------------------------------

WriteTxn::~WriteTxn() {
  if (txn_ != nullptr) mdb_txn_abort(txn_);
}

absl::Status WriteTxn::Put(Table table, std::string_view key,
                           std::span<const uint8_t> value) {
  MDB_val k = ToVal(key);
  MDB_val v{value.size(), const_cast<uint8_t*>(value.data())};
  const int rc =
      mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v, 0);
  if (rc == 0) return absl::OkStatus();
  return LmdbError(
      absl::StrFormat("put of %d bytes into table %s", value.size(),
                      kTableNames[static_cast<size_t>(table)]),
      rc);
}

absl::StatusOr<std::span<uint8_t>> WriteTxn::Reserve(Table table,
                                                     std::string_view key,
                                                     size_t bytes) {
  MDB_val k = ToVal(key);
  MDB_val v{bytes, nullptr};
  const int rc = mdb_put(txn_, env_->dbi_[static_cast<size_t>(table)], &k, &v,
                         MDB_RESERVE | MDB_NOOVERWRITE);
  const std::string what =
      absl::StrFormat("reserve %d bytes in table %s", bytes,
                      kTableNames[static_cast<size_t>(table)]);
  if (rc == MDB_KEYEXIST) {
    return absl::AlreadyExistsError(what + ": the key is present");
  }
  if (rc != 0) return LmdbError(what, rc);
  return std::span<uint8_t>(static_cast<uint8_t*>(v.mv_data), bytes);
}

absl::StatusOr<bool> WriteTxn::Delete(Table table, std::string_view key) {
  MDB_val k = ToVal(key);
  const int rc =
      mdb_del(txn_, env_->dbi_[static_cast<size_t>(table)], &k, nullptr);
  if (rc == 0) return true;
  if (rc == MDB_NOTFOUND) return false;
  return LmdbError(absl::StrFormat("delete from table %s",
                                   kTableNames[static_cast<size_t>(table)]),
                   rc);
}

absl::StatusOr<std::unique_ptr<WriteTxn>> WriteTxn::Child() {
  MDB_txn* child = nullptr;
  if (const int rc = mdb_txn_begin(env_->env_, txn_, 0, &child); rc != 0) {
    return LmdbError("begin nested transaction", rc);
  }
  return std::unique_ptr<WriteTxn>(new WriteTxn(env_, child));
}

absl::Status WriteTxn::Commit() {
  MDB_txn* const txn = std::exchange(txn_, nullptr);
  const int rc = mdb_txn_commit(txn);
  return rc == 0 ? absl::OkStatus() : LmdbError("commit", rc);
}

// ---- environment ----------------------------------------------------------

absl::StatusOr<std::unique_ptr<Env>> Env::Open(const EnvOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(std::string identity,
                          DirectoryIdentity(options.directory));
  {
    MutexLock lock(&OpenMutex());
    if (!OpenDirectories().insert(identity).second) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "open environment %s: this process has it open already",
          options.directory));
    }
  }
  // From here on the destructor forgets the directory again.
  std::unique_ptr<Env> env(new Env);
  env->directory_ = options.directory;
  env->identity_ = std::move(identity);

  uint64_t map_bytes = options.map_bytes;
  if (map_bytes == 0) {
    TORPOR_ASSIGN_OR_RETURN(map_bytes, DefaultMapBytes(options.directory));
  }
  map_bytes = map_bytes / 4096 * 4096;

  const std::string what =
      absl::StrFormat("open environment %s", options.directory);
  if (const int rc = mdb_env_create(&env->env_); rc != 0) {
    return LmdbError(what, rc);
  }
  unsigned flags = MDB_NOTLS | MDB_NORDAHEAD;
  if (options.no_sync_for_test) flags |= MDB_NOSYNC;
  for (const int rc :
       {mdb_env_set_maxdbs(env->env_, kTableCount),
        mdb_env_set_maxreaders(env->env_, kMaxReaders),
        mdb_env_set_mapsize(env->env_, map_bytes),
        mdb_env_open(env->env_, options.directory.c_str(), flags, 0600)}) {
    if (rc != 0) return LmdbError(what, rc);
  }
  mdb_reader_check(env->env_, nullptr);
  TORPOR_RETURN_IF_ERROR(
      RestoreLength(options.directory + "/data.mdb", env->Info().used_bytes));

  MDB_txn* txn = nullptr;
  if (const int rc = mdb_txn_begin(env->env_, nullptr, 0, &txn); rc != 0) {
    return LmdbError(what, rc);
  }
  for (size_t i = 0; i < kTableCount; ++i) {
    if (const int rc =
            mdb_dbi_open(txn, kTableNames[i], MDB_CREATE, &env->dbi_[i]);
        rc != 0) {
      mdb_txn_abort(txn);
      return LmdbError(absl::StrFormat("open table %s", kTableNames[i]), rc);
    }
  }
  if (const int rc = mdb_txn_commit(txn); rc != 0) return LmdbError(what, rc);

  const std::filesystem::path dir =
      std::filesystem::absolute(options.directory).lexically_normal();
  TORPOR_RETURN_IF_ERROR(SyncDirectory(dir));
  TORPOR_RETURN_IF_ERROR(SyncDirectory(dir.has_filename()
                                           ? dir.parent_path()
                                           : dir.parent_path().parent_path()));
  return env;
}

Env::~Env() {
  {
    MutexLock lock(&mu_);
    for (MDB_txn* txn : idle_readers_) mdb_txn_abort(txn);
    idle_readers_.clear();
  }
  if (env_ != nullptr) mdb_env_close(env_);
  MutexLock lock(&OpenMutex());
  OpenDirectories().erase(identity_);
}

absl::StatusOr<std::unique_ptr<ReadTxn>> Env::BeginRead() {
  MDB_txn* txn = nullptr;
  {
    MutexLock lock(&mu_);
    if (!idle_readers_.empty()) {
      txn = idle_readers_.back();
      idle_readers_.pop_back();
    }
  }
  if (txn != nullptr) {
    if (const int rc = mdb_txn_renew(txn); rc != 0) {
      mdb_txn_abort(txn);
      return LmdbError("renew read transaction", rc);
    }
  } else if (const int rc = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn);
             rc != 0) {
    return LmdbError("begin read transaction", rc);
  }
  return std::unique_ptr<ReadTxn>(new ReadTxn(this, txn));
}

void Env::ReturnReader(MDB_txn* txn) {
  mdb_txn_reset(txn);
  MutexLock lock(&mu_);
  idle_readers_.push_back(txn);
}

absl::StatusOr<std::unique_ptr<WriteTxn>> Env::BeginWrite() {
  MDB_txn* txn = nullptr;
  if (const int rc = mdb_txn_begin(env_, nullptr, 0, &txn); rc != 0) {
    return LmdbError("begin write transaction", rc);
  }
  return std::unique_ptr<WriteTxn>(new WriteTxn(this, txn));
}

int Env::CheckReaders() {
  int dead = 0;
  mdb_reader_check(env_, &dead);
  return dead;
}

EnvInfo Env::Info() const {
  MDB_envinfo info;
  MDB_stat stat;
  mdb_env_info(env_, &info);
  mdb_env_stat(env_, &stat);
  return {.map_bytes = info.me_mapsize,
          .used_bytes = (info.me_last_pgno + 1) * uint64_t{stat.ms_psize},
          .readers = info.me_numreaders};
}

void Env::WillNeed(std::span<const uint8_t> value) {
  if (value.empty()) return;
  constexpr uintptr_t kMask = 4096 - 1;
  const auto begin = reinterpret_cast<uintptr_t>(value.data()) & ~kMask;
  const auto end = reinterpret_cast<uintptr_t>(value.data()) + value.size();
  // Only a hint: its failure changes nothing but the speed.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

}  // namespace torpor::store
