// SPDX-License-Identifier: Apache-2.0
//
// kernels/latent_attention.h on a GPU. All pointers are the device's: of a
// row's LatentKeys the lists too, and the encoded rows that they name. A block
// has one row and 32 heads. It keeps all their logits in shared memory, so that
// the order of operations is the header's: dot products over ascending
// channels, the maximum of all, then sums over ascending keys. Each key is
// decoded twice for the 32 heads, once for logits and once for values.
// Floor: 4 * keys * n_heads * head_dim operations a row; keys read once.

#ifndef TORPOR_KERNELS_LATENT_ATTENTION_CUDA_H_
#define TORPOR_KERNELS_LATENT_ATTENTION_CUDA_H_

#include <cstdint>

#include "kernels/cuda_stream.h"
#include "kernels/latent_attention.h"

namespace torpor::kernels {

// Channels and keys of a row at most: what 227 KiB of shared memory hold
// (sm_90, sm_100). The 163 KiB of sm_80 hold 1,039 keys of 512 channels; more
// are CUDA's error there.
inline constexpr int64_t kLatentDimMax = 512;
inline constexpr int64_t kLatentKeysMax = 1536;

// Launched on `stream`; 0, or CUDA's error number. A row of more than
// `n_keys_max` keys comes out as NaN. REQUIRES: head_dim a multiple of 16 and
// at most kLatentDimMax, n_keys_max at most kLatentKeysMax, q and out aligned
// to 16 bytes.
int LatentAttentionCuda(const LatentAttentionParams& params, int64_t n_keys_max,
                        CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LATENT_ATTENTION_CUDA_H_
