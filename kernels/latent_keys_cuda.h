// SPDX-License-Identifier: Apache-2.0
//
// Names the keys that rows of kernels/latent_attention.h read, from their
// windows and from picks that never leave the GPU: each row's list of pointers,
// its window's records in ascending order of positions, then its picks'. All
// pointers are the device's.
// Floor: every pointer written once.

#ifndef TORPOR_KERNELS_LATENT_KEYS_CUDA_H_
#define TORPOR_KERNELS_LATENT_KEYS_CUDA_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda_stream.h"
#include "kernels/latent_attention.h"

namespace torpor::kernels {

// Records of one layer of one sequence. Page j holds rows [j, j + 1) *
// page_rows, one after the other.
struct LatentPages {
  // Position p is row p % ring_rows; 0 = row p.
  const uint8_t* const* window = nullptr;
  int64_t ring_rows = 0;
  const uint8_t* const* entries = nullptr;
};

struct NameLatentKeysParams {
  int64_t n_rows = 0;
  const LatentPages* sequences = nullptr;
  const int32_t* sequence_of = nullptr;  // [n_rows]
  int64_t page_rows = 0;
  int64_t window_bytes = 0;  // of a record
  int64_t entry_bytes = 0;
  const KeyRange* windows = nullptr;  // [n_rows], positions
  // [n_rows, picks_stride], of which row r has n_picks[r]; null: no entries.
  const int32_t* picks = nullptr;
  int64_t picks_stride = 0;
  const int32_t* n_picks = nullptr;  // [n_rows]
  // [n_rows, n_keys_max]. A row of more keys gets none of them, and its count
  // says so: LatentAttentionCuda makes NaN of it.
  const uint8_t** lists = nullptr;
  int64_t n_keys_max = 0;
  LatentKeys* keys = nullptr;  // [n_rows]
};

// Launched on `stream`; 0, or CUDA's error number.
int NameLatentKeysCuda(const NameLatentKeysParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LATENT_KEYS_CUDA_H_
