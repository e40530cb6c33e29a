// SPDX-License-Identifier: Apache-2.0
//
// Launching a kernel on the emulator: what TORPOR_LAUNCH becomes.

#ifndef TORPOR_KERNELS_CUDA_EMULATION_LAUNCH_H_
#define TORPOR_KERNELS_CUDA_EMULATION_LAUNCH_H_

#include <cstddef>
#include <tuple>
#include <utility>

#include "kernels/cuda_emulation/vector_types.h"
#include "kernels/cuda_stream.h"

namespace torpor::kernels::emulation {

struct Grid {
  const char* kernel_name = nullptr;
  const void* kernel = nullptr;
  dim3 size;
  dim3 block;
  size_t dynamic_shared_bytes = 0;
};

// A kernel with its arguments, type erased: `invoke(call)` is one thread's run.
struct KernelCall {
  void (*invoke)(const void* call) = nullptr;
  const void* call = nullptr;
  // Kernels may read their arguments there, not write them.
  size_t call_bytes = 0;
};

// Runs every block, then returns. 0, or CUDA's number of the nearest error:
// kLaunchConfigurationError before anything ran, kLaunchFailure after a fault.
// Either leaves reports (emulation.h).
int Run(const Grid& grid, const KernelCall& call);

// CUDA's numbers.
inline constexpr int kLaunchConfigurationError = 9;
inline constexpr int kLaunchFailure = 719;

template <typename... Params>
struct BoundKernel {
  void (*kernel)(Params...);
  std::tuple<Params...> params;

  static void Invoke(const void* self) {
    const auto* bound = static_cast<const BoundKernel*>(self);
    std::apply(bound->kernel, bound->params);
  }
};

template <typename... Params, typename... Args>
int Launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
           size_t shared_bytes, CudaStream /*stream*/, Args&&... args) {
  const BoundKernel<Params...> bound{kernel, {static_cast<Params>(args)...}};
  return Run(
      {name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes},
      {&BoundKernel<Params...>::Invoke, &bound, sizeof(bound)});
}

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_LAUNCH_H_
