// SPDX-License-Identifier: Apache-2.0
//
// The avx512bf16 path. Compiled with its own flags: nothing but the templates
// over Avx512Bf16Simd may be instantiated here (an inline function of a shared
// header could be the copy that every processor runs).

#include "kernels/cpu_kernels.h"
#include "kernels/simd_avx512bf16.h"

namespace torpor::kernels {

const CpuKernels& Avx512Bf16Kernels() {
  static constexpr CpuKernels kKernels = MakeKernels<Avx512Bf16Simd>();
  return kKernels;
}

}  // namespace torpor::kernels
