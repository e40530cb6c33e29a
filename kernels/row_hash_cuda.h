// SPDX-License-Identifier: Apache-2.0
//
// XXH3-64 with seed 0 of each of many rows of bytes, equal to base/hash.h's. A
// witness (replay/witness.h) is the XXH3-128 of such numbers over a layer's
// window rows: with GetKvRowsCuda laying K and V of a row side by side, a
// device hashes its window where it stands, and eight bytes a row leave it.
// Floor: each row read once, 8 bytes a row written.

#ifndef TORPOR_KERNELS_ROW_HASH_CUDA_H_
#define TORPOR_KERNELS_ROW_HASH_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"

namespace torpor::kernels {

struct RowHashParams {
  // [n_rows, n_bytes], `stride` bytes from row to row, of any alignment; rows
  // at multiples of 8 bytes are read in words.
  const uint8_t* rows = nullptr;
  int64_t n_rows = 0;
  int64_t n_bytes = 0;
  int64_t stride = 0;
  uint64_t* out = nullptr;  // [n_rows]
};

// Pointers are device pointers. 0 or CUDA's error number; never synchronises.
int RowHashCuda(const RowHashParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ROW_HASH_CUDA_H_
