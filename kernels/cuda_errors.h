// SPDX-License-Identifier: Apache-2.0
//
// CUDA's error numbers that launchers return of their own accord.

#ifndef TORPOR_KERNELS_CUDA_ERRORS_H_
#define TORPOR_KERNELS_CUDA_ERRORS_H_

namespace torpor::kernels {

inline constexpr int kCudaInvalidValue = 1;

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_ERRORS_H_
