// SPDX-License-Identifier: Apache-2.0
//
// Rows of records on a GPU: into and out of the pages that hold them, and the
// pooling of an open group's rows into a compressed entry (DeepSeek V4.1
// section 2.7). All pointers are the device's.

#ifndef TORPOR_KERNELS_RECORD_ROWS_CUDA_H_
#define TORPOR_KERNELS_RECORD_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"

namespace torpor::kernels {

// Row i of `data` and row rows[i] of the pages, `row_bytes` each; a ring's rows
// are its slots. 16 bytes at a time where row_bytes, pages and data allow it.
// Floor: every row read once and written once.
struct RecordRowsParams {
  // Page j holds rows [j, j + 1) * page_rows, one after the other.
  uint8_t* const* pages = nullptr;
  int64_t page_rows = 0;
  int64_t row_bytes = 0;
  // [n_rows]; distinct when they are put.
  const int64_t* rows = nullptr;
  int64_t n_rows = 0;
  // [n_rows, row_bytes], `data_stride` bytes apart; bytes between rows stay.
  uint8_t* data = nullptr;
  int64_t data_stride = 0;
};

// Per channel a softmax over the members' gates weighs their values; a member
// is [values | gates], dim f32 each:
//   out = sum_t e^(gate_t - max) value_t / sum_t e^(gate_t - max)
// in ascending order of members, f32.
// Floor: every member read once (the gates twice), every output written once.
struct PoolMembersCudaParams {
  // [n_groups, n_members]; members aligned to 4 bytes.
  const uint8_t* const* members = nullptr;
  int64_t n_groups = 0;
  // REQUIRES: at least 1.
  int64_t n_members = 0;
  int64_t dim = 0;
  float* out = nullptr;  // [n_groups, dim]
};

// Launched on `stream`; 0, or CUDA's error number. Put reads `data` and writes
// the pages, Get the other way.
int PutRecordRowsCuda(const RecordRowsParams& params, CudaStream stream);
int GetRecordRowsCuda(const RecordRowsParams& params, CudaStream stream);
int PoolMembersCuda(const PoolMembersCudaParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_RECORD_ROWS_CUDA_H_
