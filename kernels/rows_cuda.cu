// SPDX-License-Identifier: Apache-2.0
//
// One thread a quad of neighbouring elements of a row, striding by the grid.
//
// Wide: EmbedRowsKernel loads stores
// Wide: GatherRowsKernel loads stores
// Wide: ScatterRowsKernel loads stores
// Wide: AddRowsKernel loads stores

#include "kernels/device_quads.h"
#include "kernels/rows_cuda.h"

namespace torpor::kernels {
namespace {

using device::kQuadThreads;
using device::LoadQuad;
using device::Quad;
using device::StoreQuad;

// Calls use(row, column, elements left in the row) for each quad of n_rows
// rows that is this thread's.
template <typename Use>
TORPOR_DEVICE_ONLY inline void ForQuads(int64_t n_rows, int64_t dim, Use use) {
  const int64_t quads = (dim + 3) / 4;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at < n_rows * quads; at += step) {
    const int64_t i = at % quads * 4;
    use(at / quads, i, dim - i);
  }
}

TORPOR_KERNEL(kQuadThreads)
void EmbedRowsKernel(EmbedRowsParams p, bool table_aligned, bool out_aligned) {
  ForQuads(p.n_rows, p.dim, [&](int64_t row, int64_t i, int64_t n) {
    Quad q =
        LoadQuad(p.table, p.dtype, static_cast<int64_t>(p.ids[row]) * p.dim + i,
                 n, table_aligned);
    for (float& v : q.v) v *= p.scale;
    StoreQuad(q, p.out + row * p.dim + i, n, out_aligned);
  });
}

TORPOR_KERNEL(kQuadThreads)
void GatherRowsKernel(IndexedRowsParams p, bool aligned) {
  ForQuads(p.n_rows, p.dim, [&](int64_t row, int64_t i, int64_t n) {
    const float* from = p.x + static_cast<int64_t>(p.index[row]) * p.dim;
    StoreQuad(LoadQuad(from + i, n, aligned), p.out + row * p.dim + i, n,
              aligned);
  });
}

TORPOR_KERNEL(kQuadThreads)
void ScatterRowsKernel(IndexedRowsParams p, bool aligned) {
  ForQuads(p.n_rows, p.dim, [&](int64_t row, int64_t i, int64_t n) {
    float* to = p.out + static_cast<int64_t>(p.index[row]) * p.dim;
    StoreQuad(LoadQuad(p.x + row * p.dim + i, n, aligned), to + i, n, aligned);
  });
}

TORPOR_KERNEL(kQuadThreads)
void AddRowsKernel(IndexedRowsParams p, bool aligned) {
  ForQuads(p.n_rows, p.dim, [&](int64_t row, int64_t i, int64_t n) {
    float* out = p.out + row * p.dim + i;
    Quad sum = LoadQuad(out, n, aligned);
    for (int64_t pick = 0; pick < p.n_picks; ++pick) {
      const int64_t from = p.index[row * p.n_picks + pick];
      if (from < 0) continue;
      const Quad x = LoadQuad(p.x + from * p.dim + i, n, aligned);
      for (int j = 0; j < 4; ++j) sum.v[j] += x.v[j];
    }
    StoreQuad(sum, out, n, aligned);
  });
}

template <typename Kernel>
int Launch(Kernel kernel, const IndexedRowsParams& p, CudaStream stream) {
  const int64_t quads = p.n_rows * ((p.dim + 3) / 4);
  if (quads == 0) return 0;
  const bool aligned =
      device::QuadsAligned(p.x, p.dim) && device::QuadsAligned(p.out, p.dim);
  return TORPOR_LAUNCH(kernel, device::BlocksFor(quads, kQuadThreads),
                       kQuadThreads, 0, stream, p, aligned);
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

int GatherRowsCuda(const IndexedRowsParams& params, CudaStream stream) {
  return Launch(GatherRowsKernel, params, stream);
}

int ScatterRowsCuda(const IndexedRowsParams& params, CudaStream stream) {
  return Launch(ScatterRowsKernel, params, stream);
}

int AddRowsCuda(const IndexedRowsParams& params, CudaStream stream) {
  return Launch(AddRowsKernel, params, stream);
}

}  // namespace torpor::kernels
