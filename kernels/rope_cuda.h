// SPDX-License-Identifier: Apache-2.0
//
// kernels/rope.h on a device: the same two roundings to a term as the CPU
// paths, hence their bits. Every pointer is a device pointer; tables come from
// RopeTable on the host. Floor: x read and written once (RopeTail: the last
// rope_dim channels of it), a row's table once a head.
//
// Launchers return 0 or CUDA's error number, and never synchronise.

#ifndef TORPOR_KERNELS_ROPE_CUDA_H_
#define TORPOR_KERNELS_ROPE_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/rope.h"

namespace torpor::kernels {

int RopeCuda(const RopeParams& params, CudaStream stream);
int RopeTailCuda(const RopeTailParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROPE_CUDA_H_
