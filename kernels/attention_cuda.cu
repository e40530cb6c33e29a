// SPDX-License-Identifier: Apache-2.0
//
// Grid of the first kernel: (tiles of positions, KV heads x tiles of their
// query heads, splits); of the second the same without splits.
//
// Wide: AttentionPartsKernel loads stores
// Wide: AttentionMergeKernel loads stores

#include <algorithm>

#include "kernels/attention_block_cuda.h"
#include "kernels/attention_cuda.h"
#include "kernels/cuda_errors.h"

namespace torpor::kernels {
namespace {

// Enough splits in flight to fill a device; a block takes every 64th.
constexpr int64_t kSplitBlocks = 64;
constexpr int64_t kGridTiles = 1 << 20;

template <typename T, int kSlices, int kRowsPerThread>
TORPOR_KERNEL(kAttentionThreads, 2)
void AttentionPartsKernel(AttentionArgs args) {
  TORPOR_DYNAMIC_SHARED(float, shared);
  const AttentionRows rows = FindAttentionRows(args);
  if (rows.n_positions == 0) return;
  AttentionBlock<T, kSlices, kRowsPerThread> block(args, rows, shared);
  block.LoadQueries();
  int64_t first;
  int64_t last;
  block.Splits(&first, &last);
  for (int64_t split = first + blockIdx.z; split <= last; split += gridDim.z) {
    block.RunSplit(split);
  }
}

// A row's parts in ascending order of their splits, as MergeAttention of
// kernels/attention_cpu.h merges them; a thread has four dimensions of a row.
TORPOR_KERNEL(kAttentionThreads)
void AttentionMergeKernel(AttentionArgs args, bool aligned) {
  const AttentionRows rows = FindAttentionRows(args);
  const int hd = static_cast<int>(args.p.shape.head_dim);
  const int quads = hd / 4;
  for (int at = static_cast<int>(threadIdx.x); at < rows.n_rows() * quads;
       at += kAttentionThreads) {
    const int r = at / quads;
    const int d = at % quads * 4;
    const KeyRange keys = rows.Keys(r);
    const int64_t n_parts =
        (keys.end - 1) / kSplitTokens - keys.begin / kSplitTokens + 1;
    const float* part = PartOf(args, r, 0);
    device::Quad acc = device::LoadQuad(part + d, 4, true);
    float max = part[hd];
    float sum = part[hd + 1];
    for (int64_t i = 1; i < n_parts; ++i) {
      part += hd + 4;
      const float part_max = part[hd];
      const float new_max = max > part_max ? max : part_max;
      const float kept = device::Exp(max - new_max);
      const float added = device::Exp(part_max - new_max);
      const device::Quad more = device::LoadQuad(part + d, 4, true);
      for (int j = 0; j < 4; ++j) {
        acc.v[j] = fmaf(more.v[j], added, acc.v[j] * kept);
      }
      sum = sum * kept + part[hd + 1] * added;
      max = new_max;
    }
    float inverse = 1.0f / sum;
    if (args.p.sinks != nullptr) {
      const float sink = args.p.sinks[rows.head + r % rows.n_heads];
      const float new_max = max > sink ? max : sink;
      const float kept = device::Exp(max - new_max);
      inverse = kept / (sum * kept + device::Exp(sink - new_max));
    }
    for (float& v : acc.v) v *= inverse;
    device::StoreQuad(acc, args.p.out, args.p.out_dtype,
                      rows.Offset(args.p, r) + d, 4, aligned);
  }
}

// How rows are cut into tiles.
struct Tiling {
  int rows_per_thread = 0;
  int rows = 0;
  int positions = 0;
  int heads = 0;
  int head_tiles = 0;
  int64_t n_tiles = 0;
  // Of the parts of one tile of positions.
  size_t tile_bytes = 0;
};

Tiling TilingOf(const AttentionCudaParams& params) {
  const AttentionParams& p = params.attention;
  const int64_t group = p.n_heads / p.shape.n_kv_heads;
  Tiling t;
  // Decoding has a row or two a segment; wide heads fill registers.
  const bool narrow =
      params.n_rows * group <= kAttentionRowLanes * p.n_segments;
  t.rows_per_thread = narrow ? 1 : p.shape.head_dim > 4 * kSlice ? 2 : 4;
  t.rows = kAttentionRowLanes * t.rows_per_thread;
  t.heads = static_cast<int>(std::min<int64_t>(group, t.rows));
  t.head_tiles = static_cast<int>((group + t.heads - 1) / t.heads);
  t.positions = t.rows / t.heads;
  t.n_tiles = device::TilesAtMost(params.n_rows, p.n_segments, t.positions);
  t.tile_bytes =
      static_cast<size_t>(p.shape.n_kv_heads * t.head_tiles * t.rows *
                          params.max_splits * (p.shape.head_dim + 4)) *
      sizeof(float);
  return t;
}

template <typename T, int kSlices, int kRowsPerThread>
int LaunchParts(const AttentionArgs& args, dim3 grid, CudaStream stream) {
  const auto shared = static_cast<size_t>(AttentionSharedFloats(
                          args.rows, args.p.shape.head_dim)) *
                      sizeof(float);
  return TORPOR_LAUNCH((AttentionPartsKernel<T, kSlices, kRowsPerThread>), grid,
                       kAttentionThreads, shared, stream, args);
}

template <typename T>
int LaunchPartsOf(const AttentionArgs& args, const Tiling& t, dim3 grid,
                  CudaStream stream) {
  const int64_t hd = args.p.shape.head_dim;
  const bool narrow = t.rows_per_thread == 1;
  if (hd <= kSlice) {
    return narrow ? LaunchParts<T, 1, 1>(args, grid, stream)
                  : LaunchParts<T, 1, 4>(args, grid, stream);
  }
  if (hd <= 2 * kSlice) {
    return narrow ? LaunchParts<T, 2, 1>(args, grid, stream)
                  : LaunchParts<T, 2, 4>(args, grid, stream);
  }
  if (hd <= 4 * kSlice) {
    return narrow ? LaunchParts<T, 4, 1>(args, grid, stream)
                  : LaunchParts<T, 4, 4>(args, grid, stream);
  }
  return narrow ? LaunchParts<T, 8, 1>(args, grid, stream)
                : LaunchParts<T, 8, 2>(args, grid, stream);
}

// Tiles [args.first_tile, + n_tiles).
int LaunchTiles(const AttentionArgs& args, const Tiling& t, int64_t n_tiles,
                CudaStream stream) {
  const AttentionParams& p = args.p;
  const dim3 grid(
      static_cast<unsigned>(n_tiles),
      static_cast<unsigned>(p.shape.n_kv_heads * t.head_tiles),
      static_cast<unsigned>(std::min<int64_t>(args.max_splits, kSplitBlocks)));
  const int error = p.shape.dtype == DType::kBf16
                        ? LaunchPartsOf<Bf16>(args, t, grid, stream)
                        : LaunchPartsOf<float>(args, t, grid, stream);
  if (error != 0) return error;
  const bool aligned =
      device::QuadsAligned(p.out, p.out_dtype, p.shape.head_dim);
  return TORPOR_LAUNCH(AttentionMergeKernel, dim3(grid.x, grid.y),
                       kAttentionThreads, 0, stream, args, aligned);
}

}  // namespace

AttentionWorkspace AttentionWorkspaceOf(const AttentionCudaParams& params) {
  const Tiling t = TilingOf(params);
  return {t.tile_bytes, t.tile_bytes * static_cast<size_t>(t.n_tiles)};
}

int AttentionCuda(const AttentionCudaParams& params, CudaStream stream) {
  const AttentionParams& p = params.attention;
  if (params.n_rows == 0) return 0;
  if (p.shape.head_dim % 16 != 0 || p.shape.head_dim > kAttentionHeadDimMax ||
      p.n_heads % p.shape.n_kv_heads != 0 || params.max_splits < 1) {
    return kCudaInvalidValue;
  }
  const Tiling t = TilingOf(params);
  if (params.workspace_bytes < t.tile_bytes) return kCudaInvalidValue;
  AttentionArgs args;
  args.p = p;
  args.max_splits = params.max_splits;
  args.positions = t.positions;
  args.heads = t.heads;
  args.head_tiles = t.head_tiles;
  args.rows = t.rows;
  args.parts = static_cast<float*>(params.workspace);
  const int64_t at_once = std::min<int64_t>(
      kGridTiles, static_cast<int64_t>(params.workspace_bytes / t.tile_bytes));
  for (int64_t tile = 0; tile < t.n_tiles; tile += at_once) {
    args.first_tile = tile;
    const int error =
        LaunchTiles(args, t, std::min(at_once, t.n_tiles - tile), stream);
    if (error != 0) return error;
  }
  return 0;
}

}  // namespace torpor::kernels
