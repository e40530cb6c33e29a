// SPDX-License-Identifier: Apache-2.0
//
// kernels/latent_attention.h over sixteen lanes. A row's keys are decoded once;
// then a few of its heads at a time:
//   scores      lanes are heads: queries transposed, a tile of keys x heads
//   numerators  lanes are heads: no sum runs across lanes
//   values      lanes are channels: a tile of heads x channels, over a block of
//               keys that stays in the first-level cache
// Tiles change the speed, never an element's order of operations.

#ifndef TORPOR_KERNELS_LATENT_ATTENTION_CPU_H_
#define TORPOR_KERNELS_LATENT_ATTENTION_CPU_H_

#include <cstdint>

#include "kernels/latent_attention.h"
#include "kernels/rms_norm_cpu.h"
#include "kernels/row_decode_cpu.h"
#include "kernels/simd_math.h"

namespace torpor::kernels {

struct LatentShapes {
  RowShape window;
  RowShape entries;
};

// Floats between decoded keys beyond their channels: rows a power of two apart
// would share few sets of a cache.
inline constexpr int64_t kLatentPad = 16;

// Keys whose values pass over all heads at once.
inline constexpr int64_t kLatentKeyBlock = 128;

// Some heads of one row. Pointers are to memory of this run alone but for
// `decoded`; `heads` is n_heads rounded up to a multiple of 16.
struct LatentTile {
  int64_t row = 0;
  int64_t head = 0;
  int64_t n_heads = 0;
  int64_t n_keys = 0;
  const float* decoded = nullptr;  // [n_keys, head_dim + kLatentPad]
  float* q = nullptr;              // [heads / 16, head_dim, 16]
  float* scores = nullptr;         // [n_keys, heads], then numerators
  float* inverse = nullptr;        // [heads]: 1 / denominator
  float* acc = nullptr;            // [heads, head_dim]
};

// Keys [begin, end) of a row, window first, to their places in `out`.
template <class V>
void LatentDecodeCpu(const LatentAttentionParams& p, const LatentShapes& shapes,
                     const LatentKeys& keys, int64_t begin, int64_t end,
                     float* out) {
  for (int64_t k = begin; k < end; ++k) {
    const bool window = k < keys.n_window;
    DecodeRowsCpu<V>(
        {.format = window ? p.window_format : p.entry_format,
         .in = window ? keys.window[k] : keys.entries[k - keys.n_window],
         .n_rows = 1,
         .dim = p.head_dim,
         .out = out + k * (p.head_dim + kLatentPad)},
        window ? shapes.window : shapes.entries, 0, 1);
  }
}

template <class V>
class LatentTileRunner {
 public:
  LatentTileRunner(const LatentAttentionParams& params, const LatentTile& tile)
      : p_(params),
        t_(tile),
        dim_(params.head_dim),
        stride_(params.head_dim + kLatentPad),
        width_((tile.n_heads + 15) / 16 * 16) {}

  void Run() {
    LoadQueries();
    for (int64_t group = 0; group * 16 < t_.n_heads;) {
      group += width_ / 16 - group >= kGroups ? ScoresOf<kGroups>(group)
                                              : ScoresOf<1>(group);
    }
    for (int64_t head = 0; head < t_.n_heads; head += 16) Numerators(head);
    for (int64_t i = 0; i < width_ * dim_; ++i) t_.acc[i] = 0.0f;
    for (int64_t key = 0; key < t_.n_keys; key += kLatentKeyBlock) {
      const int64_t left = t_.n_keys - key;
      Values(key, left < kLatentKeyBlock ? t_.n_keys : key + kLatentKeyBlock);
    }
    Finish();
  }

 private:
  static constexpr int kGroups = V::kGemmGroups;
  static constexpr int kRows = V::kValueRows;
  static constexpr int kVecs = V::kValueVecs;
  static_assert(16 % kRows == 0, "whole tiles make sixteen heads");

  int64_t Offset(int64_t head) const {
    return (t_.row * p_.n_heads + t_.head + head) * dim_;
  }

  // Heads of the last group that are none are zeros.
  void LoadQueries() {
    for (int64_t group = 0; group * 16 < t_.n_heads; ++group) {
      const float* from = p_.q + Offset(group * 16);
      float* to = t_.q + group * dim_ * 16;
      const int64_t heads = t_.n_heads - group * 16;
      for (int64_t i = 0; heads >= 16 && i < dim_; i += 4) {
        V::Transpose4(from + i, dim_, to + i * 16);
      }
      for (int64_t h = 0; heads < 16 && h < 16; ++h) {
        for (int64_t i = 0; i < dim_; ++i) {
          to[i * 16 + h] = h < heads ? from[h * dim_ + i] : 0.0f;
        }
      }
    }
  }

