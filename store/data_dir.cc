// SPDX-License-Identifier: Apache-2.0

#include "store/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::store {
namespace {

constexpr const char* kMarkName = "/torpor.data";

// LMDB's two meta pages: all that it writes before the first commit.
constexpr int64_t kMetaBytes = 2 * 4096;

std::string ReadAll(int fd) {
  std::array<char, 512> text{};
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  return n > 0 ? std::string(text.data(), static_cast<size_t>(n)) : "";
}

std::string HolderText() {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  return absl::StrFormat("pid %d on host %s\n", getpid(), host.data());
}

absl::Status MakePrivateDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "create data directory %s: %s", path, std::strerror(errno)));
  }
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("data directory %s: not a directory", path));
  }
  if ((st.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "data directory %s: has mode %04o, wanted 0700 (KV rows are prompt "
        "text); chmod 0700 it",
        path, st.st_mode & 07777));
  }
  return absl::OkStatus();
}

absl::StatusOr<struct statvfs> FileSystem(const std::string& path) {
  struct statvfs fs;
  if (statvfs(path.c_str(), &fs) != 0) {
    return absl::InternalError(
        absl::StrFormat("statvfs %s: %s", path, std::strerror(errno)));
  }
  return fs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataDir>> DataDir::Acquire(
    const std::string& path) {
  TORPOR_RETURN_IF_ERROR(MakePrivateDirectory(path));
  const std::string lock_path = path + "/torpor.lock";
  const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("open %s: %s", lock_path, std::strerror(errno)));
  }
  std::unique_ptr<DataDir> dir(new DataDir(path, fd));
  // An open-file-description lock: it holds against this process too, and
  // works between containers that share the volume whatever their pids.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "data directory %s: in use by %s", path,
        errno == EAGAIN || errno == EACCES ? ReadAll(fd)
                                           : std::strerror(errno)));
  }
  const std::string text = HolderText();
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) !=
                                   static_cast<ssize_t>(text.size())) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("write %s: %s", lock_path, std::strerror(errno)));
  }
  return dir;
}

DataDir::~DataDir() { close(lock_fd_); }

absl::Status DataDir::CheckData() const {
  struct stat st;
  const bool marked = stat((path_ + kMarkName).c_str(), &st) == 0;
  const std::string data_path = path_ + "/data.mdb";
  const bool there = stat(data_path.c_str(), &st) == 0;
  if (!marked) {
    if (!there || st.st_size > kMetaBytes) return absl::OkStatus();
    if (unlink(data_path.c_str()) == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrFormat(
        "data directory %s: data.mdb of a start that did not finish cannot be "
        "removed: %s",
        path_, std::strerror(errno)));
  }
  if (there && st.st_size > 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "data directory %s: data.mdb is %s, yet a store was here; restore it "
      "from a backup, or delete the directory to begin anew",
      path_, there ? "empty" : "gone"));
}

absl::Status DataDir::MarkData() const {
  const std::string mark_path = path_ + kMarkName;
  struct stat st;
  if (stat(mark_path.c_str(), &st) == 0) return absl::OkStatus();
  constexpr std::string_view kText = "A torpor store lives here.\n";
  const int fd = open(mark_path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  bool ok = fd >= 0 &&
            write(fd, kText.data(), kText.size()) ==
                static_cast<ssize_t>(kText.size()) &&
            fsync(fd) == 0;
  if (fd >= 0) close(fd);
  const int dir_fd = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ok = ok && dir_fd >= 0 && fsync(dir_fd) == 0;
  if (dir_fd >= 0) close(dir_fd);
  return ok ? absl::OkStatus()
            : absl::ResourceExhaustedError(absl::StrFormat(
                  "write %s: %s", mark_path, std::strerror(errno)));
}

absl::StatusOr<uint64_t> DataDir::FreeBytes() const {
  TORPOR_ASSIGN_OR_RETURN(const struct statvfs fs, FileSystem(path_));
  return uint64_t{fs.f_bavail} * fs.f_frsize;
}

absl::StatusOr<uint64_t> DataDir::DiskBytes() const {
  TORPOR_ASSIGN_OR_RETURN(const struct statvfs fs, FileSystem(path_));
  return uint64_t{fs.f_blocks} * fs.f_frsize;
}

}  // namespace torpor::store
