// SPDX-License-Identifier: Apache-2.0
//
// kernels/row_codec.h on a GPU, to the reference's bytes. All pointers are the
// device's, those in lists too. A warp has a row: its threads hold neighbouring
// channels, so that f32 and bf16 move 16 bytes a thread where a row is aligned
// to that, and codes as many bytes as those channels have. Floor: each row read
// once and written once; 512 channels of f32 are 2,048 B beside 288 (main), 528
// (window) or 584 (V4) of codes.

#ifndef TORPOR_KERNELS_ROW_CODEC_CUDA_H_
#define TORPOR_KERNELS_ROW_CODEC_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/row_codec.h"

namespace torpor::kernels {

// Launched on `stream`; 0, or CUDA's error number.
int EncodeRowsCuda(const EncodeRowsParams& params, CudaStream stream);
int DecodeRowsCuda(const DecodeRowsParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_CODEC_CUDA_H_
