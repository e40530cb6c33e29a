// SPDX-License-Identifier: Apache-2.0
//
// One thread turns a few neighbouring pairs of one head: four of split halves
// (a quad of each half), two interleaved ones (one quad).
//
// Wide: RopeKernel loads stores
// Wide: RopeTailKernel loads stores

#include "kernels/device_quads.h"
#include "kernels/rope_cuda.h"

namespace torpor::kernels {
namespace {

using device::kQuadThreads;
using device::LoadQuad;
using device::Quad;
using device::StoreQuad;

TORPOR_KERNEL(kQuadThreads)
void RopeKernel(RopeParams p, bool x_aligned, bool tables_aligned) {
  const int64_t half = p.head_dim / 2;
  const int64_t quads = (half + 3) / 4;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at < p.n_rows * p.n_heads * quads; at += step) {
    const int64_t head = at / quads;
    const int64_t j = at % quads * 4;
    float* x = p.x + head * p.head_dim + j;
    const float* table = p.tables + head / p.n_heads * p.head_dim + j;
    const Quad a = LoadQuad(x, half - j, x_aligned);
    const Quad b = LoadQuad(x + half, half - j, x_aligned);
    const Quad cos = LoadQuad(table, half - j, tables_aligned);
    const Quad sin = LoadQuad(table + half, half - j, tables_aligned);
    Quad first;
    Quad second;
    for (int i = 0; i < 4; ++i) {
      first.v[i] = a.v[i] * cos.v[i] - b.v[i] * sin.v[i];
      second.v[i] = b.v[i] * cos.v[i] + a.v[i] * sin.v[i];
    }
    StoreQuad(first, x, half - j, x_aligned);
    StoreQuad(second, x + half, half - j, x_aligned);
  }
}

TORPOR_KERNEL(kQuadThreads)
void RopeTailKernel(RopeTailParams p, bool aligned) {
  const int64_t quads = (p.rope_dim + 3) / 4;
  const int64_t half = p.rope_dim / 2;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kQuadThreads;
  for (int64_t at =
           static_cast<int64_t>(blockIdx.x) * kQuadThreads + threadIdx.x;
       at < p.n_rows * p.n_heads * quads; at += step) {
    const int64_t head = at / quads;
    const int64_t i = at % quads * 4;
    float* x = p.x + (head + 1) * p.head_dim - p.rope_dim + i;
    const float* cos = p.tables + head / p.n_heads * p.rope_dim + i / 2;
    const float* sin = cos + half;
    Quad v = LoadQuad(x, p.rope_dim - i, aligned);
    for (int j = 0; j < 2 && i + 2 * j < p.rope_dim; ++j) {
      const float a = v.v[2 * j];
      const float b = v.v[2 * j + 1];
      const float s = p.inverse ? -sin[j] : sin[j];
      v.v[2 * j] = a * cos[j] - b * s;
      v.v[2 * j + 1] = b * cos[j] + a * s;
    }
    StoreQuad(v, x, p.rope_dim - i, aligned);
  }
}

}  // namespace

int RopeCuda(const RopeParams& params, CudaStream stream) {
  const int64_t half = params.head_dim / 2;
  const int64_t quads = params.n_rows * params.n_heads * ((half + 3) / 4);
  if (quads == 0) return 0;
  // Both halves are quads of whole rows when the half is.
  return TORPOR_LAUNCH(RopeKernel, device::BlocksFor(quads, kQuadThreads),
                       kQuadThreads, 0, stream, params,
                       device::QuadsAligned(params.x, half),
                       device::QuadsAligned(params.tables, half));
}

int RopeTailCuda(const RopeTailParams& params, CudaStream stream) {
  const int64_t quads =
      params.n_rows * params.n_heads * ((params.rope_dim + 3) / 4);
  if (quads == 0) return 0;
  const bool aligned = device::QuadsAligned(params.x, params.head_dim) &&
                       params.rope_dim % 4 == 0;
  return TORPOR_LAUNCH(RopeTailKernel, device::BlocksFor(quads, kQuadThreads),
                       kQuadThreads, 0, stream, params, aligned);
}

}  // namespace torpor::kernels
