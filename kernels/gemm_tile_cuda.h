// SPDX-License-Identifier: Apache-2.0
//
// What the kernels behind kernels/gemm_cuda.h share: which rows a block has,
// and units of k in registers. Internal.

#ifndef TORPOR_KERNELS_GEMM_TILE_CUDA_H_
#define TORPOR_KERNELS_GEMM_TILE_CUDA_H_

#include <cstdint>

#include "kernels/cuda_errors.h"
#include "kernels/device_quads.h"
#include "kernels/device_tiles.h"
#include "kernels/gemm_cuda.h"

namespace torpor::kernels {

// Both entry points as one: a plain product is one group without an index.
struct GemmArgs {
  const void* a = nullptr;
  // Whether every unit of every row of a may be loaded whole.
  bool a_aligned = false;
  bool c_aligned = false;
  const int32_t* row_index = nullptr;
  const int32_t* group_begin = nullptr;
  int64_t n_groups = 1;
  int64_t n_entries = 0;
  DeviceMatrix b;
  const void* const* matrices = nullptr;
  const float* bias = nullptr;
  float* c = nullptr;
};

// A block's rows: entries [entry, entry + n_rows) and their matrix.
struct GemmRows {
  const uint4* b = nullptr;
  int64_t entry = 0;
  int n_rows = 0;
};

TORPOR_DEVICE_ONLY TORPOR_INLINE GemmRows FindGemmRows(const GemmArgs& args,
                                                       int tile_rows,
                                                       int64_t target) {
  if (args.group_begin == nullptr) {
    const int64_t entry = target * tile_rows;
    const int64_t left = args.n_entries - entry;
    return {static_cast<const uint4*>(args.b.data), entry,
            static_cast<int>(left < tile_rows ? left : tile_rows)};
  }
  const int32_t* begin = args.group_begin;
  const device::RowTile tile = device::FindTile(
      args.n_groups, tile_rows, target,
      [begin](int64_t g) -> int64_t { return begin[g + 1] - begin[g]; });
  if (tile.group < 0) return {};
  return {static_cast<const uint4*>(args.matrices[tile.group]),
          begin[tile.group] + tile.row, tile.n_rows};
}

// Row of a of an entry.
template <typename A>
TORPOR_DEVICE_ONLY inline const A* GemmRowOfA(const GemmArgs& args,
                                              int64_t entry) {
  const int64_t row = args.row_index == nullptr ? entry : args.row_index[entry];
  return static_cast<const A*>(args.a) + row * args.b.k;
}

// Elements of a unit of the weights' type.
template <typename B>
inline constexpr int kUnit = 16 / static_cast<int>(sizeof(B));

// kN elements of a row from p on, of which n exist; zeros behind them.
template <int kN, typename A>
TORPOR_DEVICE_ONLY TORPOR_INLINE void LoadUnitOfA(const A* p, int64_t n,
                                                  bool aligned, float* out) {
  if constexpr (kN == 8 && sizeof(A) == 2) {
    if (aligned && n >= 8) {
      const uint4 x = *reinterpret_cast<const uint4*>(p);
      const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
      for (int i = 0; i < 4; ++i) {
        out[2 * i] = device::LowBf16(pairs[i]);
        out[2 * i + 1] = device::HighBf16(pairs[i]);
      }
      return;
    }
  }
  for (int i = 0; i < kN; i += 4) {
    const device::Quad q = device::LoadQuad(p + i, n - i, aligned);
    for (int j = 0; j < 4; ++j) out[i + j] = q.v[j];
  }
}

TORPOR_DEVICE_ONLY inline void UnpackUnit(const uint4& x, float (&out)[8]) {
  const uint32_t pairs[4] = {x.x, x.y, x.z, x.w};
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = device::LowBf16(pairs[i]);
    out[2 * i + 1] = device::HighBf16(pairs[i]);
  }
}

TORPOR_DEVICE_ONLY inline void UnpackUnit(const uint4& x, float (&out)[4]) {
  out[0] = __uint_as_float(x.x);
  out[1] = __uint_as_float(x.y);
  out[2] = __uint_as_float(x.z);
  out[3] = __uint_as_float(x.w);
}

// Eight values as the bf16 of a unit.
TORPOR_DEVICE_ONLY inline uint4 PackUnit(const float (&v)[8]) {
  return make_uint4(device::Bf16Pair(v[0], v[1]), device::Bf16Pair(v[2], v[3]),
                    device::Bf16Pair(v[4], v[5]), device::Bf16Pair(v[6], v[7]));
}

// kTensorCores, in gemm_mma_cuda.cu.
int LaunchGemmMma(const GemmArgs& args, DType a_dtype, CudaStream stream);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_GEMM_TILE_CUDA_H_
