// SPDX-License-Identifier: Apache-2.0
//
// Wide: EngramGateKernel loads stores

#include <cmath>

#include "kernels/cuda_simt.h"
#include "kernels/device_float4.h"
#include "kernels/engram_gate_cuda.h"

namespace torpor::kernels {
namespace {

using device::LoadFloat4;
using device::Plus;
using device::StoreFloat4;
using device::Times;

constexpr int kThreads = 256;
constexpr int kTile = 4 * kThreads;
constexpr int kPartials = 16;

// <x qk, key>, <x, x> and <key, key>.
constexpr int kSums = 3;
struct Shared {
  alignas(16) float terms[kSums][kTile];
  float partials[kSums][kPartials];
};

// Of one stream of one row.
struct Stream {
  const float* x;
  const float* qk;
  const float* key;
};

TORPOR_DEVICE_ONLY float4 Product(const float4& a, const float4& b) {
  return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// The terms of channels [first, first + kTile), as far as there are any.
TORPOR_DEVICE_ONLY void LoadTerms(const Stream& s, int64_t first, int64_t dim,
                                  Shared* shared) {
  const auto at = 4 * static_cast<int>(threadIdx.x);
  const int64_t i = first + at;
  const int64_t left = dim - i;
  if (left <= 0) return;
  const float4 x = LoadFloat4(s.x + i, left);
  const float4 qk = LoadFloat4(s.qk + i, left);
  const float4 key = LoadFloat4(s.key + i, left);
  StoreFloat4(shared->terms[0] + at, Product(Product(x, qk), key));
  StoreFloat4(shared->terms[1] + at, Product(x, x));
  StoreFloat4(shared->terms[2] + at, Product(key, key));
}

// Thread i of the first 48 has partial i % 16 of sum i / 16.
TORPOR_DEVICE_ONLY float AddTerms(const Shared& shared, int64_t n,
                                  float partial) {
  const float* terms = shared.terms[threadIdx.x / kPartials];
  for (auto i = static_cast<int>(threadIdx.x % kPartials); i < n;
       i += kPartials) {
    partial += terms[i];
  }
  return partial;
}

TORPOR_DEVICE_ONLY float Fold(const float* partials) {
  float folded[kPartials];
  for (int i = 0; i < kPartials; ++i) folded[i] = partials[i];
  for (int half = kPartials / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) folded[i] += folded[i + half];
  }
  return folded[0];
}

// The gate of a stream, in every thread.
TORPOR_DEVICE_ONLY float Gate(const Stream& s, int64_t dim, float eps,
                              Shared* shared) {
  const bool sums = threadIdx.x < kSums * kPartials;
  float partial = 0.0f;
  for (int64_t first = 0; first < dim; first += kTile) {
    LoadTerms(s, first, dim, shared);
    __syncthreads();
    const int64_t left = dim - first;
    if (sums) partial = AddTerms(*shared, left < kTile ? left : kTile, partial);
    __syncthreads();
  }
  if (sums) {
    shared->partials[threadIdx.x / kPartials][threadIdx.x % kPartials] =
        partial;
  }
  __syncthreads();
  const float dot = Fold(shared->partials[0]);
  const float of_x = Fold(shared->partials[1]);
  const float of_key = Fold(shared->partials[2]);
  const auto n = static_cast<float>(dim);
  const float t =
      dot / sqrtf(of_x / n + eps) / sqrtf(of_key / n + eps) / sqrtf(n);
  // A NaN stays one.
  const float size = fabsf(t) < 1e-6f ? 1e-6f : fabsf(t);
  const float root = copysignf(sqrtf(size), t);
  return static_cast<float>(1.0 / (1.0 + exp(-static_cast<double>(root))));
}

TORPOR_KERNEL(kThreads)
void EngramGateKernel(EngramGateParams p) {
  TORPOR_SHARED(Shared, shared, 1);
  const int64_t row = blockIdx.x;
  const int64_t stream = blockIdx.y;
  float* x = p.x + (row * p.n_streams + stream) * p.dim;
  const float* keys = p.kv + row * (p.n_streams + 1) * p.dim;
  const float* value = keys + p.n_streams * p.dim;
  const float gate =
      Gate({.x = x, .qk = p.qk + stream * p.dim, .key = keys + stream * p.dim},
           p.dim, p.eps, shared);
  for (int64_t i = 4 * int64_t{threadIdx.x}; i < p.dim; i += kTile) {
    const int64_t left = p.dim - i;
    StoreFloat4(
        x + i,
        Plus(LoadFloat4(x + i, left), Times(gate, LoadFloat4(value + i, left))),
        left);
  }
}

}  // namespace

int EngramGateCuda(const EngramGateParams& p, CudaStream stream) {
  if (p.n_rows == 0 || p.n_streams == 0 || p.dim == 0) return 0;
  const dim3 grid(static_cast<unsigned>(p.n_rows),
                  static_cast<unsigned>(p.n_streams));
  return TORPOR_LAUNCH(EngramGateKernel, grid, kThreads, 0, stream, p);
}

}  // namespace torpor::kernels
