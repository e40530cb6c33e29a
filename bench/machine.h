// SPDX-License-Identifier: Apache-2.0
//
// The machine that results name.

#ifndef TORPOR_BENCH_MACHINE_H_
#define TORPOR_BENCH_MACHINE_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace torpor::bench {

struct Machine {
  std::string processor;
  unsigned n_processors = 0;
  uint64_t memory_bytes = 0;
  // Of the kernel.
  std::string system;
  // Runnable tasks over the last minute, when the run began: what else loads
  // the machine.
  double load = 0;
  // UTC, "2026-11-29 20:15:00".
  std::string begun;
  // Of the source, as the caller knows it.
  std::string commit;
};

// Read from /proc.
Machine ThisMachine(const std::string& commit);
nlohmann::json ToJson(const Machine& machine);

}  // namespace torpor::bench

#endif  // TORPOR_BENCH_MACHINE_H_
