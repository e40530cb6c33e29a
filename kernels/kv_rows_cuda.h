// SPDX-License-Identifier: Apache-2.0
//
// Rows of K and V between row-major arrays and the pages of
// kernels/kv_page_cuda.h: writing what a layer computed or what a client sent,
// reading what is to be stored. Floor: each row read once and written once.
//
// Every pointer, nested ones too, is a device pointer. Launchers return 0 or
// CUDA's error number and never synchronise.

#ifndef TORPOR_KERNELS_KV_ROWS_CUDA_H_
#define TORPOR_KERNELS_KV_ROWS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/kv_page_cuda.h"

namespace torpor::kernels {

// Rows of one sequence inside a ragged batch, of consecutive positions.
struct KvRowSegment {
  // First row of the arrays.
  int64_t row_begin = 0;
  int64_t n_rows = 0;
  // Of that row. Page b stands at pages[b % n_pages]; rows that are written
  // must not meet in a ring: n_rows <= 64 * n_pages.
  int64_t position = 0;
  uint8_t* const* pages = nullptr;
  int64_t n_pages = 0;
};

struct KvRowsParams {
  KvShape shape;
  // [rows, n_kv_heads, head_dim] of `rows_dtype` each, strides in elements from
  // row to row: K and V may lie side by side, and null leaves one alone.
  // Written by GetKvRowsCuda.
  void* k = nullptr;
  int64_t k_stride = 0;
  void* v = nullptr;
  int64_t v_stride = 0;
  DType rows_dtype = DType::kF32;
  const KvRowSegment* segments = nullptr;
  int64_t n_segments = 0;
  // Of all segments together.
  int64_t n_rows = 0;
};

// Rows into pages. Values of another dtype are widened exactly, or rounded to
// nearest even; the shape's own dtype moves bit for bit.
int PutKvRowsCuda(const KvRowsParams& params, CudaStream stream);

// Rows out of pages. REQUIRES: rows_dtype is the shape's; rows come bit for
// bit.
int GetKvRowsCuda(const KvRowsParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_KV_ROWS_CUDA_H_
