// SPDX-License-Identifier: Apache-2.0
//
// Included before anything else in an emulated kernel: its calls of memcpy and
// the like go to the emulator, whether written or made by the compiler. Their
// accesses would go unseen in the C library.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_MEMORY_CALLS_H_
#define TORPOR_KERNELS_CUDA_EMULATION_MEMORY_CALLS_H_

#include <cstddef>

extern "C" {
void* memcpy(void* __restrict to, const void* __restrict from,
             size_t n) noexcept __asm__("torpor_emulation_memcpy");
void* memmove(void* to, const void* from, size_t n) noexcept
    __asm__("torpor_emulation_memmove");
void* memset(void* to, int byte, size_t n) noexcept
    __asm__("torpor_emulation_memset");
}

#endif  // TORPOR_KERNELS_CUDA_EMULATION_MEMORY_CALLS_H_
