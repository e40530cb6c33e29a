// SPDX-License-Identifier: Apache-2.0
//
// The daemon's config file: TOML, every key optional, an unknown one refused.
// docs/CONFIGURATION.md lists them.

#ifndef TORPOR_SERVICE_CONFIG_H_
#define TORPOR_SERVICE_CONFIG_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "service/device.h"
#include "service/server.h"

namespace torpor::service {

struct DaemonConfig {
  ServerOptions server;
  std::string isa = "auto";
  // 0 = one a processor.
  int threads = 0;
  // Where models run.
  DeviceOptions device;
  // Name or number of the group that may connect to the unix sockets.
  std::string socket_group;
  std::string log_level = "info";
};

// Sets what the file sets. kNotFound, or kInvalidArgument with line and key.
absl::Status LoadConfig(const std::string& path, DaemonConfig* config);

}  // namespace torpor::service

#endif  // TORPOR_SERVICE_CONFIG_H_
