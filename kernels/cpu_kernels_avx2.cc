// SPDX-License-Identifier: Apache-2.0
//
// The avx2 path. Compiled with its own flags: nothing but the templates over
// Avx2Simd may be instantiated here (an inline function of a shared header
// could be the copy that every processor runs).

#include "kernels/cpu_kernels.h"
#include "kernels/simd_avx2.h"

namespace torpor::kernels {

const CpuKernels& Avx2Kernels() {
  static constexpr CpuKernels kKernels = MakeKernels<Avx2Simd>();
  return kKernels;
}

}  // namespace torpor::kernels
