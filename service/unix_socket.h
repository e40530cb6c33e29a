// SPDX-License-Identifier: Apache-2.0
//
// A unix socket path that this process may bind. gRPC unlinks whatever stands
// at a path it binds, live or not, so the path is taken first: a lock beside
// it, and a probe of who answers.

#ifndef TORPOR_SERVICE_UNIX_SOCKET_H_
#define TORPOR_SERVICE_UNIX_SOCKET_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace torpor::service {

// The number of a group that is given by name or number. kInvalidArgument when
// there is none of that name.
absl::StatusOr<gid_t> GroupNumber(const std::string& group);

class UnixSocketPath {
 public:
  // Takes the path; its parent directory is created when absent, with mode
  // 0700, or 0750 for `group`. kInvalidArgument for a path longer than a socket
  // address holds or not absolute; kFailedPrecondition when somebody else
  // listens there, or what stands there is no socket, or others may write the
  // parent, or this process may not give the parent to the group.
  static absl::StatusOr<std::unique_ptr<UnixSocketPath>> Take(
      const std::string& path, std::optional<gid_t> group = std::nullopt);
  // Removes the socket (if it is there) and lets the path go.
  ~UnixSocketPath();
  UnixSocketPath(const UnixSocketPath&) = delete;
  UnixSocketPath& operator=(const UnixSocketPath&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  // Lets the group of Take connect to the socket (mode 0660); does nothing
  // without one. kFailedPrecondition when this process may not.
  // REQUIRES: the socket is bound.
  [[nodiscard]] absl::Status Share() const;

 private:
  UnixSocketPath(std::string path, std::optional<gid_t> group, int lock_fd)
      : path_(std::move(path)), group_(group), lock_fd_(lock_fd) {}

  const std::string path_;
  const std::optional<gid_t> group_;
  const int lock_fd_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_UNIX_SOCKET_H_
