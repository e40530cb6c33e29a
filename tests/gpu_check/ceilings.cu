// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda_simt.h"
#include "kernels/mma_cuda.h"
#include "tests/gpu_check/ceilings.h"

namespace torpor::gpu_check {
namespace {

// Chains of a thread: enough to hide the latency of one.
constexpr int kChains = 8;

// `one` is 1, which the compiler does not know.
TORPOR_KERNEL(kCeilingThreads)
void FmaCeilingKernel(float one, int n_steps, float* out) {
  float x[kChains] = {};
  for (int step = 0; step < n_steps; ++step) {
    TORPOR_UNROLL
    for (int i = 0; i < kChains; ++i) x[i] = fmaf(x[i], one, one);
  }
  float sum = 0.0f;
  TORPOR_UNROLL
  for (int i = 0; i < kChains; ++i) sum += x[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// `ones` is a pair of 1 in bf16.
TORPOR_KERNEL(kCeilingThreads)
void MmaCeilingKernel(uint32_t ones, int n_steps, float* out) {
  const uint32_t a[4] = {ones, ones, ones, ones};
  float c[kChains][4] = {};
  for (int step = 0; step < n_steps; ++step) {
    TORPOR_UNROLL
    for (int i = 0; i < kChains; ++i) {
      kernels::device::Mma(a, ones, ones, c[i]);
    }
  }
  float sum = 0.0f;
  TORPOR_UNROLL
  for (int i = 0; i < kChains; ++i) {
    TORPOR_UNROLL
    for (int e = 0; e < 4; ++e) sum += c[i][e];
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

constexpr uint32_t kPairOfOnes = 0x3f803f80;

double Chains(const CeilingParams& p) {
  return static_cast<double>(p.n_blocks) * kCeilingThreads * kChains *
         p.n_steps;
}

}  // namespace

double FmaCeilingOperations(const CeilingParams& p) { return 2 * Chains(p); }
double MmaCeilingOperations(const CeilingParams& p) {
  return Chains(p) / 32 * 2 * 16 * 8 * 16;
}

int FmaCeilingCuda(const CeilingParams& p, kernels::CudaStream stream) {
  return TORPOR_LAUNCH(FmaCeilingKernel, p.n_blocks, kCeilingThreads, 0, stream,
                       1.0f, p.n_steps, p.out);
}
int MmaCeilingCuda(const CeilingParams& p, kernels::CudaStream stream) {
  return TORPOR_LAUNCH(MmaCeilingKernel, p.n_blocks, kCeilingThreads, 0, stream,
                       kPairOfOnes, p.n_steps, p.out);
}

}  // namespace torpor::gpu_check
