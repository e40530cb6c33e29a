// SPDX-License-Identifier: Apache-2.0
//
// A unix socket path that this process may bind. gRPC unlinks whatever stands
// at a path it binds, live or not, so the path is taken first: a lock beside
// it, and a probe of who answers.

#ifndef TORPOR_SERVICE_UNIX_SOCKET_H_
#define TORPOR_SERVICE_UNIX_SOCKET_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace torpor::service {

class UnixSocketPath {
 public:
  // Takes the path; its parent directory is created with mode 0700 when
  // absent. kInvalidArgument for a path longer than a socket address holds or
  // not absolute; kFailedPrecondition when somebody else listens there, or
  // what stands there is no socket, or the parent is open to others.
  static absl::StatusOr<std::unique_ptr<UnixSocketPath>> Take(
      const std::string& path);
  // Removes the socket (if it is there) and lets the path go.
  ~UnixSocketPath();
  UnixSocketPath(const UnixSocketPath&) = delete;
  UnixSocketPath& operator=(const UnixSocketPath&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UnixSocketPath(std::string path, int lock_fd)
      : path_(std::move(path)), lock_fd_(lock_fd) {}

  const std::string path_;
  const int lock_fd_;
};

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_UNIX_SOCKET_H_
