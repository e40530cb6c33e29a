// SPDX-License-Identifier: Apache-2.0
//
// Names the keys that rows of kernels/paged_latent_attention.h read, from
// picks that never leave the GPU: each row's list of pointers, its window's
// records in ascending order of rows, then its picks'. A warp has a row. All
// pointers are the device's, those inside of segments too.
// Floor: every pointer written once.

#ifndef TORPOR_KERNELS_LATENT_KEYS_CUDA_H_
#define TORPOR_KERNELS_LATENT_KEYS_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/paged_latent_attention.h"

namespace torpor::kernels {

struct NameLatentKeysParams {
  // At most 65,535.
  const LatentSegment* segments = nullptr;
  int64_t n_segments = 0;
  // Rows of the longest segment.
  int64_t n_rows_max = 0;
  // [rows of all segments, n_keys_max]. A row of more keys gets none of them,
  // and its count says so: LatentAttentionCuda makes NaN of it.
  const uint8_t** lists = nullptr;
  int64_t n_keys_max = 0;
  LatentKeys* keys = nullptr;  // [rows of all segments]
};

// Launched on `stream`; 0, or CUDA's error number.
int NameLatentKeysCuda(const NameLatentKeysParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LATENT_KEYS_CUDA_H_
