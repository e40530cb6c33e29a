// SPDX-License-Identifier: Apache-2.0
//
// Runs blocks of a launch, one after another, on the host thread that owns it.
// All threads of a block are fibers and alive together. Between two barriers
// each runs, in the schedule's order, until it waits for others; a block that
// faulted for good is dropped where it stands.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_BLOCK_H_
#define TORPOR_KERNELS_CUDA_EMULATION_BLOCK_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda_emulation/emulation.h"
#include "kernels/cuda_emulation/fiber.h"
#include "kernels/cuda_emulation/intrinsics.h"
#include "kernels/cuda_emulation/launch.h"
#include "kernels/cuda_emulation/shadow.h"
#include "kernels/cuda_emulation/shared_memory.h"

namespace torpor::kernels::emulation {

inline constexpr uint32_t kBlockThreadsMax = 1024;

// What the blocks of a launch have in common.
struct LaunchState {
  Grid grid;
  KernelCall call;
  Schedule schedule;
  uint32_t first_epoch = 0;
  // A fault after which no further block starts.
  std::atomic<bool> is_over = false;
};

class BlockRunner;

struct Thread {
  enum class State : uint8_t { kReady, kAtBarrier, kInWarpOp, kExited };

  BlockRunner* runner = nullptr;
  uint32_t number = 0;
  State state = State::kReady;
  // Of what it waits in.
  Place place;
  WarpOp op = WarpOp::kSync;
  uint32_t mask = 0;
  int operand = 0;
  uint64_t value = 0;
  uint64_t result = 0;
  Who who;
  Fiber fiber;
};

// The fiber that runs on this host thread; null on the host's own stack.
extern thread_local Thread* running;

class BlockRunner {
 public:
  BlockRunner() = default;

  void Run(LaunchState& launch, uint32_t block);

  // Called on fibers.
  void WaitAtBarrier(Thread& thread, Place place);
  uint64_t WaitInWarp(Thread& thread, WarpOp op, uint32_t mask, uint64_t value,
                      int operand, Place place);
  void Report(Fault fault, const Thread& thread, std::string text,
              const void* pc = nullptr);
  // Leaves the fiber, and the block, for good.
  void Drop(Thread& thread);

  BlockSharedMemory& shared() { return shared_; }
  const LaunchState& launch() const { return *launch_; }
  // "thread (x, y, z)" of this block, by its number.
  std::string Name(uint32_t number) const;

 private:
  using Lanes = std::array<uint32_t, kWarpLanes>;

  static void Enter(void* thread);

  void StartThreads();
  void BeginEpoch();
  // Runs threads until none is ready.
  void RunReady();
  // After that: true when all wait at one barrier.
  bool AllAtBarrier();
  void ReportMissingLane(const Thread& waiting);
  std::string Whereabouts(const Thread& thread) const;

  // REQUIRES: every lane of `mask` waits in the same operation.
  void FinishWarpOp(uint32_t warp, uint32_t mask);
  void Synchronise(uint32_t warp, uint32_t mask);
  uint64_t ResultOf(const Thread& thread) const;
  uint3 Index(uint32_t number) const;

  LaunchState* launch_ = nullptr;
  uint32_t block_ = 0;
  uint3 block_index_ = {};
  uint32_t n_threads_ = 0;
  bool is_dropped_ = false;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<uint32_t> order_;
  std::mt19937_64 random_;
  // [n warps][lane][lane]: Who::seen.
  std::vector<std::array<Lanes, kWarpLanes>> seen_;
  BlockSharedMemory shared_;
};

// Draws the number of the next epoch of the process.
uint32_t NextEpoch();

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_BLOCK_H_
