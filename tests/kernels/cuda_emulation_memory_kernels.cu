// SPDX-License-Identifier: Apache-2.0

#include <cstring>

#include "kernels/cuda_simt.h"
#include "tests/kernels/cuda_emulation_kernels.h"

namespace torpor::kernels::planted {
namespace {

constexpr int kThreads = 64;
constexpr int kWide = 96;

TORPOR_KERNEL(kThreads)
void DoubleKernel(const float* x, float* y, int n, bool broken) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) {
    y[i] = 2 * x[i];
  } else if (broken && i == n) {
    y[i] = 0;
  }
}

TORPOR_KERNEL(kThreads)
void DifferenceKernel(const float* x, float* y, int n, bool broken) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  y[i] = i < n - 1 ? x[i + 1] - x[i] : 0.0f;
  if (broken && i == 3) y[i] = x[i - 4];
}

TORPOR_KERNEL(kWide)
void ReverseSharedKernel(const float* x, float* y, bool broken) {
  TORPOR_SHARED(float, before, 8);
  TORPOR_SHARED(float, tile, kWide);
  const int t = static_cast<int>(threadIdx.x);
  if (t < 8) before[t] = 0;
  tile[broken ? t + 1 : t] = x[t];
  __syncthreads();
  y[t] = tile[kWide - 1 - t] + before[t % 8];
}

TORPOR_KERNEL(kWide)
void ReverseDynamicKernel(const float* x, float* y) {
  TORPOR_DYNAMIC_SHARED(float, tile);
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[kWide - 1 - threadIdx.x];
}

TORPOR_KERNEL(32)
void OwnStackKernel(float* y, bool broken) {
  volatile float local = static_cast<float>(threadIdx.x);
  auto at = reinterpret_cast<unsigned long long>(&local);
  if (broken) at = __shfl_sync(0xffffffffu, at, 0);
  y[threadIdx.x] = *reinterpret_cast<const volatile float*>(at);
}

constexpr int kTable[4] = {3, 1, 4, 1};

TORPOR_KERNEL(4)
void ConstantKernel(int* y, bool broken) {
  const int* volatile hidden = kTable;
  const int* table = hidden;
  if (broken) const_cast<int*>(table)[threadIdx.x] = 0;
  y[threadIdx.x] = table[threadIdx.x];
}

TORPOR_KERNEL(kThreads)
void SumOfWrittenKernel(float* y, bool broken) {
  TORPOR_SHARED(float, tile, kThreads);
  if (!broken || threadIdx.x != 5) tile[threadIdx.x] = 1;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kThreads; ++i) sum += tile[i];
  y[threadIdx.x] = sum;
}

TORPOR_KERNEL(kThreads)
void IncrementKernel(float* y, int n, bool broken) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) y[i] = (broken ? y[i] : 0.0f) + 1;
}

template <typename Vector>
TORPOR_KERNEL(32)
void CopyKernel(const uint32_t* x, uint32_t* y, int n) {
  constexpr int kLanes = sizeof(Vector) / sizeof(uint32_t);
  for (int i = static_cast<int>(threadIdx.x); i < n / kLanes; i += 32) {
    reinterpret_cast<Vector*>(y)[i] = reinterpret_cast<const Vector*>(x)[i];
  }
}

TORPOR_KERNEL(16)
void AddLanesKernel(const float* x, float* y) {
  const float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x];
  float4 sum;
  sum.x = v.x + v.y;
  sum.y = v.y + v.x + v.w;
  sum.z = v.z;
  sum.w = v.w;
  reinterpret_cast<float4*>(y)[threadIdx.x] = sum;
}

TORPOR_KERNEL(1)
void ReadFloatKernel(const uint8_t* x, float* y, int offset) {
  *y = *reinterpret_cast<const float*>(x + offset);
}

TORPOR_KERNEL(kThreads)
void WriteBytesKernel(uint8_t* y, Bytes kind) {
  unsigned at = threadIdx.x;
  if (kind == Bytes::kOneByte && at == 9) at = 8;
  if (kind == Bytes::kSameLanes) at %= 32;
  y[at] = static_cast<uint8_t>(threadIdx.x);
}

TORPOR_KERNEL(kThreads)
void ReadBytesOfWordsKernel(uint8_t* y, bool broken) {
  TORPOR_SHARED(uint32_t, words, 32);
  const unsigned t = threadIdx.x;
  if (t < 32) words[t] = t << 16;
  if (!broken) __syncthreads();
  if (t >= 32) y[t - 32] = reinterpret_cast<const uint8_t*>(words + t - 32)[2];
}

