// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_simt.h"
#include "tests/kernels/cuda_emulation_kernels.h"

namespace torpor::kernels::planted {
namespace {

constexpr int kWide = 96;
constexpr unsigned kAll = 0xffffffffu;

TORPOR_KERNEL(kWide)
void ReverseBlockKernel(const float* x, float* y, bool broken) {
  TORPOR_SHARED(float, tile, kWide);
  tile[threadIdx.x] = x[threadIdx.x];
  if (!broken) __syncthreads();
  y[threadIdx.x] = tile[kWide - 1 - threadIdx.x];
}

TORPOR_KERNEL(kWide)
void ReverseWarpsKernel(const float* x, float* y, bool broken) {
  TORPOR_SHARED(float, tile, kWide);
  const unsigned lane = threadIdx.x % 32;
  const unsigned first = threadIdx.x - lane;
  for (int round = 0; round < 3; ++round) {
    tile[threadIdx.x] = x[threadIdx.x];
    if (!broken) __syncwarp();
    y[threadIdx.x] = tile[first + 31 - lane];
    if (!broken) __syncwarp();
  }
}

TORPOR_KERNEL(kWide)
void TileSumsKernel(const float* x, float* y, int n_tiles, bool broken) {
  TORPOR_SHARED(float, tile, kWide);
  float sum = 0;
  for (int i = 0; i < n_tiles; ++i) {
    for (int turn = 0; turn < 2; ++turn) {
      tile[threadIdx.x] = x[i * kWide + static_cast<int>(threadIdx.x)];
      __syncthreads();
      sum += tile[(threadIdx.x + 40) % kWide];
      if (!broken) __syncthreads();
    }
  }
  y[(threadIdx.x + 40) % kWide] = sum / 2;
}

TORPOR_KERNEL(kWide)
void ReadThenWriteKernel(float* y, int writer, bool broken) {
  TORPOR_SHARED(float, one, 1);
  if (threadIdx.x == 0) one[0] = 1;
  __syncthreads();
  y[threadIdx.x] = one[0];
  if (!broken) __syncthreads();
  if (static_cast<int>(threadIdx.x) == writer) one[0] = 2;
}

TORPOR_KERNEL(1) void ReadFirstKernel(int* x, int* y, bool broken) {
  y[blockIdx.x] = x[0];
  if (broken && blockIdx.x + 1 == gridDim.x) x[0] = 2;
}

TORPOR_KERNEL(32)
void OnePerBlockKernel(int* y, bool broken) {
  if (threadIdx.x == 0) {
    y[broken ? 0 : blockIdx.x] = static_cast<int>(blockIdx.x);
  }
}

TORPOR_KERNEL(1)
void ChainKernel(const int* x, int* y, bool broken) {
  const unsigned block = blockIdx.x;
  y[block + 1] = (broken ? y[block] : x[block]) + 1;
}

TORPOR_KERNEL(kWide)
void AtomicSumKernel(const int* x, int* y, bool broken) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(y, x[i]);
  if (broken && threadIdx.x == 0) atomicAdd(y + 1, *y);
}

TORPOR_KERNEL(kWide)
void AtomicFloatsKernel(const float* x, float* y, int* extremes) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(y, x[i]);
  atomicMax(extremes, static_cast<int>(x[i]));
  atomicMin(extremes + 1, static_cast<int>(x[i]));
}

TORPOR_KERNEL(kWide)
void CompareAndSwapKernel(unsigned* y) {
  unsigned before = atomicCAS(y, 0u, 0u);
  for (;;) {
    const unsigned was = atomicCAS(y, before, before + 1);
    if (was == before) break;
    before = was;
  }
}

TORPOR_KERNEL(64)
void BarriersKernel(float* y, Barrier kind) {
  if (kind == Barrier::kSomeExit && threadIdx.x >= 32) return;
  if (kind == Barrier::kTwoPlaces && threadIdx.x >= 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[threadIdx.x] = 1;
}

TORPOR_KERNEL(32)
void WarpsKernel(int* y, Warp kind) {
  const unsigned lane = threadIdx.x;
  int v = static_cast<int>(lane);
  const bool upper = lane >= 16;
  switch (kind) {
    case Warp::kSound:
      v = __shfl_xor_sync(upper ? 0xffff0000u : 0x0000ffffu, v, 3);
      break;
    case Warp::kExited:
      if (upper) return;
      v = __shfl_xor_sync(kAll, v, 1);
      break;
    case Warp::kLaterExit:
      // Lanes 16.. come back from a shuffle of their own after others wait.
      if (upper) v = __shfl_xor_sync(0xffff0000u, v, 1);
      if (upper) return;
      v = __shfl_xor_sync(kAll, v, 1);
      break;
    case Warp::kAtBarrier:
      if (upper) __syncthreads();
      if (!upper) v = __shfl_xor_sync(kAll, v, 1);
      break;
    case Warp::kOtherMask:
      v = __shfl_xor_sync(upper ? 0xffff0001u : kAll, v, 1);
      break;
    case Warp::kNotInMask:
      v = __shfl_xor_sync(0x0000ffffu, v, 1);
      break;
    case Warp::kPastBlockEnd:
      break;
  }
  y[lane] = v;
}

TORPOR_KERNEL(40)
void PastBlockEndKernel(int* y) {
  y[threadIdx.x] = __shfl_xor_sync(kAll, static_cast<int>(threadIdx.x), 1);
}

TORPOR_KERNEL(64)
void WarpResultsKernel(int* y) {
  const int t = static_cast<int>(threadIdx.x);
  int* out = y + 8 * t;
  out[0] = __shfl_sync(kAll, t, 7);
  out[1] = __shfl_xor_sync(kAll, t, 5);
  out[2] = __shfl_up_sync(kAll, t, 3u);
  out[3] = __shfl_down_sync(kAll, t, 3u);
  out[4] = static_cast<int>(__ballot_sync(kAll, t % 3 == 0));
  out[5] = __any_sync(kAll, t == 40);
  out[6] = __all_sync(kAll, t < 32);
  out[7] = static_cast<int>(
      __shfl_down_sync(kAll, static_cast<unsigned long long>(t) << 40, 1u) >>
      40);
}

TORPOR_KERNEL(kWide)
void RecordOrderKernel(int* order, int* next) {
  const int me = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  order[atomicAdd(next, 1)] = me;
}

TORPOR_KERNEL(kWide) void Kernel96(int* y) { y[threadIdx.x] = 1; }

// Of another size than its neighbour, so that a mix-up would be seen.
TORPOR_KERNEL(8) void SizedKernel(int* y) {
  if (threadIdx.x + threadIdx.z == 0) y[blockIdx.y] = 1;
}

template <typename T, int kRows>
TORPOR_KERNEL(kRows * 8)
void TransposeKernel(const T* x, T* y) {
  TORPOR_SHARED(T, tile, 8 * (kRows + 1));
  const unsigned t = threadIdx.x;
  tile[t % 8 * (kRows + 1) + t / 8] = x[t];
  __syncthreads();
  y[t] = tile[t / kRows * (kRows + 1) + t % kRows];
}

}  // namespace