  // G groups of heads from `group`; gives G.
  template <int G>
  int64_t ScoresOf(int64_t group) {
    constexpr int kKeys = V::kGemmRows;
    int64_t key = 0;
    for (; key + kKeys <= t_.n_keys; key += kKeys) Scores<kKeys, G>(key, group);
    for (; key + 4 <= t_.n_keys; key += 4) Scores<4, G>(key, group);
    for (; key < t_.n_keys; ++key) Scores<1, G>(key, group);
    return G;
  }

  template <int R, int G>
  void Scores(int64_t key, int64_t group) {
    const float* keys = t_.decoded + key * stride_;
    const float* queries = t_.q + group * dim_ * 16;
    typename V::F32 acc[R][G];
    for (int r = 0; r < R; ++r) {
      for (int g = 0; g < G; ++g) acc[r][g] = V::Zero();
    }
    for (int64_t i = 0; i < dim_; ++i) {
      typename V::F32 query[G];
      for (int g = 0; g < G; ++g) {
        query[g] = V::Load(queries + (g * dim_ + i) * 16);
      }
      for (int r = 0; r < R; ++r) {
        const auto k = V::Set(keys[r * stride_ + i]);
        for (int g = 0; g < G; ++g) acc[r][g] = V::Fma(k, query[g], acc[r][g]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int g = 0; g < G; ++g) {
        V::Store(V::Mul(acc[r][g], V::Set(p_.scale)),
                 t_.scores + (key + r) * width_ + (group + g) * 16);
      }
    }
  }

  // Scores of the sixteen heads from `head` become numerators. Exp stops at
  // e^-87.3; what it gives there counts as nothing.
  void Numerators(int64_t head) {
    const int64_t n = t_.n_heads - head < 16 ? t_.n_heads - head : 16;
    const auto sink = LoadSome<V>(p_.sinks + t_.head + head, n);
    const auto least = Exp<V>(V::Set(-__builtin_inff()));
    auto max = sink;
    for (int64_t k = 0; k < t_.n_keys; ++k) {
      max = V::Max(max, V::Load(t_.scores + k * width_ + head));
    }
    auto sum = V::Sub(Exp<V>(V::Sub(sink, max)), least);
    for (int64_t k = 0; k < t_.n_keys; ++k) {
      float* at = t_.scores + k * width_ + head;
      auto e = V::Sub(Exp<V>(V::Sub(V::Load(at), max)), least);
      sum = V::Add(sum, e);
      if (p_.bf16_numerators) {
        uint16_t rounded[16];
        V::StoreBf16(e, rounded);
        e = V::LoadBf16(rounded);
      }
      V::Store(e, at);
    }
    V::Store(V::Div(V::Set(1.0f), sum), t_.inverse + head);
  }

  void Values(int64_t begin, int64_t end) {
    int64_t i = 0;
    for (; i + kVecs * 16 <= dim_; i += kVecs * 16) {
      ValuesOf<kVecs>(begin, end, i);
    }
    for (; i < dim_; i += 16) ValuesOf<1>(begin, end, i);
  }

  template <int N>
  void ValuesOf(int64_t begin, int64_t end, int64_t channel) {
    for (int64_t head = 0; head < t_.n_heads; head += kRows) {
      ValueTile<N>(begin, end, channel, head);
    }
  }

  // acc += sum over keys [begin, end), ascending.
  template <int N>
  void ValueTile(int64_t begin, int64_t end, int64_t channel, int64_t head) {
    float* out = t_.acc + head * dim_ + channel;
    typename V::F32 acc[kRows][N];
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < N; ++n) acc[r][n] = V::Load(out + r * dim_ + n * 16);
    }
    for (int64_t k = begin; k < end; ++k) {
      typename V::F32 value[N];
      for (int n = 0; n < N; ++n) {
        value[n] = V::Load(t_.decoded + k * stride_ + channel + n * 16);
      }
      const float* numerators = t_.scores + k * width_ + head;
      for (int r = 0; r < kRows; ++r) {
        const auto w = V::Set(numerators[r]);
        for (int n = 0; n < N; ++n) acc[r][n] = V::Fma(w, value[n], acc[r][n]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int n = 0; n < N; ++n) {
        V::Store(acc[r][n], out + r * dim_ + n * 16);
      }
    }
  }

  void Finish() {
    for (int64_t head = 0; head < t_.n_heads; ++head) {
      const float* from = t_.acc + head * dim_;
      float* to = p_.out + Offset(head);
      const auto inverse = V::Set(t_.inverse[head]);
      for (int64_t i = 0; i < dim_; i += 16) {
        V::Store(V::Mul(V::Load(from + i), inverse), to + i);
      }
    }
  }

  const LatentAttentionParams& p_;
  const LatentTile& t_;
  const int64_t dim_;
  const int64_t stride_;
  // Heads with those of the last group that are none.
  const int64_t width_;
};

template <class V>
void LatentAttendCpu(const LatentAttentionParams& p, const LatentTile& tile) {
  LatentTileRunner<V>(p, tile).Run();
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LATENT_ATTENTION_CPU_H_
