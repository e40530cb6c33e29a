// SPDX-License-Identifier: Apache-2.0
//
// Wide: EmbedRowsKernel loads stores
// Wide: ScatterRowsKernel loads stores

#include "kernels/device_bytes.h"
#include "kernels/device_quads.h"
#include "kernels/rows_cuda.h"

namespace torpor::kernels {
namespace {

using device::kQuadThreads;
using device::LoadQuad;
using device::Quad;
using device::StoreQuad;

// A thread has a quad of neighbouring elements of a row, and strides by the
// grid.
TORPOR_KERNEL(kQuadThreads)
void EmbedRowsKernel(EmbedRowsParams p, bool table_aligned, bool out_aligned) {
  const int64_t quads = (p.dim + 3) / 4;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at < p.n_rows * quads; at += step) {
    const int64_t row = at / quads;
    const int64_t i = at % quads * 4;
    Quad q =
        LoadQuad(p.table, p.dtype, static_cast<int64_t>(p.ids[row]) * p.dim + i,
                 p.dim - i, table_aligned);
    for (float& v : q.v) v *= p.scale;
    StoreQuad(q, p.out + row * p.dim + i, p.dim - i, out_aligned);
  }
}

constexpr int kScatterThreads = 128;
constexpr int kScatterRows = kScatterThreads / 32;

// A warp has a row.
TORPOR_KERNEL(kScatterThreads)
void ScatterRowsKernel(ScatterRowsParams p) {
  const int64_t row = int64_t{blockIdx.x} * kScatterRows + threadIdx.x / 32;
  if (row >= p.n_rows) return;
  device::CopyByWarp(reinterpret_cast<const uint8_t*>(p.x + row * p.x_stride),
                     p.out[row], p.dim * static_cast<int64_t>(sizeof(float)));
}

}  // namespace

int EmbedRowsCuda(const EmbedRowsParams& params, CudaStream stream) {
  const int64_t quads = params.n_rows * ((params.dim + 3) / 4);
  if (quads == 0) return 0;
  return TORPOR_LAUNCH(
      EmbedRowsKernel, device::BlocksFor(quads, kQuadThreads), kQuadThreads, 0,
      stream, params,
      device::QuadsAligned(params.table, params.dtype, params.dim),
      device::QuadsAligned(params.out, params.dim));
}

int ScatterRowsCuda(const ScatterRowsParams& params, CudaStream stream) {
  if (params.n_rows == 0) return 0;
  const auto blocks =
      static_cast<unsigned>((params.n_rows + kScatterRows - 1) / kScatterRows);
  return TORPOR_LAUNCH(ScatterRowsKernel, blocks, kScatterThreads, 0, stream,
                       params);
}

}  // namespace torpor::kernels
