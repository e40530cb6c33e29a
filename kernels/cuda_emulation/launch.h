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
  // For those that run later.
  const void* (*clone)(const void* call) = nullptr;
  void (*destroy)(const void* call) = nullptr;
};

// Runs every block, then returns. 0, or CUDA's number of the nearest error:
// kLaunchConfigurationError before anything ran, kLaunchFailure after a fault.
// Either leaves reports (emulation.h).
int Run(const Grid& grid, const KernelCall& call);

// CUDA's numbers.
inline constexpr int kLaunchConfigurationError = 9;
inline constexpr int kLaunchFailure = 719;

// Gives the stream a launch; without one it runs now, and the answer is this
// launch's own.
int Submit(CudaStream stream, const Grid& grid, const KernelCall& call);

template <typename... Params>
struct BoundKernel {
  void (*kernel)(Params...);
  std::tuple<Params...> params;

  static const BoundKernel& Of(const void* self) {
    return *static_cast<const BoundKernel*>(self);
  }
  static void Invoke(const void* self) {
    std::apply(Of(self).kernel, Of(self).params);
  }
  static const void* Clone(const void* self) {
    return new BoundKernel(Of(self));
  }
  static void Destroy(const void* self) { delete &Of(self); }
};

template <typename... Params, typename... Args>
int Launch(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
           size_t shared_bytes, CudaStream stream, Args&&... args) {
  using Bound = BoundKernel<Params...>;
  const Bound bound{kernel, {static_cast<Params>(args)...}};
  return Submit(
      stream,
      {name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes},
      {&Bound::Invoke, &bound, sizeof(bound), &Bound::Clone, &Bound::Destroy});
}

}  // namespace torpor::kernels::emulation

#endif  // TORPOR_KERNELS_CUDA_EMULATION_LAUNCH_H_
