// SPDX-License-Identifier: Apache-2.0

#ifndef TORPOR_SERVICE_VERSION_H_
#define TORPOR_SERVICE_VERSION_H_

namespace torpor::service {

// The release, as CMakeLists.txt has it.
inline constexpr const char* kVersion = TORPOR_VERSION;

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_VERSION_H_
