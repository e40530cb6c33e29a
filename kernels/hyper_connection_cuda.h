// SPDX-License-Identifier: Apache-2.0
//
// kernels/hyper_connection.h on a GPU, in f32. All pointers are the device's.
// Mixes: a block has a row; its threads' sums of squares meet in one order.
// Collapse and expand: a thread has four channels of a row, streams in
// ascending order.
// Floor: each op reads its rows once and writes them once.

#ifndef TORPOR_KERNELS_HYPER_CONNECTION_CUDA_H_
#define TORPOR_KERNELS_HYPER_CONNECTION_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/hyper_connection.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number. REQUIRES: n_streams at most
// kMaxStreams, n_iterations at least 1.
int HyperMixCuda(const HyperMixParams& params, CudaStream stream);
int HyperCollapseCuda(const HyperCollapseParams& params, CudaStream stream);
int HyperExpandCuda(const HyperExpandParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_HYPER_CONNECTION_CUDA_H_
