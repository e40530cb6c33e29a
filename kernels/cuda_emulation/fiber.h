// SPDX-License-Identifier: Apache-2.0
//
// A stack of its own for one emulated thread. A fiber belongs to the host
// thread that resumes it; it may be dropped at any suspension and started
// again: nothing on its stack is destroyed.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_FIBER_H_
#define TORPOR_KERNELS_CUDA_EMULATION_FIBER_H_

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__)
#define TORPOR_EMULATION_UCONTEXT 1
#endif
#ifdef TORPOR_EMULATION_UCONTEXT
#include <ucontext.h>
#endif

namespace torpor::kernels::emulation {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 * 1024;
  // At the stack's end, for the owner's use; aligned to 64.
  static constexpr size_t kTopBytes = 128;

  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume calls entry(argument). When that has returned, the fiber
  // does nothing but suspend.
  void Start(void (*entry)(void*), void* argument);
  // Runs the fiber until it suspends.
  void Resume();
  // REQUIRES: this fiber runs.
  void Suspend();

  bool OnStack(uintptr_t address) const {
    return address - stack_ < kStackBytes;
  }
  void* top() const { return reinterpret_cast<void*>(top_); }

 private:
  static void Enter();
  // What AddressSanitizer knows of the frames that were dropped.
  void Clear();

  uintptr_t stack_ = 0;
  uintptr_t top_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
#ifdef TORPOR_EMULATION_UCONTEXT
  ucontext_t own_ = {};
  ucontext_t resumer_ = {};
#else
  void* own_ = nullptr;
  void* resumer_ = nullptr;
#endif
};

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_FIBER_H_
