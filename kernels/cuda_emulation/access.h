// SPDX-License-Identifier: Apache-2.0
//
// Judges one access of an emulated kernel.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_ACCESS_H_
#define TORPOR_KERNELS_CUDA_EMULATION_ACCESS_H_

#include <cstddef>

#include "kernels/cuda_emulation/shadow.h"

namespace torpor::kernels::emulation {

// Called before the running fiber accesses [at, at + n), from the code that
// `pc` returns to. Does nothing on the host's own stack. Does not return when
// the access must not happen (out of bounds, misaligned): the block is dropped.
void CheckAccess(const void* at, size_t n, AccessKind kind, size_t alignment,
                 const void* pc);

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_ACCESS_H_
