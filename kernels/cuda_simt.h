// SPDX-License-Identifier: Apache-2.0
//
// The one CUDA header of kernels/*_cuda.cu. The same source is compiled by nvcc
// for GPUs and, for tests, by the host compiler for the emulator of
// kernels/cuda_emulation/. docs/CUDA.md lists what a kernel may use.
//
//   template <int kDim>
//   TORPOR_KERNEL(128) void ScaleKernel(const float* x, float* y) {
//     TORPOR_SHARED(float, tile, kDim);          // float tile[kDim]
//     TORPOR_DYNAMIC_SHARED(float, more);        // size given at launch
//     ...
//   }
//   // 0, or CUDA's error number. A kernel with a comma takes parentheses.
//   return TORPOR_LAUNCH((ScaleKernel<64>), grid, 128, more_bytes, stream, x,
//   y);
//
// A block has exactly the threads that TORPOR_KERNEL names; a second number is
// the blocks that a multiprocessor is to hold, which bounds registers where the
// compiler's own choice would spill some. Dynamic shared memory is aligned to
// 16 bytes. TORPOR_DEVICE_ONLY marks helpers that only kernels call (they use
// threads, shuffles, barriers); TORPOR_DEVICE of device_function.h those that
// hosts call too.

#ifndef TORPOR_KERNELS_CUDA_SIMT_H_
#define TORPOR_KERNELS_CUDA_SIMT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/device_function.h"

#ifdef __CUDACC__

#include <cuda_runtime.h>

#include "base/mutex.h"

#define TORPOR_DEVICE_ONLY __device__
#define TORPOR_KERNEL(n_threads, ...) \
  __global__ __launch_bounds__(n_threads __VA_OPT__(, ) __VA_ARGS__)
#define TORPOR_SHARED(type, name, ...) __shared__ type name[__VA_ARGS__]
// One name for all kernels of a file would force one type on them.
#define TORPOR_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char torpor_dynamic_shared[]; \
  type* const name = reinterpret_cast<type*>(torpor_dynamic_shared)
#define TORPOR_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::torpor::kernels::LaunchKernel(kernel, grid, block, shared_bytes,  \
                                  stream __VA_OPT__(, ) __VA_ARGS__)

namespace torpor::kernels {

// A block has 48 KiB of shared memory, its kernel's arrays counted in, unless
// the kernel's limit was raised. That is one for all threads: none may change
// it between another's call and launch.
inline Mutex shared_limit_mutex;

template <typename... Params, typename... Args>
int LaunchKernel(void (*kernel)(Params...), dim3 grid, dim3 block,
                 size_t shared_bytes, CudaStream stream, Args&&... args) {
  const auto launch = [&] {
    kernel<<<grid, block, shared_bytes, stream>>>(
        static_cast<Params>(static_cast<Args&&>(args))...);
    return static_cast<int>(cudaGetLastError());
  };
  if (shared_bytes == 0) return launch();
  MutexLock lock(&shared_limit_mutex);
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return static_cast<int>(cudaGetLastError());
  return launch();
}

}  // namespace torpor::kernels

#else

#include "kernels/cuda_emulation/simt.h"

#endif  // __CUDACC__

#endif  // TORPOR_KERNELS_CUDA_SIMT_H_
