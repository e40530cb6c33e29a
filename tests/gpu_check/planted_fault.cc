// SPDX-License-Identifier: Apache-2.0
//
// A norm that is wrong: linked with --wrap, so that every caller gets this one.

#include "kernels/rms_norm_cuda.h"

extern "C" {

int TorporRealRmsNorm(const torpor::kernels::RmsNormParams& params, torpor::kernels::CudaStream stream) __asm__(
    "__real_"
    "_ZN6torpor7kernels11RmsNormCudaERKNS0_13RmsNormParamsEP11CUstream_"
    "st");

int TorporWrapRmsNorm(const torpor::kernels::RmsNormParams& params, torpor::kernels::CudaStream stream) __asm__(
    "__wrap_"
    "_ZN6torpor7kernels11RmsNormCudaERKNS0_13RmsNormParamsEP11CUstream_"
    "st");

int TorporWrapRmsNorm(const torpor::kernels::RmsNormParams& params,
                      torpor::kernels::CudaStream stream) {
  torpor::kernels::RmsNormParams wrong = params;
  wrong.offset += 0.001f;
  return TorporRealRmsNorm(wrong, stream);
}
}
