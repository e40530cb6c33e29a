// SPDX-License-Identifier: Apache-2.0
//
// The amx path: avx512bf16 with the bf16 GEMM on tiles. Compiled with its own
// flags; nothing but templates over AmxSimd may be instantiated here (see
// kernels/cpu_kernels_avx512bf16.cc).

#include "kernels/cpu_kernels.h"
#include "kernels/gemm_amx.h"
#include "kernels/simd_amx.h"

namespace torpor::kernels {

const CpuKernels& AmxKernels() {
  static constexpr CpuKernels kKernels = [] {
    CpuKernels kernels = MakeKernels<AmxSimd>();
    kernels.gemm = &GemmAmxCpu<AmxSimd>;
    return kernels;
  }();
  return kKernels;
}

}  // namespace torpor::kernels
