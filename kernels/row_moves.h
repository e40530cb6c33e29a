// SPDX-License-Identifier: Apache-2.0
//
// Rows that only move: embeddings of ids, blocks of rows that change their
// stride, rows that go to places of their own. Floor: each row read once and
// written once.

#ifndef TORPOR_KERNELS_ROW_MOVES_H_
#define TORPOR_KERNELS_ROW_MOVES_H_

#include <cstdint>

#include "kernels/gemm.h"

namespace torpor::kernels {

// out[i] = table[ids[i]] * scale, in f32.
struct EmbedRowsParams {
  // [vocab, dim] of `dtype`; on the CPU of any alignment.
  const uint8_t* table = nullptr;
  DType dtype = DType::kF32;
  // [n_rows], the host's; each below the vocabulary.
  const uint32_t* ids = nullptr;
  int64_t n_rows = 0;
  int64_t dim = 0;
  float scale = 1.0f;
  // [n_rows, dim] f32.
  float* out = nullptr;
};

struct CopyRowsParams {
  // [n_rows, dim] f32, strides in elements; the two do not overlap.
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t n_rows = 0;
  int64_t dim = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

struct ScatterRowsParams {
  // [n_rows, dim] f32, `x_stride` elements apart.
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t n_rows = 0;
  int64_t dim = 0;
  // [n_rows], the host's: where each row's dim f32 begin, of any alignment, no
  // two overlapping.
  uint8_t* const* out = nullptr;
};

void EmbedRowsRef(const EmbedRowsParams& params);
void CopyRowsRef(const CopyRowsParams& params);
void ScatterRowsRef(const ScatterRowsParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_MOVES_H_
