// SPDX-License-Identifier: Apache-2.0

#include "bench/machine.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

namespace torpor::bench {

Machine ThisMachine(const std::string& commit) {
  Machine machine{.n_processors = std::thread::hardware_concurrency(),
                  .commit = commit};
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with("model name")) continue;
    machine.processor = line.substr(line.find(':') + 2);
    break;
  }
  return machine;
}

nlohmann::json ToJson(const Machine& machine) {
  return {{"processor", machine.processor},
          {"processors", machine.n_processors},
          {"commit", machine.commit}};
}

}  // namespace torpor::bench
