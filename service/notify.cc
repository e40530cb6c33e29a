// SPDX-License-Identifier: Apache-2.0

#include "service/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "service/unique_fd.h"

namespace torpor::service {

absl::Status Notify(const std::string& socket, std::string_view state) {
  if (socket.empty()) return absl::OkStatus();
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if ((socket[0] != '/' && socket[0] != '@') ||
      socket.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "NOTIFY_SOCKET: got '%s', wanted a path or @name of at most %d bytes",
        socket, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, socket.data(), socket.size());
  if (socket[0] == '@') address.sun_path[0] = '\0';
  const auto n =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || sendto(fd.get(), state.data(), state.size(), MSG_NOSIGNAL,
                            reinterpret_cast<const sockaddr*>(&address),
                            n) != static_cast<ssize_t>(state.size())) {
    return absl::UnavailableError(
        absl::StrFormat("NOTIFY_SOCKET %s: %s", socket, std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace torpor::service
