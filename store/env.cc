// SPDX-License-Identifier: Apache-2.0

#include "store/env.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/lmdb_error.h"

namespace torpor::store {
namespace {

// How long a transaction waits for an environment that is being opened again,
// and that for the transactions which are open.
constexpr auto kReopenTimeout = std::chrono::seconds(10);

// Read transactions are short, but a few hundred may run at once.
constexpr unsigned kMaxReaders = 1024;

#ifdef TORPOR_SANITIZED
constexpr uint64_t kDefaultMapCap = uint64_t{4} << 30;
#else
constexpr uint64_t kDefaultMapCap = uint64_t{1} << 46;
#endif

constexpr size_t kMemoryPage = 4096;

// The pages of the map that a value lies on.
std::span<uint8_t> PagesOf(std::span<const uint8_t> value) {
  if (value.empty()) return {};
  const size_t before = reinterpret_cast<uintptr_t>(value.data()) % kMemoryPage;
  const size_t n_pages =
      (before + value.size() + kMemoryPage - 1) / kMemoryPage;
  // Nothing is written: the calls that ask about pages take no const.
  return {const_cast<uint8_t*>(value.data()) - before, n_pages * kMemoryPage};
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

  env->map_bytes_ = options.map_bytes;
  env->no_sync_ = options.no_sync_for_test;
  if (env->map_bytes_ == 0) {
    TORPOR_ASSIGN_OR_RETURN(env->map_bytes_,
                            DefaultMapBytes(options.directory));
  }
  env->map_bytes_ = env->map_bytes_ / 4096 * 4096;
  TORPOR_RETURN_IF_ERROR(env->OpenLmdb());

  const std::filesystem::path dir =
      std::filesystem::absolute(options.directory).lexically_normal();
  TORPOR_RETURN_IF_ERROR(SyncDirectory(dir));
  TORPOR_RETURN_IF_ERROR(SyncDirectory(dir.has_filename()
                                           ? dir.parent_path()
                                           : dir.parent_path().parent_path()));
  return env;
}

absl::Status Env::OpenLmdb() {
  const std::string what = absl::StrFormat("open environment %s", directory_);
  if (const int rc = mdb_env_create(&env_); rc != 0) {
    return LmdbError(what, rc);
  }
  unsigned flags = MDB_NOTLS | MDB_NORDAHEAD;
  if (no_sync_) flags |= MDB_NOSYNC;
  for (const int rc : {mdb_env_set_maxdbs(env_, kTableCount),
                       mdb_env_set_maxreaders(env_, kMaxReaders),
                       mdb_env_set_mapsize(env_, map_bytes_),
                       mdb_env_open(env_, directory_.c_str(), flags, 0600)}) {
    if (rc != 0) return LmdbError(what, rc);
  }
  mdb_reader_check(env_, nullptr);
  TORPOR_RETURN_IF_ERROR(
      RestoreLength(directory_ + "/data.mdb", ReadInfo().used_bytes));

  MDB_txn* txn = nullptr;
  if (const int rc = mdb_txn_begin(env_, nullptr, 0, &txn); rc != 0) {
    return LmdbError(what, rc);
  }
  for (size_t i = 0; i < kTableCount; ++i) {
    if (const int rc = mdb_dbi_open(txn, kTableNames[i], MDB_CREATE, &dbi_[i]);
        rc != 0) {
      mdb_txn_abort(txn);
      return LmdbError(absl::StrFormat("open table %s", kTableNames[i]), rc);
    }
  }
  if (const int rc = mdb_txn_commit(txn); rc != 0) return LmdbError(what, rc);
  return absl::OkStatus();
}

void Env::CloseLmdb() {
  {
    MutexLock lock(&mu_);
    for (MDB_txn* txn : idle_readers_) mdb_txn_abort(txn);
    idle_readers_.clear();
  }
  if (env_ != nullptr) mdb_env_close(std::exchange(env_, nullptr));
}

Env::~Env() {
  CloseLmdb();
  MutexLock lock(&OpenMutex());
  OpenDirectories().erase(identity_);
}

uint64_t Env::generation() const {
  MutexLock lock(&mu_);
  return generation_;
}

absl::Status Env::Enter() {
  const auto deadline = std::chrono::steady_clock::now() + kReopenTimeout;
  for (;;) {
    uint64_t failed = 0;
    {
      MutexLock lock(&mu_);
      while (reopening_) {
        if (!changed_.WaitUntil(&mu_, deadline)) {
          return absl::UnavailableError(
              "environment: being opened again after a failed write");
        }
      }
      if (env_ != nullptr) {
        ++open_txns_;
        return absl::OkStatus();
      }
      failed = generation_;
    }
    TORPOR_RETURN_IF_ERROR(Reopen(failed));
  }
}

void Env::Leave() {
  MutexLock lock(&mu_);
  if (--open_txns_ == 0) changed_.NotifyAll();
}

absl::Status Env::Reopen(uint64_t generation) {
  const auto deadline = std::chrono::steady_clock::now() + kReopenTimeout;
  {
    MutexLock lock(&mu_);
    while (reopening_) {
      if (!changed_.WaitUntil(&mu_, deadline)) break;
    }
    if (generation_ != generation) return absl::OkStatus();
    if (reopening_) {
      return absl::UnavailableError("environment: being opened again");
    }
    reopening_ = true;
    while (open_txns_ > 0) {
      if (!changed_.WaitUntil(&mu_, deadline)) {
        reopening_ = false;
        changed_.NotifyAll();
        return absl::UnavailableError(absl::StrFormat(
            "environment: cannot be opened again, %d transactions are open",
            open_txns_));
      }
    }
  }
  CloseLmdb();
  absl::Status status = OpenLmdb();
  if (!status.ok()) CloseLmdb();
  MutexLock lock(&mu_);
  reopening_ = false;
  ++generation_;
  changed_.NotifyAll();
  return status;
}

absl::StatusOr<std::unique_ptr<ReadTxn>> Env::BeginRead() {
  for (bool again = false;; again = true) {
    const uint64_t before = generation();
    TORPOR_RETURN_IF_ERROR(Enter());
    MDB_txn* txn = nullptr;
    {
      MutexLock lock(&mu_);
      if (!idle_readers_.empty()) {
        txn = idle_readers_.back();
        idle_readers_.pop_back();
      }
    }
    int rc = 0;
    if (txn != nullptr) {
      rc = mdb_txn_renew(txn);
      if (rc != 0) mdb_txn_abort(txn);
    } else {
      rc = mdb_txn_begin(env_, nullptr, MDB_RDONLY, &txn);
    }
    if (rc == 0) return std::unique_ptr<ReadTxn>(new ReadTxn(this, txn));
    Leave();
    if (rc != MDB_PANIC || again) {
      return LmdbError("begin read transaction", rc);
    }
    TORPOR_RETURN_IF_ERROR(Reopen(before));
  }
}

void Env::ReturnReader(MDB_txn* txn) {
  mdb_txn_reset(txn);
  MutexLock lock(&mu_);
  idle_readers_.push_back(txn);
}

absl::StatusOr<std::unique_ptr<WriteTxn>> Env::BeginWrite() {
  for (bool again = false;; again = true) {
    const uint64_t before = generation();
    TORPOR_RETURN_IF_ERROR(Enter());
    MDB_txn* txn = nullptr;
    const int rc = mdb_txn_begin(env_, nullptr, 0, &txn);
    if (rc == 0) {
      return std::unique_ptr<WriteTxn>(
          new WriteTxn(this, txn, /*nested=*/false));
    }
    Leave();
    if (rc != MDB_PANIC || again) {
      return LmdbError("begin write transaction", rc);
    }
    TORPOR_RETURN_IF_ERROR(Reopen(before));
  }
}

absl::Status Env::EnsureRoom(uint64_t bytes) {
  // Blocks are asked for in larger steps than commits need them.
  constexpr uint64_t kStep = uint64_t{4} << 20;
  TORPOR_RETURN_IF_ERROR(Enter());
  const uint64_t used = ReadInfo().used_bytes;
  int fd = -1;
  mdb_env_get_fd(env_, &fd);
  Leave();
  const uint64_t end = used + bytes;
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && end > limit.rlim_cur) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "data.mdb: %d bytes used, %d more wanted, the process may write files "
        "of %d bytes",
        used, bytes, limit.rlim_cur));
  }
  if (end <= allocated_end_) return absl::OkStatus();
  const auto allocate = [&](uint64_t to) {
    return fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(used),
                     static_cast<off_t>(to - used)) == 0
               ? 0
               : errno;
  };
  uint64_t to = end + kStep;
  int error = allocate(to);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    to = end;
    error = allocate(to);
  }
  // Not every file system can; then commits find out by themselves.
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("data.mdb: %d bytes used, no room for %d more: %s",
                        used, bytes, std::strerror(error)));
  }
  allocated_end_ = to;
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Env::ReusableBytes() {
  // Number of LMDB's table of free pages: per transaction that freed them a
  // list of page numbers, its length first.
  constexpr MDB_dbi kFreeDbi = 0;
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, BeginRead());
  // A list is free for the second transaction after its own.
  const size_t next = mdb_txn_id(txn->txn_) + 1;
  MDB_cursor* raw = nullptr;
  if (const int rc = mdb_cursor_open(txn->txn_, kFreeDbi, &raw); rc != 0) {
    return LmdbError("scan of the free pages", rc);
  }
  const std::unique_ptr<MDB_cursor, decltype(&mdb_cursor_close)> cursor(
      raw, &mdb_cursor_close);
  MDB_val k;
  MDB_val v;
  uint64_t pages = 0;
  int rc = mdb_cursor_get(raw, &k, &v, MDB_FIRST);
  for (; rc == 0; rc = mdb_cursor_get(raw, &k, &v, MDB_NEXT)) {
    size_t id = 0;
    size_t n = 0;
    std::memcpy(&id, k.mv_data, sizeof(id));
    std::memcpy(&n, v.mv_data, sizeof(n));
    if (id + 2 <= next) pages += n;
  }
  if (rc != MDB_NOTFOUND) return LmdbError("scan of the free pages", rc);
  return pages * 4096;
}

