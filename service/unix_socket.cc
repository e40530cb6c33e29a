// SPDX-License-Identifier: Apache-2.0

#include "service/unix_socket.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

// The group first: nobody else's group is let in, not even for a moment.
absl::Status GiveToGroup(const std::string& path, gid_t group, mode_t mode) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0 ||
      (st.st_gid != group &&
       lchown(path.c_str(), static_cast<uid_t>(-1), group) != 0) ||
      chmod(path.c_str(), mode) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("socket_group: give %s to group %d: %s", path, group,
                        std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status CheckParent(const std::string& path, std::optional<gid_t> group) {
  const std::string parent = std::filesystem::path(path).parent_path();
  if (mkdir(parent.c_str(), 0700) == 0) {
    if (group.has_value()) {
      const absl::Status given = GiveToGroup(parent, *group, 0750);
      // The next start would take it for one that somebody made so.
      if (!given.ok()) rmdir(parent.c_str());
      TORPOR_RETURN_IF_ERROR(given);
    }
  } else if (errno != EEXIST) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "create socket directory %s: %s", parent, std::strerror(errno)));
  }
  struct stat st;
  if (stat(parent.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("socket directory %s: not a directory", parent));
  }
  // A sticky directory (such as /tmp) lets nobody replace another's socket;
  // the socket itself is its owner's alone, and the group's where there is one.
  if ((st.st_mode & 022) != 0 && (st.st_mode & S_ISVTX) == 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("socket directory %s: others may write it (mode %04o), "
                        "wanted 0700, or 0750 with socket_group",
                        parent, st.st_mode & 07777));
  }
  return absl::OkStatus();
}

// Whether a server answers at the path.
bool Answers(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  struct sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const bool answers = connect(fd, reinterpret_cast<const sockaddr*>(&address),
                               sizeof(address)) == 0;
  close(fd);
  return answers;
}

// A descriptor that holds the lock file beside a socket.
absl::StatusOr<int> TakeLock(const std::string& path) {
  const std::string lock_path = path + ".lock";
  while (true) {
    const int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
      return absl::FailedPreconditionError(
          absl::StrFormat("open %s: %s", lock_path, std::strerror(errno)));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      close(fd);
      return absl::FailedPreconditionError(
          absl::StrFormat("socket %s: another daemon serves it", path));
    }
    // Its last holder may have removed it between our open and our lock.
    struct stat ours;
    struct stat there;
    if (fstat(fd, &ours) == 0 && stat(lock_path.c_str(), &there) == 0 &&
        ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
      return fd;
    }
    close(fd);
  }
}

}  // namespace

absl::StatusOr<gid_t> GroupNumber(const std::string& group) {
  if (const struct group* entry = getgrnam(group.c_str())) {
    return entry->gr_gid;
  }
  gid_t number = 0;
  // The largest number means "as it is" to chown.
  if (absl::SimpleAtoi(group, &number) && number != static_cast<gid_t>(-1)) {
    return number;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "socket_group: got '%s', wanted a group's name or number", group));
}

absl::StatusOr<std::unique_ptr<UnixSocketPath>> UnixSocketPath::Take(
    const std::string& path, std::optional<gid_t> group) {
  constexpr size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  if (path.empty() || path[0] != '/' || path.size() > kLongest) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "socket path '%s': %d bytes, wanted an absolute path of at most %d",
        path, path.size(), kLongest));
  }
  TORPOR_RETURN_IF_ERROR(CheckParent(path, group));
  TORPOR_ASSIGN_OR_RETURN(const int fd, TakeLock(path));
  std::unique_ptr<UnixSocketPath> taken(new UnixSocketPath(path, group, fd));
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) return taken;
  if (!S_ISSOCK(st.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("socket %s: something else stands there", path));
  }
  if (Answers(path)) {
    return absl::FailedPreconditionError(
        absl::StrFormat("socket %s: a server without our lock answers", path));
  }
  // Stale: its server is gone.
  unlink(path.c_str());
  return taken;
}

absl::Status UnixSocketPath::Share() const {
  if (!group_.has_value()) return absl::OkStatus();
  return GiveToGroup(path_, *group_, 0660);
}

UnixSocketPath::~UnixSocketPath() {
  struct stat st;
  if (lstat(path_.c_str(), &st) == 0 && S_ISSOCK(st.st_mode) &&
      !Answers(path_)) {
    unlink(path_.c_str());
  }
  unlink((path_ + ".lock").c_str());
  close(lock_fd_);
}

}  // namespace torpor::service
