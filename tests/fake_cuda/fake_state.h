// SPDX-License-Identifier: Apache-2.0
//
// What the fake driver knows: fake_driver.cc has devices, contexts and copies,
// fake_memory.cc memory.

#ifndef TORPOR_TESTS_FAKE_CUDA_FAKE_STATE_H_
#define TORPOR_TESTS_FAKE_CUDA_FAKE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

// Definitions below are held against the table's types.
#define TORPOR_FAKE_DECLARE(member, name, version, arguments) \
  extern "C" int name##version arguments;
namespace torpor::kernels {
TORPOR_CUDA_DRIVER_CALLS(TORPOR_FAKE_DECLARE)
}

namespace torpor::fake_cuda {

using namespace torpor::kernels;

inline constexpr int kInvalidValue = 1;
inline constexpr int kNoDevice = 100;
inline constexpr int kInvalidContext = 201;
inline constexpr int kNotSupported = 801;
inline constexpr int kLaunchFailed = 719;
[[noreturn]] void Die(const char* what);

// Memory that this process has mapped at a device address.
struct Range {
  size_t bytes = 0;
  uint8_t* data = nullptr;
  bool accessible = false;
  // How it came: it goes the same way.
  enum { kAllocated, kOpened, kMapped } how = kAllocated;
  // Its memfd, of kAllocated.
  int fd = -1;
};

struct Stream {
  std::vector<std::function<void()>> queued;
};

struct State {
  std::mutex mu;
  std::set<std::string> words;
  int64_t copies_left = -1;
  uint64_t copies = 0;
  bool lost = false;
  int retained[kGpus] = {};
  std::map<CudaAddress, Range> ranges;
  // Reserved addresses.
  std::map<CudaAddress, size_t> reserved;
  // Allocations of cuMemCreate and imports: their memfds.
  std::map<CudaAllocation, int> allocations;
  CudaAllocation next_allocation = 1;
  std::map<void*, size_t> pinned;
  std::map<void*, std::unique_ptr<Stream>> streams;
};

State& Get();
// What a call that works on the current context returns before anything else.
int Usable(const State& state);
// Of a memfd; 0 when it is none.
size_t BytesOf(int fd);

}  // namespace torpor::fake_cuda

#endif  // TORPOR_TESTS_FAKE_CUDA_FAKE_STATE_H_
