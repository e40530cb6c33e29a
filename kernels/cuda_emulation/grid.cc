// SPDX-License-Identifier: Apache-2.0
//
// A launch: its limits, then its blocks in the schedule's order.

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/cuda_emulation/block.h"
#include "kernels/cuda_emulation/device_memory.h"
#include "kernels/cuda_emulation/kernel_bounds.h"
#include "kernels/cuda_emulation/report_log.h"

namespace torpor::kernels::emulation {
namespace {

// Of compute capability 8.0 to 10.0 where they agree; the kernel's arguments as
// before CUDA 12.1.
constexpr uint64_t kGridXMax = 2147483647;
constexpr uint64_t kGridYzMax = 65535;
constexpr uint64_t kBlockZMax = 64;
constexpr size_t kArgumentBytesMax = 4096;
// Of the shadow's block numbers.
constexpr uint64_t kEmulatedBlocksMax = (1u << 24) - 1;

struct Emulator {
  Mutex mutex;  // held by a launch
  Schedule schedule ABSL_GUARDED_BY(mutex);
  // One for each host thread; their stacks are kept.
  std::vector<std::unique_ptr<BlockRunner>> runners ABSL_GUARDED_BY(mutex);
};

Emulator& TheEmulator() {
  static auto* const emulator = new Emulator;
  return *emulator;
}

std::string Size(const dim3& size) {
  return std::to_string(size.x) + " x " + std::to_string(size.y) + " x " +
         std::to_string(size.z);
}

// What is wrong with the launch; empty when nothing is.
std::string Objection(const Grid& grid, const KernelCall& call) {
  const dim3& block = grid.block;
  const uint64_t n_threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t n_blocks = uint64_t{grid.size.x} * grid.size.y * grid.size.z;
  if (n_blocks == 0 || grid.size.x > kGridXMax || grid.size.y > kGridYzMax ||
      grid.size.z > kGridYzMax) {
    return "a grid of " + Size(grid.size) +
           " blocks, wanted 1 to 2147483647 x 65535 x 65535";
  }
  if (n_threads == 0 || n_threads > kBlockThreadsMax || block.z > kBlockZMax) {
    return "a block of " + Size(block) +
           " threads, wanted 1 to 1024, at most 64 in z";
  }
  const uint32_t bounds = KernelBounds(grid.kernel);
  if (bounds != 0 && n_threads != bounds) {
    return "a block of " + std::to_string(n_threads) +
           " threads, its kernel is bound to " + std::to_string(bounds);
  }
  if (grid.dynamic_shared_bytes > kSharedMax) {
    return std::to_string(grid.dynamic_shared_bytes) +
           " bytes of dynamic shared memory, wanted at most " +
           std::to_string(kSharedMax);
  }
  if (call.call_bytes - sizeof(void*) > kArgumentBytesMax) {
    return std::to_string(call.call_bytes - sizeof(void*)) +
           " bytes of arguments, wanted at most " +
           std::to_string(kArgumentBytesMax);
  }
  if (n_blocks > kEmulatedBlocksMax) {
    return Size(grid.size) + " blocks, of which the emulator runs at most " +
           std::to_string(kEmulatedBlocksMax);
  }
  return "";
}

std::vector<uint32_t> BlockOrder(size_t n, const Schedule& schedule) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0u);
  if (schedule.order == Order::kReverse) {
    std::reverse(order.begin(), order.end());
  } else if (schedule.order == Order::kRandom) {
    std::mt19937_64 random(schedule.seed);
    std::shuffle(order.begin(), order.end(), random);
  }
  return order;
}

void RunBlocks(LaunchState& launch, const std::vector<uint32_t>& order,
               std::vector<std::unique_ptr<BlockRunner>>& runners) {
  const auto n_hosts =
      static_cast<size_t>(std::max(1, launch.schedule.n_host_threads));
  while (runners.size() < n_hosts) {
    runners.push_back(std::make_unique<BlockRunner>());
  }
  std::atomic<size_t> next = 0;
  const auto work = [&](BlockRunner& runner) {
    for (size_t i; !launch.is_over && (i = next++) < order.size();) {
      runner.Run(launch, order[i]);
    }
  };
  std::vector<std::thread> hosts;
  for (size_t i = 1; i < n_hosts; ++i) {
    hosts.emplace_back(work, std::ref(*runners[i]));
  }
  work(*runners[0]);
  for (std::thread& host : hosts) host.join();
}

void ReportLaunch(const Grid& grid, Fault fault, std::string text) {
  ReportLog::Get().Add({.fault = fault,
                        .kernel = grid.kernel_name,
                        .text = std::move(text),
                        .where = ""},
                       nullptr);
}

}  // namespace

uint32_t NextEpoch() {
  static std::atomic<uint32_t> last = 0;
  const uint32_t epoch = ++last;
  if (epoch == 0) {
    std::fprintf(stderr, "emulation: no epochs left in this process\n");
    std::abort();
  }
  return epoch;
}

int Run(const Grid& grid, const KernelCall& call) {
  Emulator& emulator = TheEmulator();
  MutexLock lock(&emulator.mutex);
  ReportLog& log = ReportLog::Get();
  log.BeginLaunch();
  if (std::string objection = Objection(grid, call); !objection.empty()) {
    ReportLaunch(grid, Fault::kLaunchLimit, std::move(objection));
    log.EndLaunch();
    return kLaunchConfigurationError;
  }
  LaunchState launch;
  launch.grid = grid;
  launch.call = call;
  launch.schedule = emulator.schedule;
  launch.first_epoch = NextEpoch();
  const size_t n_blocks = size_t{grid.size.x} * grid.size.y * grid.size.z;
  RunBlocks(launch, BlockOrder(n_blocks, launch.schedule), emulator.runners);
  for (const std::string& name : DeviceMemory::Get().DamagedZones()) {
    ReportLaunch(grid, Fault::kOutOfBounds,
                 "wrote unseen next to device " + name);
  }
  return log.EndLaunch() == 0 ? 0 : kLaunchFailure;
}

void SetSchedule(const Schedule& schedule) {
  Emulator& emulator = TheEmulator();
  MutexLock lock(&emulator.mutex);
  emulator.schedule = schedule;
}

std::string ToString(const Schedule& schedule) {
  std::string out = schedule.order == Order::kForward   ? "forward"
                    : schedule.order == Order::kReverse ? "reverse"
                                                        : "random";
  if (schedule.order == Order::kRandom) {
    out += ", seed " + std::to_string(schedule.seed);
  }
  if (schedule.n_host_threads > 1) {
    out += ", " + std::to_string(schedule.n_host_threads) + " host threads";
  }
  return out;
}

bool AccessesAreChecked() {
#ifdef TORPOR_EMULATION_UNCHECKED
  return false;
#else
  return true;
#endif
}

}  // namespace torpor::kernels::emulation
