// SPDX-License-Identifier: Apache-2.0
//
// Wide: IndexScoreKernel loads

#include <cassert>

#include "kernels/cuda_simt.h"
#include "kernels/device_encoded_dots.h"
#include "kernels/index_score_cuda.h"

namespace torpor::kernels {
namespace {

using device::DotKey;
using device::EncodedDots;
using device::EncodedKey;
using device::IsAligned;
using device::kDotFloats;
using device::kDotKeys;
using device::kDotQueries;
using device::kDotThreads;
using device::kWholeWarp;

// Threads that share their four keys: they have the 32 heads.
constexpr int kSharers = kDotQueries / 4;

// A row's keys from `first` on.
struct Keys {
  int64_t first;
  int64_t end;
  int64_t row_bytes;
  int scales_at;
};

TORPOR_DEVICE_ONLY EncodedKey KeyOf(const IndexScoreParams& p, const Keys& keys,
                                    int k) {
  const int64_t at = keys.first + k;
  if (at >= keys.end) return {};
  // In 32 bits, whose division is the faster; a row has fewer keys than 2^32.
  const auto key = static_cast<uint32_t>(at);
  const auto page_rows = static_cast<uint32_t>(p.page_rows);
  return {p.pages[key / page_rows] + key % page_rows * keys.row_bytes,
          p.key_format, keys.scales_at};
}

// scores += weight * max(0, dot) over 32 heads in ascending order: the threads
// that share keys add theirs one after the other, and hand the sums on.
TORPOR_DEVICE_ONLY void AddHeads(const float* weights, int n_heads,
                                 const float (&dots)[4][4],
                                 float (&scores)[4]) {
  const auto mine = static_cast<int>(threadIdx.x % kSharers);
  for (int turn = 0; turn < kSharers; ++turn) {
    for (int i = 0; i < 4; ++i) {
      const int head = 4 * turn + i;
      if (turn != mine || head >= n_heads) continue;
      for (int j = 0; j < 4; ++j) {
        // A NaN stays one.
        const float dot = dots[i][j] < 0.0f ? 0.0f : dots[i][j];
        scores[j] = fmaf(weights[head], dot, scores[j]);
      }
    }
    const int from =
        static_cast<int>(threadIdx.x % 32) / kSharers * kSharers + turn;
    for (float& score : scores) score = __shfl_sync(kWholeWarp, score, from);
  }
}

TORPOR_KERNEL(kDotThreads)
void IndexScoreKernel(IndexScoreParams p) {
  TORPOR_SHARED(float4, stage, kDotFloats / 4);
  const int64_t row = blockIdx.x;
  const RowShape shape = ShapeOf(p.key_format, p.dim, 0);
  const Keys keys = {.first = int64_t{blockIdx.y} * kDotKeys,
                     .end = p.n_visible[row],
                     .row_bytes = shape.bytes,
                     .scales_at = static_cast<int>(shape.scales_at)};
  if (keys.first >= keys.end) return;
  float scores[4] = {};
  for (int64_t head = 0; head < p.n_heads; head += kDotQueries) {
    const int64_t left = p.n_heads - head;
    const auto n = static_cast<int>(left < kDotQueries ? left : kDotQueries);
    const int64_t at = row * p.n_heads + head;
    float dots[4][4];
    EncodedDots([&](int k) { return KeyOf(p, keys, k); }, p.q + at * p.dim,
                static_cast<int>(p.dim), n, reinterpret_cast<float*>(stage),
                dots);
    AddHeads(p.weights + at, n, dots, scores);
  }
  if (threadIdx.x % kSharers != 0) return;
  float* out = p.scores + row * p.scores_stride + keys.first + DotKey();
  for (int j = 0; j < 4; ++j) {
    if (keys.first + DotKey() + j < keys.end) out[j] = scores[j] * p.scale;
  }
}

}  // namespace

int IndexScoreCuda(const IndexScoreParams& p, CudaStream stream) {
  assert(p.dim % 16 == 0 && IsAligned(p.q, 16));
  if (p.n_rows == 0 || p.scores_stride == 0) return 0;
  const dim3 grid(
      static_cast<unsigned>(p.n_rows),
      static_cast<unsigned>((p.scores_stride + kDotKeys - 1) / kDotKeys));
  return TORPOR_LAUNCH(IndexScoreKernel, grid, kDotThreads, 0, stream, p);
}

}  // namespace torpor::kernels