int ReverseBlock(const float* x, float* y, bool broken) {
  return TORPOR_LAUNCH(ReverseBlockKernel, 1, kWide, 0, nullptr, x, y, broken);
}

int ReverseWarps(const float* x, float* y, bool broken) {
  return TORPOR_LAUNCH(ReverseWarpsKernel, 1, kWide, 0, nullptr, x, y, broken);
}

int TileSums(const float* x, float* y, int n_tiles, bool broken) {
  return TORPOR_LAUNCH(TileSumsKernel, 1, kWide, 0, nullptr, x, y, n_tiles,
                       broken);
}

int ReadThenWrite(float* y, int writer, bool broken) {
  return TORPOR_LAUNCH(ReadThenWriteKernel, 1, kWide, 0, nullptr, y, writer,
                       broken);
}

int ReadFirst(int* x, int* y, int n_blocks, bool broken) {
  return TORPOR_LAUNCH(ReadFirstKernel, n_blocks, 1, 0, nullptr, x, y, broken);
}

int OnePerBlock(int* y, int n_blocks, bool broken) {
  return TORPOR_LAUNCH(OnePerBlockKernel, n_blocks, 32, 0, nullptr, y, broken);
}

int Chain(const int* x, int* y, int n_blocks, bool broken) {
  return TORPOR_LAUNCH(ChainKernel, n_blocks, 1, 0, nullptr, x, y, broken);
}

int AtomicSum(const int* x, int* y, int n_blocks, bool broken) {
  return TORPOR_LAUNCH(AtomicSumKernel, n_blocks, kWide, 0, nullptr, x, y,
                       broken);
}

int AtomicFloats(const float* x, float* y, int* extremes, int n_blocks) {
  return TORPOR_LAUNCH(AtomicFloatsKernel, n_blocks, kWide, 0, nullptr, x, y,
                       extremes);
}

int CompareAndSwap(unsigned* y, int n_blocks) {
  return TORPOR_LAUNCH(CompareAndSwapKernel, n_blocks, kWide, 0, nullptr, y);
}

int Barriers(float* y, Barrier kind) {
  return TORPOR_LAUNCH(BarriersKernel, 1, 64, 0, nullptr, y, kind);
}

int Warps(int* y, Warp kind) {
  if (kind == Warp::kPastBlockEnd) {
    return TORPOR_LAUNCH(PastBlockEndKernel, 1, 40, 0, nullptr, y);
  }
  return TORPOR_LAUNCH(WarpsKernel, 1, 32, 0, nullptr, y, kind);
}

int WarpResults(int* y) {
  return TORPOR_LAUNCH(WarpResultsKernel, 1, 64, 0, nullptr, y);
}

int RecordOrder(int* order, int* next, int n_blocks) {
  return TORPOR_LAUNCH(RecordOrderKernel, n_blocks, kWide, 0, nullptr, order,
                       next);
}

int Launch96(int* y, int n_threads) {
  return TORPOR_LAUNCH(Kernel96, 1, n_threads, 0, nullptr, y);
}

int LaunchSized(int* y, unsigned grid_y, unsigned block_z,
                size_t shared_bytes) {
  return TORPOR_LAUNCH(SizedKernel, dim3(1, grid_y),
                       dim3(8 / block_z, 1, block_z), shared_bytes, nullptr, y);
}

int TransposeBytes(const uint8_t* x, uint8_t* y) {
  return TORPOR_LAUNCH((TransposeKernel<uint8_t, 12>), 1, 96, 0, nullptr, x, y);
}

int TransposeDoubles(const double* x, double* y) {
  return TORPOR_LAUNCH((TransposeKernel<double, 5>), 1, 40, 0, nullptr, x, y);
}

}  // namespace torpor::kernels::planted
