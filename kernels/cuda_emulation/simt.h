// SPDX-License-Identifier: Apache-2.0
//
// CUDA's names as kernels see them when the host compiler compiles them for the
// emulator. Included by kernels/cuda_simt.h alone.
//
// How it works: every thread of a block is a fiber (fiber.h), and a block runs
// its fibers one at a time (block.h), changing between them at barriers and
// warp operations in the order of the schedule (emulation.h). The .cu files are
// compiled with -fsanitize=thread and the emulator answers its hooks
// (hooks.cc): so it sees each access of a kernel with its address, and judges
// it by the device buffers (device_memory.h) and by a shadow of who touched
// what since which barrier (shadow.h). A thread's own stack is free to it.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_SIMT_H_
#define TORPOR_KERNELS_CUDA_EMULATION_SIMT_H_

#include <cmath>

#include "kernels/cuda_emulation/intrinsics.h"
#include "kernels/cuda_emulation/kernel_bounds.h"
#include "kernels/cuda_emulation/launch.h"
#include "kernels/cuda_emulation/vector_types.h"

namespace torpor::kernels::emulation {

// One shared array as written in a kernel; its address tells it from others.
struct SharedArray {
  const char* name;
  size_t bytes;
  size_t alignment;
};

// Where this block keeps `array`; the same for each of its threads.
void* SharedMemory(const SharedArray& array);
// This block's dynamic shared memory.
void* DynamicSharedMemory();

// Of the running thread. On its own stack, so reading them is no access.
[[gnu::const]] const uint3& ThreadIndex();
[[gnu::const]] const uint3& BlockIndex();
[[gnu::const]] const dim3& BlockSize();
[[gnu::const]] const dim3& GridSize();

}  // namespace torpor::kernels::emulation

#define threadIdx (::torpor::kernels::emulation::ThreadIndex())
#define blockIdx (::torpor::kernels::emulation::BlockIndex())
#define blockDim (::torpor::kernels::emulation::BlockSize())
#define gridDim (::torpor::kernels::emulation::GridSize())

#define TORPOR_DEVICE_ONLY
#define TORPOR_KERNEL(n_threads, ...) TORPOR_EMULATION_BOUNDS(n_threads)
#define TORPOR_SHARED(type, name, ...)                              \
  static constexpr ::torpor::kernels::emulation::SharedArray        \
      name##_shared_array{#name, sizeof(type[__VA_ARGS__]),         \
                          alignof(type) < 16 ? 16 : alignof(type)}; \
  auto& name = *static_cast<type(*)[__VA_ARGS__]>(                  \
      ::torpor::kernels::emulation::SharedMemory(name##_shared_array))
#define TORPOR_DYNAMIC_SHARED(type, name) \
  type* const name =                      \
      static_cast<type*>(::torpor::kernels::emulation::DynamicSharedMemory())
#define TORPOR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::torpor::kernels::emulation::Launch(#kernel, kernel, grid, block,  \
                                       shared_bytes,                  \
                                       stream __VA_OPT__(, ) __VA_ARGS__)

#endif  // TORPOR_KERNELS_CUDA_EMULATION_SIMT_H_
