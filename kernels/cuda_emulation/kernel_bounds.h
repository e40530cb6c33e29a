// SPDX-License-Identifier: Apache-2.0
//
// How a launch learns the block size that TORPOR_KERNEL named. C++ has no way
// to ask a function for its attributes, but g++ can be asked for n bytes of
// padding before a function and lists where each padding begins in a section:
// entry - beginning = n. clang takes no padding that depends on a template, and
// other processors' padding comes in other units: there sizes go unchecked.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_KERNEL_BOUNDS_H_
#define TORPOR_KERNELS_CUDA_EMULATION_KERNEL_BOUNDS_H_

#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TORPOR_EMULATION_BOUNDS(n_threads) \
  __attribute__((patchable_function_entry((n_threads), (n_threads))))
#else
#define TORPOR_EMULATION_BOUNDS(n_threads)
#endif

namespace torpor::kernels::emulation {

// The threads of a block of `kernel`; 0 when not known.
uint32_t KernelBounds(const void* kernel);

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_KERNEL_BOUNDS_H_
