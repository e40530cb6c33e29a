// SPDX-License-Identifier: Apache-2.0

#include "bench/raw_io.h"

#include <fcntl.h>
#include <lmdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "store/record.h"

namespace torpor::bench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

absl::Status Failed(const std::string& what, int error) {
  return absl::UnknownError(
      absl::StrFormat("%s: %s", what, std::strerror(error)));
}

absl::Status Failed(const std::string& what, const char* why) {
  return absl::UnknownError(absl::StrFormat("%s: %s", what, why));
}

// LMDB wants to know how many named tables may be opened.
constexpr unsigned kMaxTables = 16;

// Where the mapping that holds this address begins; the whole file is mapped
// from its first byte on.
uintptr_t MappingOf(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    char dash = 0;
    std::istringstream in(line);
    in >> std::hex >> begin >> dash >> end;
    if (begin <= address && address < end) return begin;
  }
  return 0;
}

struct PlacedRecord {
  store::RecordHeader header;
  // Of its parts.
  std::vector<FileRange> parts;
};

std::vector<FileRange> SlotMajor(const std::vector<PlacedRecord>& records) {
  // (slot, record) in order, since records come in order.
  std::map<uint32_t, std::vector<FileRange>> by_slot;
  for (const PlacedRecord& record : records) {
    for (const store::SectionEntry& section : record.header.sections) {
      if (section.kind != store::SectionKind::kRows) continue;
      uint64_t at = section.offset;
      const uint64_t end = section.offset + section.bytes;
      while (at < end) {
        const FileRange& part = record.parts[at / store::kPartBytes];
        const uint64_t inside = at % store::kPartBytes;
        const uint64_t n =
            std::min<uint64_t>(end - at, store::kPartBytes - inside);
        by_slot[section.id].push_back(
            {part.begin + inside, part.begin + inside + n});
        at += n;
      }
    }
  }
  std::vector<FileRange> ranges;
  for (const auto& [slot, some] : by_slot) {
    ranges.insert(ranges.end(), some.begin(), some.end());
  }
  return ranges;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

absl::Status RawWrite(const std::string& path, std::span<const uint8_t> bytes) {
  const Descriptor fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  bool ok = fd.get() >= 0;
  for (size_t at = 0; ok && at < bytes.size(); at += kMiB) {
    const size_t n = std::min(kMiB, bytes.size() - at);
    ok = write(fd.get(), &bytes[at], n) == static_cast<ssize_t>(n);
  }
  if (ok && fdatasync(fd.get()) == 0) return absl::OkStatus();
  return Failed("write " + path, errno);
}

absl::Status RawSocketCopy(std::span<const uint8_t> bytes,
                           std::span<uint8_t> out) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Failed("socketpair", errno);
  }
  const Descriptor from(ends[0]);
  const Descriptor to(ends[1]);
  size_t received = 0;
  std::thread reader([&] {
    while (received < out.size()) {
      const ssize_t n =
          read(to.get(), &out[received], std::min(kMiB, out.size() - received));
      if (n <= 0) return;
      received += static_cast<size_t>(n);
    }
  });
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        write(from.get(), &bytes[sent], std::min(kMiB, bytes.size() - sent));
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
  shutdown(from.get(), SHUT_WR);
  reader.join();
  if (received == bytes.size()) return absl::OkStatus();
  return Failed("copy through a socket", "ended early");
}

