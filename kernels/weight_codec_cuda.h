// SPDX-License-Identifier: Apache-2.0
//
// kernels/weight_codec.h on a GPU, to the reference's bits. All pointers are
// the device's. Rows are spread over warps as in kernels/row_codec_cuda.h.
// Floor: codes and scales read once, values written once; FakeQuantFp8 reads
// and writes its rows once.

#ifndef TORPOR_KERNELS_WEIGHT_CODEC_CUDA_H_
#define TORPOR_KERNELS_WEIGHT_CODEC_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/weight_codec.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number.
int DecodeWeightsCuda(const DecodeWeightsParams& params, CudaStream stream);
int FakeQuantFp8Cuda(const FakeQuantFp8Params& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_WEIGHT_CODEC_CUDA_H_
