// SPDX-License-Identifier: Apache-2.0
//
// kernels/row_moves.h on a device: embeddings, and rows that go to places of
// their own. Every pointer is a device pointer, those in lists too. Launchers
// return 0 or CUDA's error number and never synchronise.
// Floor: each named row read once, each result written once.

#ifndef TORPOR_KERNELS_ROWS_CUDA_H_
#define TORPOR_KERNELS_ROWS_CUDA_H_

#include "kernels/cuda_stream.h"
#include "kernels/row_moves.h"

namespace torpor::kernels {

// The table is aligned to an element.
int EmbedRowsCuda(const EmbedRowsParams& params, CudaStream stream);
int ScatterRowsCuda(const ScatterRowsParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROWS_CUDA_H_