absl::StatusOr<std::vector<FileRange>> RowRanges(const std::string& data_dir) {
  MDB_env* env = nullptr;
  int rc = mdb_env_create(&env);
  if (rc != 0) return Failed("lmdb", mdb_strerror(rc));
  const std::unique_ptr<MDB_env, void (*)(MDB_env*)> closes(env, mdb_env_close);
  MDB_txn* txn = nullptr;
  MDB_dbi dbi = 0;
  MDB_cursor* cursor = nullptr;
  rc = mdb_env_set_maxdbs(env, kMaxTables);
  if (rc == 0) {
    rc = mdb_env_open(env, data_dir.c_str(), MDB_RDONLY | MDB_NOLOCK, 0);
  }
  if (rc == 0) rc = mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (rc == 0) rc = mdb_dbi_open(txn, "parts", 0, &dbi);
  if (rc == 0) rc = mdb_cursor_open(txn, dbi, &cursor);
  std::vector<PlacedRecord> records;
  absl::Status status;
  uintptr_t map_begin = 0;
  MDB_val key;
  MDB_val value;
  while (rc == 0 && status.ok() &&
         (rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
    const auto* bytes = static_cast<const uint8_t*>(value.mv_data);
    const auto at = reinterpret_cast<uintptr_t>(bytes);
    if (map_begin == 0) map_begin = MappingOf(at);
    const auto* name = static_cast<const uint8_t*>(key.mv_data);
    // Part 0 of a record holds its directory.
    if (name[key.mv_size - 1] == 0) {
      absl::StatusOr<store::RecordHeader> header =
          store::DecodeRecordPrefix({bytes, value.mv_size});
      status = header.status();
      if (status.ok()) records.push_back({*std::move(header), {}});
    }
    if (status.ok()) {
      records.back().parts.push_back(
          {at - map_begin, at - map_begin + value.mv_size});
    }
  }
  if (cursor != nullptr) mdb_cursor_close(cursor);
  if (txn != nullptr) mdb_txn_abort(txn);
  TORPOR_RETURN_IF_ERROR(status);
  if (rc != MDB_NOTFOUND) return Failed("lmdb " + data_dir, mdb_strerror(rc));
  return SlotMajor(records);
}

absl::StatusOr<uint64_t> ReachablePageBytes(const std::string& data_dir) {
  MDB_env* env = nullptr;
  int rc = mdb_env_create(&env);
  if (rc != 0) return Failed("lmdb", mdb_strerror(rc));
  const std::unique_ptr<MDB_env, void (*)(MDB_env*)> closes(env, mdb_env_close);
  MDB_txn* txn = nullptr;
  MDB_dbi names = 0;
  MDB_cursor* cursor = nullptr;
  MDB_stat stat;
  rc = mdb_env_set_maxdbs(env, kMaxTables);
  if (rc == 0) {
    rc = mdb_env_open(env, data_dir.c_str(), MDB_RDONLY | MDB_NOLOCK, 0);
  }
  if (rc == 0) rc = mdb_txn_begin(env, nullptr, MDB_RDONLY, &txn);
  if (rc == 0) rc = mdb_dbi_open(txn, nullptr, 0, &names);
  if (rc == 0) rc = mdb_stat(txn, names, &stat);
  if (rc == 0) rc = mdb_cursor_open(txn, names, &cursor);
  constexpr uint64_t kHeadPages = 2;
  uint64_t bytes = 0;
  const auto add = [&] {
    bytes +=
        (stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) *
        stat.ms_psize;
  };
  if (rc == 0) {
    bytes = kHeadPages * stat.ms_psize;
    add();
  }
  MDB_val key;
  // The unnamed table's keys are the tables' names.
  while (rc == 0 &&
         (rc = mdb_cursor_get(cursor, &key, nullptr, MDB_NEXT)) == 0) {
    const std::string name(static_cast<const char*>(key.mv_data), key.mv_size);
    MDB_dbi table = 0;
    rc = mdb_dbi_open(txn, name.c_str(), 0, &table);
    if (rc == 0) rc = mdb_stat(txn, table, &stat);
    if (rc == 0) add();
  }
  if (cursor != nullptr) mdb_cursor_close(cursor);
  if (txn != nullptr) mdb_txn_abort(txn);
  if (rc != MDB_NOTFOUND) return Failed("lmdb " + data_dir, mdb_strerror(rc));
  return bytes;
}

absl::Status RawRead(const std::string& path, std::span<const FileRange> ranges,
                     std::span<uint8_t> buffer) {
  const Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  for (const FileRange& range : ranges) {
    const size_t n = range.end - range.begin;
    if (fd.get() < 0 || n > buffer.size() ||
        pread(fd.get(), buffer.data(), n, static_cast<off_t>(range.begin)) !=
            static_cast<ssize_t>(n)) {
      return Failed("read " + path, errno);
    }
    buffer = buffer.subspan(n);
  }
  return absl::OkStatus();
}

}  // namespace torpor::bench
