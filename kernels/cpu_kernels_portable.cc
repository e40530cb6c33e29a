// SPDX-License-Identifier: Apache-2.0
//
// The portable path. Compiled with its own flags: nothing but the templates
// over PortableSimd may be instantiated here (an inline function of a shared
// header could be the copy that every processor runs).

#include "kernels/cpu_kernels.h"
#include "kernels/simd_portable.h"

namespace torpor::kernels {

const CpuKernels& PortableKernels() {
  static constexpr CpuKernels kKernels = MakeKernels<PortableSimd>();
  return kKernels;
}

}  // namespace torpor::kernels
