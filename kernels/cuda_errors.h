// SPDX-License-Identifier: Apache-2.0
//
// CUDA's error numbers that are told apart.

#ifndef TORPOR_KERNELS_CUDA_ERRORS_H_
#define TORPOR_KERNELS_CUDA_ERRORS_H_

namespace torpor::kernels {

// What is asked for is more than a launch can have, on this device or on any.
inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaInvalidConfiguration = 9;

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_ERRORS_H_
