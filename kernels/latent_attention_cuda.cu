// SPDX-License-Identifier: Apache-2.0
//
// Wide: LatentAttentionKernel loads stores

#include <cassert>
#include <limits>

#include "kernels/cuda_simt.h"
#include "kernels/device_encoded_dots.h"
#include "kernels/latent_attention_cuda.h"

namespace torpor::kernels {
namespace {

using device::DecodeChannels;
using device::DotKey;
using device::DotQuery;
using device::EncodedDots;
using device::EncodedKey;
using device::IsAligned;
using device::kDotFloats;
using device::kDotKeys;
using device::kDotQueries;
using device::kDotThreads;
using device::StoreFloat4;

constexpr int kThreads = kDotThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = kDotQueries;
static_assert(kHeads == 32, "a lane of a warp has a head's softmax");

// Keys whose values stand in shared memory at a time.
constexpr int kValueKeys = 16;

// The heads of one block.
struct Tile {
  const uint8_t* const* window;
  const uint8_t* const* entries;
  int n_window;
  int n_keys;
  int window_scales_at;
  int entry_scales_at;
  int64_t first_head;
  int n_heads;
  // Of the first head in q and out.
  int64_t offset;
};

// How the values' sums are spread: a thread has kHeadsOfThread heads x
// kQuads pieces of four channels, kSpan channels apart.
template <int kDim>
struct Spread {
  static constexpr int kQuads = kDim > 256 ? 2 : 1;
  static constexpr int kLanes = kDim / 4 / kQuads;
  static constexpr int kSpan = 4 * kLanes;
  static constexpr int kHeadsOfThread = kHeads * kLanes / kThreads;
  static_assert(kHeadsOfThread >= 1);
};

template <int kDim>
constexpr int kStageFloats =
    kDotFloats > kValueKeys* kDim ? kDotFloats : kValueKeys* kDim;

TORPOR_DEVICE_ONLY Tile TileOfBlock(const LatentAttentionParams& p) {
  Tile t;
  const int64_t row = blockIdx.x;
  const LatentKeys& keys = p.keys[row];
  t.window = keys.window;
  t.entries = keys.entries;
  t.n_window = static_cast<int>(keys.n_window);
  t.n_keys = static_cast<int>(keys.n_window + keys.n_entries);
  t.window_scales_at =
      static_cast<int>(ShapeOf(p.window_format, p.head_dim, 0).scales_at);
  t.entry_scales_at =
      static_cast<int>(ShapeOf(p.entry_format, p.head_dim, 0).scales_at);
  t.first_head = int64_t{blockIdx.y} * kHeads;
  const int64_t left = p.n_heads - t.first_head;
  t.n_heads = static_cast<int>(left < kHeads ? left : kHeads);
  t.offset = (row * p.n_heads + t.first_head) * p.head_dim;
  return t;
}

// The k-th key of a row, window first; none beyond the last.
TORPOR_DEVICE_ONLY EncodedKey KeyOf(const LatentAttentionParams& p,
                                    const Tile& t, int k) {
  if (k >= t.n_keys) return {};
  if (k < t.n_window) return {t.window[k], p.window_format, t.window_scales_at};
  return {t.entries[k - t.n_window], p.entry_format, t.entry_scales_at};
}

// scores[key][head] = scale * <q, key>.
TORPOR_DEVICE_ONLY void Logits(const LatentAttentionParams& p, const Tile& t,
                               float* stage, float* scores) {
  for (int first = 0; first < t.n_keys; first += kDotKeys) {
    float acc[4][4];
    EncodedDots([&](int k) { return KeyOf(p, t, first + k); }, p.q + t.offset,
                static_cast<int>(p.head_dim), t.n_heads, stage, acc);
    for (int j = 0; j < 4; ++j) {
      const int key = first + DotKey() + j;
      if (key >= t.n_keys) continue;
      *reinterpret_cast<float4*>(scores + key * kHeads + DotQuery()) =
          make_float4(acc[0][j] * p.scale, acc[1][j] * p.scale,
                      acc[2][j] * p.scale, acc[3][j] * p.scale);
    }
  }
  __syncthreads();
}

// Scores become numerators; inverse[head] = 1 / denominator.
TORPOR_DEVICE_ONLY void Softmax(const LatentAttentionParams& p, const Tile& t,
                                float* maxima, float* scores, float* inverse) {
  const auto head = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const float sink = head < t.n_heads ? p.sinks[t.first_head + head] : 0.0f;
  float max = sink;
  for (int k = warp; k < t.n_keys; k += kWarps) {
    max = fmaxf(max, scores[k * kHeads + head]);
  }
  maxima[warp * kHeads + head] = max;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) max = fmaxf(max, maxima[w * kHeads + head]);
  for (int k = warp; k < t.n_keys; k += kWarps) {
    scores[k * kHeads + head] = expf(scores[k * kHeads + head] - max);
  }
  __syncthreads();
  if (warp == 0) {
    float sum = expf(sink - max);
    for (int k = 0; k < t.n_keys; ++k) {
      const float e = scores[k * kHeads + head];
      sum += e;
      if (p.bf16_numerators) scores[k * kHeads + head] = RoundToBf16(e);
    }
    inverse[head] = 1.0f / sum;
  }
  __syncthreads();
}

// values[k][channel] of keys [first, first + n).
template <int kDim>
TORPOR_DEVICE_ONLY void LoadValues(const LatentAttentionParams& p,
                                   const Tile& t, int first, int n,
                                   float* values) {
  const auto quads = static_cast<int>(p.head_dim / 4);
  for (auto i = static_cast<int>(threadIdx.x); i < n * quads; i += kThreads) {
    const int k = i / quads;
    const int channel = 4 * (i % quads);
    const EncodedKey key = KeyOf(p, t, first + k);
    float v[4];
    DecodeChannels(key.format, key.row, key.scales_at, channel, v);
    *reinterpret_cast<float4*>(values + k * kDim + channel) =
        make_float4(v[0], v[1], v[2], v[3]);
  }
}

// acc[head][channel] += numerator * value, keys [0, n) of the stage and n_quads
// pieces of four channels.
template <int kDim>
TORPOR_DEVICE_ONLY void AddValues(
    const float* values, const float* numerators, int n, int head, int channel,
    int n_quads,
    float (&acc)[Spread<kDim>::kHeadsOfThread][Spread<kDim>::kQuads][4]) {
  using S = Spread<kDim>;
  for (int k = 0; k < n; ++k) {
    float weights[S::kHeadsOfThread];
    for (int h = 0; h < S::kHeadsOfThread; ++h) {
      weights[h] = numerators[k * kHeads + head + h];
    }
    for (int s = 0; s < S::kQuads; ++s) {
      if (s >= n_quads) continue;
      const float4 v = *reinterpret_cast<const float4*>(values + k * kDim +
                                                        channel + s * S::kSpan);
      for (int h = 0; h < S::kHeadsOfThread; ++h) {
        acc[h][s][0] = fmaf(weights[h], v.x, acc[h][s][0]);
        acc[h][s][1] = fmaf(weights[h], v.y, acc[h][s][1]);
        acc[h][s][2] = fmaf(weights[h], v.z, acc[h][s][2]);
        acc[h][s][3] = fmaf(weights[h], v.w, acc[h][s][3]);
      }
    }
  }
}

// out = sum of numerator * value over keys, times the inverse.
template <int kDim>
TORPOR_DEVICE_ONLY void Values(const LatentAttentionParams& p, const Tile& t,
                               const float* scores, const float* inverse,
                               float* stage) {
  using S = Spread<kDim>;
  const int channel = 4 * static_cast<int>(threadIdx.x % S::kLanes);
  const int head =
      S::kHeadsOfThread * static_cast<int>(threadIdx.x / S::kLanes);
  // Channels of the stage beyond head_dim are never written.
  const int n_quads =
      static_cast<int>(p.head_dim - channel + S::kSpan - 1) / S::kSpan;
  float acc[S::kHeadsOfThread][S::kQuads][4] = {};
  for (int first = 0; first < t.n_keys; first += kValueKeys) {
    const int left = t.n_keys - first;
    const int n = left < kValueKeys ? left : kValueKeys;
    __syncthreads();
    LoadValues<kDim>(p, t, first, n, stage);
    __syncthreads();
    AddValues<kDim>(stage, scores + first * kHeads, n, head, channel, n_quads,
                    acc);
  }
  for (int h = 0; h < S::kHeadsOfThread; ++h) {
    if (head + h >= t.n_heads) continue;
    const float factor = inverse[head + h];
    for (int s = 0; s < S::kQuads; ++s) {
      const int at = channel + s * S::kSpan;
      if (at >= p.head_dim) continue;
      StoreFloat4(p.out + t.offset + (head + h) * p.head_dim + at,
                  make_float4(acc[h][s][0] * factor, acc[h][s][1] * factor,
                              acc[h][s][2] * factor, acc[h][s][3] * factor));
    }
  }
}

TORPOR_DEVICE_ONLY void FillWithNan(const LatentAttentionParams& p,
                                    const Tile& t) {
  for (int64_t i = threadIdx.x; i < t.n_heads * p.head_dim; i += kThreads) {
    p.out[t.offset + i] = std::numeric_limits<float>::quiet_NaN();
  }
}

template <int kDim>
TORPOR_KERNEL(kThreads)
void LatentAttentionKernel(LatentAttentionParams p, int n_keys_max) {
  TORPOR_DYNAMIC_SHARED(float, shared);
  TORPOR_SHARED(float, maxima, kWarps* kHeads);
  TORPOR_SHARED(float, inverse, kHeads);
  const Tile tile = TileOfBlock(p);
  if (tile.n_keys > n_keys_max) {
    FillWithNan(p, tile);
    return;
  }
  float* const stage = shared;
  float* const scores = shared + kStageFloats<kDim>;
  Logits(p, tile, stage, scores);
  Softmax(p, tile, maxima, scores, inverse);
  Values<kDim>(p, tile, scores, inverse, stage);
}

template <int kDim>
int Launch(const LatentAttentionParams& p, int64_t n_keys_max,
           CudaStream stream) {
  const auto floats =
      static_cast<size_t>(kStageFloats<kDim> + n_keys_max * kHeads);
  const dim3 grid(static_cast<unsigned>(p.n_rows),
                  static_cast<unsigned>((p.n_heads + kHeads - 1) / kHeads));
  return TORPOR_LAUNCH((LatentAttentionKernel<kDim>), grid, kThreads,
                       floats * sizeof(float), stream, p,
                       static_cast<int>(n_keys_max));
}

}  // namespace

int LatentAttentionCuda(const LatentAttentionParams& p, int64_t n_keys_max,
                        CudaStream stream) {
  assert(p.head_dim % 16 == 0 && p.head_dim <= kLatentDimMax);
  assert(n_keys_max <= kLatentKeysMax);
  assert(IsAligned(p.q, 16) && IsAligned(p.out, 16));
  if (p.n_rows == 0) return 0;
  if (p.head_dim <= 64) return Launch<64>(p, n_keys_max, stream);
  if (p.head_dim <= 128) return Launch<128>(p, n_keys_max, stream);
  if (p.head_dim <= 256) return Launch<256>(p, n_keys_max, stream);
  return Launch<512>(p, n_keys_max, stream);
}

}  // namespace torpor::kernels
