// SPDX-License-Identifier: Apache-2.0
//
// kernels/engram_gate.h on a GPU, in the header's order of sums. A block has a
// stream of a row: its threads load and multiply 1,024 channels at a time, then
// sixteen threads add up each of the three sums. All pointers are the device's.
// Floor: streams, keys and value read once (streams again when they are added
// to), streams written once.

#ifndef TORPOR_KERNELS_ENGRAM_GATE_CUDA_H_
#define TORPOR_KERNELS_ENGRAM_GATE_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/engram_gate.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number. REQUIRES: n_streams at most
// 65,535.
int EngramGateCuda(const EngramGateParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ENGRAM_GATE_CUDA_H_