TORPOR_KERNEL(1) void CopyBytesKernel(const uint8_t* x, uint8_t* y, int n) {
  memcpy(y, x, static_cast<size_t>(n));
  std::memset(y + n, 0, static_cast<size_t>(n));
}

template <int kBytes>
struct Arguments {
  char bytes[kBytes];
  int* y;
};

template <int kBytes>
TORPOR_KERNEL(16)
void ArgumentsKernel(const Arguments<kBytes> arguments) {
  arguments.y[threadIdx.x] = arguments.bytes[threadIdx.x];
}

}  // namespace

int Double(const float* x, float* y, int n, bool broken) {
  const int n_blocks = n / kThreads + 1;
  return TORPOR_LAUNCH(DoubleKernel, n_blocks, kThreads, 0, nullptr, x, y, n,
                       broken);
}

int Difference(const float* x, float* y, int n, bool broken) {
  return TORPOR_LAUNCH(DifferenceKernel, 1, kThreads, 0, nullptr, x, y, n,
                       broken);
}

int ReverseShared(const float* x, float* y, bool broken) {
  return TORPOR_LAUNCH(ReverseSharedKernel, 1, kWide, 0, nullptr, x, y, broken);
}

int ReverseDynamic(const float* x, float* y, size_t shared_bytes) {
  return TORPOR_LAUNCH(ReverseDynamicKernel, 1, kWide, shared_bytes, nullptr, x,
                       y);
}

int OwnStack(float* y, bool broken) {
  return TORPOR_LAUNCH(OwnStackKernel, 1, 32, 0, nullptr, y, broken);
}

int Constant(int* y, bool broken) {
  return TORPOR_LAUNCH(ConstantKernel, 1, 4, 0, nullptr, y, broken);
}

int SumOfWritten(float* y, bool broken) {
  return TORPOR_LAUNCH(SumOfWrittenKernel, 1, kThreads, 0, nullptr, y, broken);
}

int Increment(float* y, int n, bool broken) {
  return TORPOR_LAUNCH(IncrementKernel, 1, kThreads, 0, nullptr, y, n, broken);
}

int CopyVectors(const uint32_t* x, uint32_t* y, int n, int lanes) {
  switch (lanes) {
    case 1:
      return TORPOR_LAUNCH(CopyKernel<uint32_t>, 1, 32, 0, nullptr, x, y, n);
    case 2:
      return TORPOR_LAUNCH(CopyKernel<uint2>, 1, 32, 0, nullptr, x, y, n);
    default:
      return TORPOR_LAUNCH(CopyKernel<float4>, 1, 32, 0, nullptr, x, y, n);
  }
}

int AddLanes(const float* x, float* y) {
  return TORPOR_LAUNCH(AddLanesKernel, 1, 16, 0, nullptr, x, y);
}

int ReadFloatAt(const uint8_t* x, float* y, int offset) {
  return TORPOR_LAUNCH(ReadFloatKernel, 1, 1, 0, nullptr, x, y, offset);
}

int CopyBytes(const uint8_t* x, uint8_t* y, int n) {
  return TORPOR_LAUNCH(CopyBytesKernel, 1, 1, 0, nullptr, x, y, n);
}

int WriteBytes(uint8_t* y, Bytes kind) {
  return TORPOR_LAUNCH(WriteBytesKernel, 1, kThreads, 0, nullptr, y, kind);
}

int ReadBytesOfWords(uint8_t* y, bool broken) {
  return TORPOR_LAUNCH(ReadBytesOfWordsKernel, 1, kThreads, 0, nullptr, y,
                       broken);
}

int ManyArguments(int* y) {
  Arguments<4000> arguments = {};
  for (int i = 0; i < 16; ++i) arguments.bytes[i] = static_cast<char>(i);
  arguments.y = y;
  return TORPOR_LAUNCH(ArgumentsKernel<4000>, 1, 16, 0, nullptr, arguments);
}

int TooManyArguments(int* y) {
  Arguments<4096> arguments = {};
  arguments.y = y;
  return TORPOR_LAUNCH(ArgumentsKernel<4096>, 1, 16, 0, nullptr, arguments);
}

}  // namespace torpor::kernels::planted
