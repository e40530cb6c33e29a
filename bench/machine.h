// SPDX-License-Identifier: Apache-2.0
//
// The machine that results name.

#ifndef TORPOR_BENCH_MACHINE_H_
#define TORPOR_BENCH_MACHINE_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace torpor::bench {

struct Machine {
  std::string processor;
  unsigned n_processors = 0;
  // Of the source, as the caller knows it.
  std::string commit;
};

// Read from /proc/cpuinfo.
Machine ThisMachine(const std::string& commit);
nlohmann::json ToJson(const Machine& machine);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_MACHINE_H_
