// SPDX-License-Identifier: Apache-2.0
//
// TORPOR_DEVICE marks a function that CUDA kernels call too. It says nothing to
// a host compiler.

#ifndef TORPOR_KERNELS_DEVICE_FUNCTION_H_
#define TORPOR_KERNELS_DEVICE_FUNCTION_H_

#ifdef __CUDACC__
#define TORPOR_DEVICE __host__ __device__
#else
#define TORPOR_DEVICE
#endif

#endif  // TORPOR_KERNELS_DEVICE_FUNCTION_H_
