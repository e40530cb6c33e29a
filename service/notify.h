// SPDX-License-Identifier: Apache-2.0
//
// How the daemon tells a service manager what it is up to: the protocol of
// sd_notify(3), without its library.

#ifndef TORPOR_SERVICE_NOTIFY_H_
#define TORPOR_SERVICE_NOTIFY_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace torpor::service {

// Sends `state`, for example "READY=1", to the socket that NOTIFY_SOCKET
// names: a path, or '@' and an abstract name. Does nothing when it is empty.
// kInvalidArgument for a socket of another kind, kUnavailable for what the
// kernel says.
absl::Status Notify(const std::string& socket, std::string_view state);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_NOTIFY_H_
