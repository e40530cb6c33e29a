// SPDX-License-Identifier: Apache-2.0
//
// What tests ask of the emulator: in which order threads run, and what it
// found. Launches of a process run one after another, from whichever thread.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_EMULATION_H_
#define TORPOR_KERNELS_CUDA_EMULATION_EMULATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda_emulation/vector_types.h"

namespace torpor::kernels::emulation {

enum class Order : uint8_t { kForward, kReverse, kRandom };

// The order of blocks, and of a block's threads between two barriers.
struct Schedule {
  Order order = Order::kForward;
  // Of kRandom.
  uint64_t seed = 0;
  // Blocks run on so many threads of the host at once.
  int n_host_threads = 1;
};

// For the launches that follow.
void SetSchedule(const Schedule& schedule);
std::string ToString(const Schedule& schedule);

enum class Fault : uint8_t {
  // Outside live device buffers, shared arrays and the thread's own stack.
  kOutOfBounds,
  // A device buffer that was freed.
  kUseAfterFree,
  // A write to memory that kernels may only read (their arguments, constants).
  kReadOnly,
  // A read of bytes that nobody wrote.
  kUninitialised,
  // Two threads of a block, one of them writing, no barrier between.
  kRace,
  // Two blocks of a launch, one of them writing.
  kBlockRace,
  // Threads of a block wait in __syncthreads, others elsewhere or not at all.
  kDivergentBarrier,
  // A warp operation waits for a lane that does not come.
  kMissingLane,
  kMisaligned,
  // Sizes that CUDA refuses, or a block unlike its kernel's bounds.
  kLaunchLimit,
};
std::string_view FaultName(Fault fault);

struct Report {
  Fault fault = Fault::kOutOfBounds;
  std::string kernel;
  uint3 block = {};
  uint3 thread = {};
  // A sentence, with the buffer and its offset, and the other thread.
  std::string text;
  // file:line of the access where the program has debug information.
  std::string where;
};
std::string ToString(const Report& report);

// What launches reported since the last call; each fault of a place once a
// launch.
std::vector<Report> TakeReports();

// False where the compiler's hooks belong to another tool (ThreadSanitizer):
// then accesses go unseen, and only barriers, warp operations, launch limits
// and the zones around device buffers are checked.
bool AccessesAreChecked();

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_EMULATION_H_
