// SPDX-License-Identifier: Apache-2.0
//
// What keeps the members of a group from a socket that is shared with them.

#ifndef TORPOR_SERVICE_CLOSED_DIRECTORY_H_
#define TORPOR_SERVICE_CLOSED_DIRECTORY_H_

#include <sys/types.h>

#include <string>

namespace torpor::service {

// The first directory on the way to an absolute `path` that its mode closes to
// the members of `group`; empty when there is none. Their other groups and
// access lists are not seen.
std::string DirectoryClosedTo(gid_t group, const std::string& path);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CLOSED_DIRECTORY_H_
