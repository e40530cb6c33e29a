// SPDX-License-Identifier: Apache-2.0
//
// CUDA's stream by name alone, so that headers of launchers need no CUDA.

#ifndef TORPOR_KERNELS_CUDA_STREAM_H_
#define TORPOR_KERNELS_CUDA_STREAM_H_

// What cuda_runtime.h calls cudaStream_t points at this.
struct CUstream_st;

namespace torpor::kernels {

// Null is the default stream.
using CudaStream = ::CUstream_st*;

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_CUDA_STREAM_H_
