// SPDX-License-Identifier: Apache-2.0
//
// kernels/attention.h on a device, over pages of kernels/kv_page_cuda.h. The
// order of a row's operations is the contract's: pages of 64 within splits of
// 1,024 at absolute positions, splits merged in ascending order; a score is one
// ascending chain of fused multiply-adds over head_dim, a value one over keys.
// Tiles, grid, batch and the workspace's size change no bit (design D9).
//
// Blocks compute (tile of rows, KV head, split) in parallel into a workspace; a
// second kernel merges a row's splits. Floor: 4 * rows * keys * head_dim
// operations a head; K and V read once a tile of up to 32 query rows; beside
// that 8 * head_dim bytes a row, head and split.
//
// Every pointer, nested ones too, is a device pointer. The launcher returns 0
// or CUDA's error number and never synchronises.

#ifndef TORPOR_KERNELS_ATTENTION_CUDA_H_
#define TORPOR_KERNELS_ATTENTION_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda_stream.h"

namespace torpor::kernels {

// The widest head that the kernels are compiled for.
inline constexpr int64_t kAttentionHeadDimMax = 512;

struct AttentionCudaParams {
  // shape.head_dim is a multiple of 16, at most kAttentionHeadDimMax.
  AttentionParams attention;
  // Rows of all segments together.
  int64_t n_rows = 0;
  // At least the splits that any row's keys touch:
  // (end - 1) / kSplitTokens - begin / kSplitTokens + 1.
  int64_t max_splits = 0;
  // 16-byte aligned. Rows that do not fit together run in turns.
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

struct AttentionWorkspace {
  // Less is refused.
  size_t bytes_min = 0;
  // More is of no use.
  size_t bytes_max = 0;
};
// Reads shapes and counts, no pointer.
AttentionWorkspace AttentionWorkspaceOf(const AttentionCudaParams& params);

// Error 1 (invalid value): a head_dim that is no multiple of 16 or too large,
// heads that are no multiple of the KV heads, max_splits below 1, a workspace
// below bytes_min.
int AttentionCuda(const AttentionCudaParams& params, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ATTENTION_CUDA_H_
