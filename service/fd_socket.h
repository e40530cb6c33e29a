// SPDX-License-Identifier: Apache-2.0
//
// Descriptors between processes over a unix socket: gRPC cannot pass them. A
// stream socket, one byte of answer with the descriptors beside it
// (SCM_RIGHTS). What is said over it: proto/torpor/v1/session_service.proto,
// DataPlaneChoice.

#ifndef TORPOR_SERVICE_FD_SOCKET_H_
#define TORPOR_SERVICE_FD_SOCKET_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "service/unique_fd.h"

namespace torpor::service {

// Beside a daemon's socket.
std::string FdSocketPath(const std::string& listen_path);

// A non-blocking listener of mode 0600. kInvalidArgument for a path longer than
// an address holds, kUnavailable for what bind says.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path);
// kUnavailable when nobody answers.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path);
// Who connected, as the kernel saw it then.
absl::StatusOr<ucred> PeerOf(int fd);
// Whether that peer was in the group, by its own or a further one.
bool PeerInGroup(int fd, const ucred& peer, gid_t group);

// One byte with descriptors, without waiting; false when the peer is gone.
bool SendDescriptors(int fd, uint8_t code, std::span<const int> descriptors);

struct DescriptorAnswer {
  uint8_t code = 0;
  std::vector<UniqueFd> descriptors;
};
// Waits for it. kUnavailable when the peer closes or says nothing in time;
// kDataLoss when code 0 comes without exactly `n` descriptors.
absl::StatusOr<DescriptorAnswer> ReceiveDescriptors(
    int fd, size_t n, std::chrono::milliseconds limit);

// Whether the peer closed, or said what nobody asked it.
bool HungUp(int fd);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_FD_SOCKET_H_
