// SPDX-License-Identifier: Apache-2.0
//
// The tensor cores' product of kernels/gemm_cuda.h: mma.sync m16n8k16 in bf16
// with f32 sums. Tiles of 64 x 64, four warps of 32 x 32 each; one shape for
// every number of rows, so that a row's order of k never changes.
//
// No figure of a device is known.
//
// Wide: GemmMmaKernel loads

#include "kernels/gemm_tile_cuda.h"
#include "kernels/mma_cuda.h"

namespace torpor::kernels {
namespace {

constexpr int kMmaThreads = 128;
constexpr int kMmaTile = 64;
// k of one step through shared memory: two instructions.
constexpr int kMmaK = 32;
constexpr int kMmaUnits = kMmaK / 8;
// bf16 from row to row in shared memory: the eight rows of a fragment lie in
// different banks.
constexpr int kMmaStride = kMmaK + 8;
constexpr int kMmaLoads = kMmaTile * kMmaUnits / kMmaThreads;

// 16 bytes of k each.
struct MmaStep {
  uint4 a[kMmaLoads];
  uint4 b[kMmaLoads];
};

// Eight of a row of a.
TORPOR_DEVICE_ONLY TORPOR_INLINE uint4 UnitOfA(const Bf16* p, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint4*>(p);
  float v[8];
  LoadUnitOfA<8>(p, 8, false, v);
  return PackUnit(v);
}

TORPOR_DEVICE_ONLY TORPOR_INLINE void FetchMma(const GemmArgs& args,
                                               const GemmRows& rows, int64_t k,
                                               MmaStep* step) {
  TORPOR_UNROLL
  for (int i = 0; i < kMmaLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kMmaThreads;
    // A row's units together for a; a unit's columns together for b.
    const int row = at / kMmaUnits;
    const int64_t a_k = k + at % kMmaUnits * 8;
    step->a[i] = make_uint4(0, 0, 0, 0);
    if (row < rows.n_rows && a_k < args.b.k) {
      step->a[i] = UnitOfA(GemmRowOfA<Bf16>(args, rows.entry + row) + a_k,
                           args.a_aligned);
    }
    const int64_t n =
        static_cast<int64_t>(blockIdx.x) * kMmaTile + at % kMmaTile;
    const int64_t b_k = k + at / kMmaTile * 8;
    step->b[i] = make_uint4(0, 0, 0, 0);
    if (n < args.b.n && b_k < args.b.k) {
      step->b[i] = rows.b[args.b.Index(n, b_k) / 8];
    }
  }
}

TORPOR_DEVICE_ONLY TORPOR_INLINE void StoreMma(const MmaStep& step, Bf16* a,
                                               Bf16* b) {
  TORPOR_UNROLL
  for (int i = 0; i < kMmaLoads; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kMmaThreads;
    *reinterpret_cast<uint4*>(a + at / kMmaUnits * kMmaStride +
                              at % kMmaUnits * 8) = step.a[i];
    *reinterpret_cast<uint4*>(b + at % kMmaTile * kMmaStride +
                              at / kMmaTile * 8) = step.b[i];
  }
}

TORPOR_DEVICE_ONLY TORPOR_INLINE uint32_t PairAt(const Bf16* tile, int row,
                                                 int k) {
  return *reinterpret_cast<const uint32_t*>(tile + row * kMmaStride + k);
}

// A warp's 32 x 32 of the tile, 16 of k from `k` on; of its rows those that
// there are, in steps of 16.
TORPOR_DEVICE_ONLY TORPOR_INLINE void MultiplyMma(const Bf16* a, const Bf16* b,
                                                  int k, int n_rows,
                                                  float (&c)[2][4][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(threadIdx.x) % 32 / 4;
  const int pair = k + static_cast<int>(threadIdx.x) % 4 * 2;
  const int left = n_rows - warp / 2 * 32;
  if (left <= 0) return;
  uint32_t as[2][4];
  TORPOR_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = warp / 2 * 32 + i * 16 + row;
    as[i][0] = PairAt(a, at, pair);
    as[i][1] = PairAt(a, at + 8, pair);
    as[i][2] = PairAt(a, at, pair + 8);
    as[i][3] = PairAt(a, at + 8, pair + 8);
  }
  TORPOR_UNROLL
  for (int j = 0; j < 4; ++j) {
    const int at = warp % 2 * 32 + j * 8 + row;
    const uint32_t b0 = PairAt(b, at, pair);
    const uint32_t b1 = PairAt(b, at, pair + 8);
    TORPOR_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (i * 16 < left) device::Mma(as[i], b0, b1, c[i][j]);
    }
  }
}

TORPOR_DEVICE_ONLY TORPOR_INLINE void StoreMmaTile(const GemmArgs& args,
                                                   const GemmRows& rows,
                                                   const float (&c)[2][4][4]) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TORPOR_UNROLL
  for (int at = 0; at < 32; ++at) {
    const int i = at / 16;
    const int j = at / 4 % 4;
    const int e = at % 4;
    const int row = warp / 2 * 32 + i * 16 + e / 2 * 8 + lane / 4;
    const int64_t n = static_cast<int64_t>(blockIdx.x) * kMmaTile +
                      warp % 2 * 32 + j * 8 + lane % 4 * 2 + e % 2;
    if (row >= rows.n_rows || n >= args.b.n) continue;
    const float bias = args.bias == nullptr ? 0.0f : args.bias[n];
    args.c[(rows.entry + row) * args.b.n + n] = c[i][j][e] + bias;
  }
}

TORPOR_KERNEL(kMmaThreads)
void GemmMmaKernel(GemmArgs args) {
  TORPOR_SHARED(uint4, a_units, kMmaTile * kMmaStride / 8);
  TORPOR_SHARED(uint4, b_units, kMmaTile * kMmaStride / 8);
  auto* a = reinterpret_cast<Bf16*>(a_units);
  auto* b = reinterpret_cast<Bf16*>(b_units);
  const GemmRows rows = FindGemmRows(args, kMmaTile, blockIdx.y);
  if (rows.n_rows <= 0) return;
  float c[2][4][4] = {};
  MmaStep step;
  FetchMma(args, rows, 0, &step);
  for (int64_t k = 0; k < args.b.k; k += kMmaK) {
    StoreMma(step, a, b);
    __syncthreads();
    FetchMma(args, rows, k + kMmaK, &step);
    // Zeros behind the last 16 of k would be one more step for some k.
    for (int at = 0; at < kMmaK && k + at < args.b.k; at += 16) {
      MultiplyMma(a, b, at, rows.n_rows, c);
    }
    __syncthreads();
  }
  StoreMmaTile(args, rows, c);
}

}  // namespace

int LaunchGemmMma(const GemmArgs& args, DType a_dtype, CudaStream stream) {
  if (a_dtype != DType::kBf16 || !FitsTensorCores(args.b)) {
    return kCudaInvalidValue;
  }
  const dim3 grid(static_cast<unsigned>((args.b.n + kMmaTile - 1) / kMmaTile),
                  static_cast<unsigned>(device::TilesAtMost(
                      args.n_entries, args.n_groups, kMmaTile)));
  return TORPOR_LAUNCH(GemmMmaKernel, grid, kMmaThreads, 0, stream, args);
}

}  // namespace torpor::kernels
