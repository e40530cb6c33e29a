// SPDX-License-Identifier: Apache-2.0

#include "bench/machine.h"

#include <array>
#include <ctime>
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
  std::string key;
  uint64_t kilobytes = 0;
  if (std::ifstream("/proc/meminfo") >> key >> kilobytes) {
    machine.memory_bytes = kilobytes * 1024;
  }
  std::string release;
  std::ifstream("/proc/sys/kernel/osrelease") >> release;
  machine.system = "Linux " + release;
  std::ifstream("/proc/loadavg") >> machine.load;
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &parts);
  machine.begun = text.data();
  return machine;
}

nlohmann::json ToJson(const Machine& machine) {
  return {{"processor", machine.processor},
          {"processors", machine.n_processors},
          {"memory_bytes", machine.memory_bytes},
          {"system", machine.system},
          {"load", machine.load},
          {"begun", machine.begun},
          {"commit", machine.commit}};
}

}  // namespace torpor::bench
