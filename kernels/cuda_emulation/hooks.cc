// SPDX-License-Identifier: Apache-2.0
//
// What -fsanitize=thread makes a compiler call before each access of memory. No
// sanitizer is linked: the emulator answers.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda_emulation/access.h"

using torpor::kernels::emulation::AccessKind;
using torpor::kernels::emulation::CheckAccess;

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void* /*pc*/) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void** /*at*/, void* /*value*/) {}
void __tsan_vptr_read(void** /*at*/) {}

#define TORPOR_HOOKS(size)                                                     \
  void __tsan_read##size(void* at) {                                           \
    CheckAccess(at, size, AccessKind::kRead, size,                             \
                __builtin_return_address(0));                                  \
  }                                                                            \
  void __tsan_write##size(void* at) {                                          \
    CheckAccess(at, size, AccessKind::kWrite, size,                            \
                __builtin_return_address(0));                                  \
  }                                                                            \
  void __tsan_volatile_read##size(void* at) {                                  \
    CheckAccess(at, size, AccessKind::kRead, size,                             \
                __builtin_return_address(0));                                  \
  }                                                                            \
  void __tsan_volatile_write##size(void* at) {                                 \
    CheckAccess(at, size, AccessKind::kWrite, size,                            \
                __builtin_return_address(0));                                  \
  }                                                                            \
  void __tsan_unaligned_read##size(void* at) {                                 \
    CheckAccess(at, size, AccessKind::kRead, 1, __builtin_return_address(0));  \
  }                                                                            \
  void __tsan_unaligned_write##size(void* at) {                                \
    CheckAccess(at, size, AccessKind::kWrite, 1, __builtin_return_address(0)); \
  }
TORPOR_HOOKS(1)
TORPOR_HOOKS(2)
TORPOR_HOOKS(4)
TORPOR_HOOKS(8)
TORPOR_HOOKS(16)
#undef TORPOR_HOOKS

void __tsan_read_range(void* at, size_t n) {
  CheckAccess(at, n, AccessKind::kRead, 1, __builtin_return_address(0));
}
void __tsan_write_range(void* at, size_t n) {
  CheckAccess(at, n, AccessKind::kWrite, 1, __builtin_return_address(0));
}

// memory_calls.h brings kernels here.
void* torpor_emulation_memcpy(void* to, const void* from, size_t n) {
  CheckAccess(from, n, AccessKind::kRead, 1, __builtin_return_address(0));
  CheckAccess(to, n, AccessKind::kWrite, 1, __builtin_return_address(0));
  return std::memcpy(to, from, n);
}
void* torpor_emulation_memmove(void* to, const void* from, size_t n) {
  CheckAccess(from, n, AccessKind::kRead, 1, __builtin_return_address(0));
  CheckAccess(to, n, AccessKind::kWrite, 1, __builtin_return_address(0));
  return std::memmove(to, from, n);
}
void* torpor_emulation_memset(void* to, int byte, size_t n) {
  CheckAccess(to, n, AccessKind::kWrite, 1, __builtin_return_address(0));
  return std::memset(to, byte, n);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
