// SPDX-License-Identifier: Apache-2.0
//
// Atomics. They are real ones, since blocks may run on several host threads.

#include "kernels/cuda_emulation/intrinsics.h"

#include <atomic>

#include "kernels/cuda_emulation/access.h"
#include "kernels/cuda_emulation/block.h"
#include "kernels/cuda_emulation/simt.h"

namespace torpor::kernels::emulation {
namespace {

// Replaces *at by op(*at); returns what was there.
template <typename T, typename Op>
T Update(T* at, const void* pc, Op op) {
  CheckAccess(at, sizeof(T), AccessKind::kAtomic, sizeof(T), pc);
  std::atomic_ref<T> cell(*at);
  T before = cell.load();
  while (!cell.compare_exchange_weak(before, op(before))) {
  }
  return before;
}

}  // namespace

void* SharedMemory(const SharedArray& array) {
  Thread& thread = *running;
  BlockSharedMemory& shared = thread.runner->shared();
  void* found = shared.Find(array);
  if (found == nullptr) {
    thread.runner->Report(
        Fault::kLaunchLimit, thread,
        "shared '" + std::string(array.name) +
            "' takes the block past 48 KiB of shared arrays or past 227 KiB "
            "with its dynamic shared memory");
    thread.runner->Drop(thread);
  }
  return found;
}

void* DynamicSharedMemory() { return running->runner->shared().dynamic(); }

}  // namespace torpor::kernels::emulation

// NOLINTBEGIN(readability-identifier-naming)
using torpor::kernels::emulation::Update;

#define TORPOR_ATOMICS(type)                                              \
  type atomicAdd(type* at, type value) {                                  \
    return Update(at, __builtin_return_address(0), [value](type before) { \
      return static_cast<type>(before + value);                           \
    });                                                                   \
  }                                                                       \
  type atomicMax(type* at, type value) {                                  \
    return Update(at, __builtin_return_address(0), [value](type before) { \
      return before < value ? value : before;                             \
    });                                                                   \
  }                                                                       \
  type atomicMin(type* at, type value) {                                  \
    return Update(at, __builtin_return_address(0), [value](type before) { \
      return value < before ? value : before;                             \
    });                                                                   \
  }                                                                       \
  type atomicCAS(type* at, type compare, type value) {                    \
    return Update(at, __builtin_return_address(0),                        \
                  [compare, value](type before) {                         \
                    return before == compare ? value : before;            \
                  });                                                     \
  }
TORPOR_ATOMICS(int)
TORPOR_ATOMICS(unsigned)
TORPOR_ATOMICS(unsigned long long)
#undef TORPOR_ATOMICS

float atomicAdd(float* at, float value) {
  return Update(at, __builtin_return_address(0),
                [value](float before) { return before + value; });
}
// NOLINTEND(readability-identifier-naming)