int Env::CheckReaders() {
  if (!Enter().ok()) return 0;
  int dead = 0;
  mdb_reader_check(env_, &dead);
  Leave();
  return dead;
}

EnvInfo Env::Info() {
  if (!Enter().ok()) return {};
  const EnvInfo info = ReadInfo();
  Leave();
  return info;
}

EnvInfo Env::ReadInfo() const {
  MDB_envinfo info;
  MDB_stat stat;
  mdb_env_info(env_, &info);
  mdb_env_stat(env_, &stat);
  const uint64_t used = (info.me_last_pgno + 1) * uint64_t{stat.ms_psize};
  const uint64_t allocated_end = allocated_end_;
  return {.map_bytes = info.me_mapsize,
          .used_bytes = used,
          .allocated_bytes = allocated_end > used ? allocated_end - used : 0,
          .readers = info.me_numreaders};
}

bool Env::Resident(std::span<const uint8_t> value) {
  constexpr size_t kPages = 256;
  std::array<uint8_t, kPages> resident;
  for (std::span<uint8_t> left = PagesOf(value); !left.empty();) {
    const auto some = left.first(std::min(left.size(), kPages * kMemoryPage));
    const auto n_pages = static_cast<ptrdiff_t>(some.size() / kMemoryPage);
    // Fails only where nothing is mapped.
    if (mincore(some.data(), some.size(), resident.data()) != 0 ||
        !std::all_of(resident.begin(), resident.begin() + n_pages,
                     [](uint8_t page) { return (page & 1) != 0; })) {
      return false;
    }
    left = left.subspan(some.size());
  }
  return true;
}

void Env::WillNeed(std::span<const uint8_t> value) {
  const std::span<uint8_t> pages = PagesOf(value);
  if (pages.empty()) return;
  // Only a hint: its failure changes nothing but the speed.
  (void)madvise(pages.data(), pages.size(), MADV_WILLNEED);
}

}  // namespace torpor::store
