// SPDX-License-Identifier: Apache-2.0
//
// kernels/index_score.h over sixteen lanes, which are keys. A tile decodes and
// transposes a run of keys once for a few rows; then heads x keys of a row at a
// time, heads ascending, share the loads of both.

#ifndef TORPOR_KERNELS_INDEX_SCORE_CPU_H_
#define TORPOR_KERNELS_INDEX_SCORE_CPU_H_

#include <cstdint>

#include "kernels/index_score.h"
#include "kernels/row_decode_cpu.h"

namespace torpor::kernels {

// Rows and keys of a tile, at most: enough rows to make the keys' decoding
// small beside their products, keys that stay in the second-level cache.
inline constexpr int64_t kIndexRows = 32;
inline constexpr int64_t kIndexKeys = 256;

// Rows [row_begin, row_end) x keys [key_begin, key_end): the last is one that
// a row of these sees.
struct IndexTile {
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t key_begin = 0;
  int64_t key_end = 0;
  float* rows = nullptr;  // [16, dim]
  float* keys = nullptr;  // [kIndexKeys / 16, dim, 16]
};

template <class V>
class IndexTileRunner {
 public:
  IndexTileRunner(const IndexScoreParams& params, const RowShape& shape,
                  const IndexTile& tile)
      : p_(params), shape_(shape), t_(tile) {}

  void Run() {
    const int64_t groups = (t_.key_end - t_.key_begin + 15) / 16;
    for (int64_t group = 0; group < groups; ++group) LoadKeys(group);
    for (int64_t group = 0; group < groups;) {
      group +=
          groups - group >= kVecs ? RowsOf<kVecs>(group) : RowsOf<1>(group);
    }
  }

 private:
  static constexpr int kHeads = V::kValueRows;
  static constexpr int kVecs = V::kValueVecs;
  static_assert(kIndexKeys % (16 * kVecs) == 0, "whole panels make a tile");

  // Lanes after the last key are zeros.
  void LoadKeys(int64_t group) {
    const int64_t first = t_.key_begin + group * 16;
    const int64_t n = t_.key_end - first < 16 ? t_.key_end - first : 16;
    for (int64_t i = 0; i < n;) {
      const int64_t in_page = (first + i) % p_.page_rows;
      int64_t run = p_.page_rows - in_page;
      if (run > n - i) run = n - i;
      DecodeRowsCpu<V>(
          {.format = p_.key_format,
           .in = p_.pages[(first + i) / p_.page_rows] + in_page * shape_.bytes,
           .n_rows = run,
           .dim = p_.dim,
           .in_stride = shape_.bytes,
           .out = t_.rows + i * p_.dim,
           .out_stride = p_.dim},
          shape_, 0, run);
      i += run;
    }
    for (int64_t i = n * p_.dim; i < 16 * p_.dim; ++i) t_.rows[i] = 0.0f;
    float* to = t_.keys + group * p_.dim * 16;
    for (int64_t i = 0; i < p_.dim; i += 4) {
      V::Transpose4(t_.rows + i, p_.dim, to + i * 16);
    }
  }

  // N groups of keys from `group`, for every row that sees any of them; gives
  // N.
  template <int N>
  int64_t RowsOf(int64_t group) {
    const int64_t first = t_.key_begin + group * 16;
    for (int64_t row = t_.row_begin; row < t_.row_end; ++row) {
      const int64_t visible = p_.n_visible[row] - first;
      if (visible > 0) Row<N>(row, group, first, visible);
    }
    return N;
  }

  template <int N>
  void Row(int64_t row, int64_t group, int64_t first, int64_t visible) {
    typename V::F32 score[N];
    for (int n = 0; n < N; ++n) score[n] = V::Zero();
    int64_t head = 0;
    for (; head + kHeads <= p_.n_heads; head += kHeads) {
      Heads<kHeads, N>(row, head, group, score);
    }
    for (; head < p_.n_heads; ++head) Heads<1, N>(row, head, group, score);
    float* out = p_.scores + row * p_.scores_stride + first;
    for (int n = 0; n < N; ++n) {
      const auto scaled = V::Mul(score[n], V::Set(p_.scale));
      const int64_t left = visible - n * 16;
      if (left >= 16) {
        V::Store(scaled, out + n * 16);
        continue;
      }
      float lanes[16];
      V::Store(scaled, lanes);
      for (int64_t i = 0; i < left; ++i) out[n * 16 + i] = lanes[i];
    }
  }

  template <int R, int N>
  void Heads(int64_t row, int64_t head, int64_t group,
             typename V::F32* score) const {
    const float* q = p_.q + (row * p_.n_heads + head) * p_.dim;
    const float* weights = p_.weights + row * p_.n_heads + head;
    const float* keys = t_.keys + group * p_.dim * 16;
    typename V::F32 acc[R][N];
    for (int r = 0; r < R; ++r) {
      for (int n = 0; n < N; ++n) acc[r][n] = V::Zero();
    }
    for (int64_t i = 0; i < p_.dim; ++i) {
      typename V::F32 key[N];
      for (int n = 0; n < N; ++n) {
        key[n] = V::Load(keys + (n * p_.dim + i) * 16);
      }
      for (int r = 0; r < R; ++r) {
        const auto query = V::Set(q[r * p_.dim + i]);
        for (int n = 0; n < N; ++n)
          acc[r][n] = V::Fma(query, key[n], acc[r][n]);
      }
    }
    for (int r = 0; r < R; ++r) {
      const auto weight = V::Set(weights[r]);
      for (int n = 0; n < N; ++n) {
        // Max gives its second operand where one is NaN.
        score[n] = V::Fma(weight, V::Max(V::Zero(), acc[r][n]), score[n]);
      }
    }
  }

  const IndexScoreParams& p_;
  const RowShape& shape_;
  const IndexTile& t_;
};

template <class V>
void IndexScoreCpu(const IndexScoreParams& p, const RowShape& shape,
                   const IndexTile& tile) {
  IndexTileRunner<V>(p, shape, tile).Run();
}

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_INDEX_SCORE_CPU_H_
