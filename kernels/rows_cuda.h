// SPDX-License-Identifier: Apache-2.0
//
// Rows of [n, dim] f32 arrays chosen by index: embeddings, gathering the rows
// that go on, and adding up what came back for a row. Element-wise in a fixed
// order, so a row's bits depend on the rows it names alone. Floor: each named
// row read once, each result written once (AddRows reads it too).
//
// Every pointer is a device pointer. Launchers return 0 or CUDA's error number
// and never synchronise.

#ifndef TORPOR_KERNELS_ROWS_CUDA_H_
#define TORPOR_KERNELS_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/row_moves.h"

namespace torpor::kernels {

// kernels/row_moves.h; `ids` too is a device pointer. The table is aligned to
// an element.
int EmbedRowsCuda(const EmbedRowsParams& params, CudaStream stream);

struct IndexedRowsParams {
  const float* x = nullptr;
  // [n_rows], or [n_rows, n_picks] of AddRows.
  const int32_t* index = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  float* out = nullptr;
  // Of AddRows.
  int64_t n_picks = 1;
};

// out[i] = x[index[i]].
int GatherRowsCuda(const IndexedRowsParams& params, CudaStream stream);
// out[index[i]] = x[i]. REQUIRES: no index twice.
int ScatterRowsCuda(const IndexedRowsParams& params, CudaStream stream);
// out[i] += x[index[i, 0]], then x[index[i, 1]] and so on, one f32 addition
// each; a negative index adds nothing.
int AddRowsCuda(const IndexedRowsParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROWS_CUDA_H_
