// SPDX-License-Identifier: Apache-2.0
//
// The host side of CUDA: its own header, or the emulator's for tests. What the
// backend uses of it is what kernels/cuda_emulation/runtime.h declares.

#ifndef TORPOR_KERNELS_RUNTIME_CUDA_H_
#define TORPOR_KERNELS_RUNTIME_CUDA_H_

#ifdef TORPOR_CUDA_EMULATED
#include "kernels/cuda_emulation/runtime.h"
#else
#include <cuda_runtime_api.h>
#endif

#endif  // TORPOR_KERNELS_RUNTIME_CUDA_H_
