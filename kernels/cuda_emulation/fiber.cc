// SPDX-License-Identifier: Apache-2.0
//
// On x86-64 a switch stores and loads the registers that a call keeps: 20 times
// faster than swapcontext, which asks the kernel for the signal mask. Elsewhere
// swapcontext serves.

#include "kernels/cuda_emulation/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
#endif

namespace torpor::kernels::emulation {
namespace {

thread_local Fiber* starting = nullptr;

constexpr size_t kGuardBytes = 4096;

// Stacks that all begin at the same place of a page would share a few cache
// lines; these begin at one of 64.
std::atomic<uintptr_t> color = 0;

}  // namespace

Fiber::Fiber() {
  void* mapped =
      mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    std::perror("emulation: map a stack");
    std::abort();
  }
  mprotect(mapped, kGuardBytes, PROT_NONE);
  stack_ = reinterpret_cast<uintptr_t>(mapped) + kGuardBytes;
  top_ = stack_ + kStackBytes - kTopBytes - 64 * (color++ % 64);
}

Fiber::~Fiber() {
  munmap(reinterpret_cast<void*>(stack_ - kGuardBytes),
         kGuardBytes + kStackBytes);
}

void Fiber::Clear() {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(reinterpret_cast<void*>(stack_), kStackBytes);
#endif
}

void Fiber::Enter() {
  Fiber* self = starting;
  self->entry_(self->argument_);
  for (;;) self->Suspend();
}

#ifdef TORPOR_EMULATION_UCONTEXT

void Fiber::Start(void (*entry)(void*), void* argument) {
  Clear();
  entry_ = entry;
  argument_ = argument;
  getcontext(&own_);
  own_.uc_stack.ss_sp = reinterpret_cast<void*>(stack_);
  own_.uc_stack.ss_size = top_ - stack_;
  makecontext(&own_, &Fiber::Enter, 0);
}

void Fiber::Resume() {
  starting = this;
  swapcontext(&resumer_, &own_);
}

void Fiber::Suspend() { swapcontext(&own_, &resumer_); }

#else

// Keeps the registers that a callee must, and changes stacks:
//   *rdi = the stack left, rsi = the stack taken.
extern "C" void torpor_emulation_switch(void** leave, void* take);
asm(R"(
  .text
  .p2align 4
  .type torpor_emulation_switch, @function
torpor_emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size torpor_emulation_switch, . - torpor_emulation_switch
)");

void Fiber::Start(void (*entry)(void*), void* argument) {
  Clear();
  entry_ = entry;
  argument_ = argument;
  // Six registers, Enter's address, and a null return address above it: a call
  // finds its stack 8 short of a multiple of 16.
  auto* at = static_cast<uintptr_t*>(top()) - 8;
  for (int i = 0; i < 8; ++i) at[i] = 0;
  at[6] = reinterpret_cast<uintptr_t>(&Fiber::Enter);
  own_ = at;
}

void Fiber::Resume() {
  starting = this;
  torpor_emulation_switch(&resumer_, own_);
}

void Fiber::Suspend() { torpor_emulation_switch(&own_, resumer_); }

#endif

}  // namespace torpor::kernels::emulation
