// SPDX-License-Identifier: Apache-2.0

#include "service/fd_socket.h"

#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::service {
namespace {

constexpr size_t kMostDescriptors = 4;
constexpr int kBacklog = 64;

std::optional<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return std::nullopt;
  }
  std::memcpy(address.sun_path, path.c_str(), path.size());
  return address;
}

absl::Status TooLong(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrFormat("socket path '%s': %d bytes, wanted at most %d", path,
                      path.size(), sizeof(sockaddr_un::sun_path) - 1));
}

absl::Status Failed(const char* what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrFormat("%s %s: %s", what, path, std::strerror(errno)));
}

// Descriptors of a control message, each owned from here on.
std::vector<UniqueFd> TakeDescriptors(msghdr* message) {
  std::vector<UniqueFd> out;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr;
       c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < n; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      out.emplace_back(fd);
    }
  }
  return out;
}

}  // namespace

std::string FdSocketPath(const std::string& listen_path) {
  return listen_path + ".fd";
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  const std::optional<sockaddr_un> address = AddressOf(path);
  if (!address.has_value()) return TooLong(path);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Failed("socket for", path);
  // The file takes the socket's mode: never wider, even for a moment.
  if (fchmod(fd.get(), 0600) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
           sizeof(*address)) != 0) {
    return Failed("bind", path);
  }
  if (listen(fd.get(), kBacklog) != 0) return Failed("listen on", path);
  return fd;
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path) {
  const std::optional<sockaddr_un> address = AddressOf(path);
  if (!address.has_value()) return TooLong(path);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Failed("socket for", path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address),
              sizeof(*address)) != 0) {
    return Failed("connect to", path);
  }
  return fd;
}

absl::StatusOr<ucred> PeerOf(int fd) {
  ucred peer = {};
  socklen_t n = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) != 0) {
    return absl::UnavailableError(
        absl::StrFormat("SO_PEERCRED: %s", std::strerror(errno)));
  }
  return peer;
}

bool PeerInGroup(int fd, const ucred& peer, gid_t group) {
  if (peer.gid == group) return true;
  // The kernel says how much room it wants.
  socklen_t n = 0;
  std::vector<gid_t> groups;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, nullptr, &n) != 0) {
    if (errno != ERANGE) return false;
    groups.resize(n / sizeof(gid_t));
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &n) != 0) {
      return false;
    }
  }
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

bool SendDescriptors(int fd, uint8_t code, std::span<const int> descriptors) {
  assert(descriptors.size() <= kMostDescriptors);
  iovec part = {&code, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))>
      space = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

absl::StatusOr<DescriptorAnswer> ReceiveDescriptors(
    int fd, size_t n, std::chrono::milliseconds limit) {
  pollfd wait = {fd, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&wait, 1, static_cast<int>(limit.count()));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) {
    return absl::UnavailableError("descriptor socket: no answer in time");
  }
  DescriptorAnswer answer;
  iovec part = {&answer.code, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))>
      space = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) {
    return absl::UnavailableError("descriptor socket: closed by the daemon");
  }
  answer.descriptors = TakeDescriptors(&message);
  if (answer.code == 0 && answer.descriptors.size() != n) {
    return absl::DataLossError(
        absl::StrFormat("descriptor socket: got %d descriptors, wanted %d",
                        answer.descriptors.size(), n));
  }
  return answer;
}

bool HungUp(int fd) {
  pollfd look = {fd, POLLIN | POLLRDHUP, 0};
  return poll(&look, 1, 0) > 0;
}

}  // namespace torpor::service
