// SPDX-License-Identifier: Apache-2.0
// Causal attention with an optional sliding window, forward and backward, for
// CPUs with AMX.  bf16 in and out, fp32 sums, head_dim 32, two query heads per
// key/value head.
//
// Scores are held transposed (rows: keys, columns: queries), so that every
// per-query number is one vector and no sum across lanes is needed.  Work goes
// by blocks of 32 keys x 32 queries.  The scores need no running maximum:
// q_norm and k_norm bound them far below the range of exp.
#include "tiles.h"

namespace {

constexpr int D = 32;  // head_dim
constexpr int N = 32;  // block of keys or queries
constexpr int G = 2;   // query heads per key/value head
constexpr float LOG2E = 1.44269504f;
// A 32 x 32 fp32 block held transposed (tiles [d half][query half]), each
// query's row times a factor, to 32 rows of bf16.
inline void unpack_transposed(const Tile* t, const __m512* factor, bf16* rows,
                              int64_t stride) {
  for (int q = 0; q < 2; q++) {
    __m512i lo[16], hi[16];
    for (int i = 0; i < 16; i++) {
      lo[i] = (__m512i)_mm512_mul_ps(load(t[q], i), factor[q]);
      hi[i] = (__m512i)_mm512_mul_ps(load(t[2 + q], i), factor[q]);
    }
    transpose(lo);
    transpose(hi);
    for (int i = 0; i < 16; i++)
      _mm512_storeu_si512(rows + (q * 16 + i) * stride,
                          to_bf16((__m512)lo[i], (__m512)hi[i]));
  }
}

// Which of 16 queries (half q of the block) see key row `key` of the block.
struct Mask {
  bool diagonal, edge;
  __mmask16 operator()(int key, int q) const {
    uint32_t bits = ~0u;
    if (diagonal) bits &= ~0u << key;                 // query >= key
    if (edge) bits &= (uint32_t)((1ull << key) - 1);  // query < key
    return (__mmask16)(bits >> (q * 16));
  }
};

struct Shape {
  int64_t batch, length, heads, kv, first_block_distance;
  Shape(const at::Tensor& q, const at::Tensor& k, int64_t window)
      : batch(q.size(0)), length(q.size(1)), heads(q.size(2)), kv(k.size(2)) {
    TORCH_CHECK(heads == kv * G && q.size(3) == D && length % N == 0);
    TORCH_CHECK(window == 0 || window % N == 0);
    first_block_distance = window ? window / N : length;
  }
  int64_t first(int64_t block) const {
    return std::max<int64_t>(0, block - first_block_distance);
  }
  Mask mask(int64_t q, int64_t k) const {
    return {q == k, q - k == first_block_distance};
  }
};

// tile 4 = keys rows (tile `a`) @ packed queries (tile 6), written to out.
#define SCORES(a, out)     \
  _tile_zero(4);           \
  _tile_dpbf16ps(4, a, 6); \
  _tile_stored(4, (out).at, 64)

void forward_head(const Shape& s, const bf16* q, const bf16* k, const Tile* vt,
                  bf16* o, float* lse, float scale) {
  const int64_t qs = s.heads * D, ks = s.kv * D;
  const __m512 c = _mm512_set1_ps(scale * LOG2E);
  Tile qt[2], score[2][2], p[2], acc[4];
  for (int64_t i = 0; i < s.length / N; i++) {
    for (int h = 0; h < 2; h++)
      pack_pairs_of_columns(q + (i * N + h * 16) * qs, qs, qt[h]);
    __m512 sum[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t j = s.first(i); j <= i; j++) {
      const Mask mask = s.mask(i, j);
      const bool masked = mask.diagonal || mask.edge;
      _tile_loadd(5, k + j * N * ks, ks * 2);
      _tile_loadd(7, k + (j * N + 16) * ks, ks * 2);
      for (int h = 0; h < 2; h++) {
        _tile_loadd(6, qt[h].at, 64);
        SCORES(5, score[h][0]);
        SCORES(7, score[h][1]);
      }
      for (int h = 0; h < 2; h++)
        for (int r = 0; r < 16; r++) {
          __m512 e[2];
          for (int b = 0; b < 2; b++) {
            const int key = 2 * r + b;
            e[b] =
                exp2_fast(_mm512_mul_ps(load(score[h][key / 16], key % 16), c));
            if (masked) e[b] = _mm512_maskz_mov_ps(mask(key, h), e[b]);
            sum[h] = _mm512_add_ps(sum[h], e[b]);
          }
          store(p[h], r, interleave(to_bf16(e[0], e[1])));
        }
      _tile_loadd(5, vt[2 * j].at, 64);
      _tile_loadd(7, vt[2 * j + 1].at, 64);
      _tile_loadd(6, p[0].at, 64);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(2, 7, 6);
      _tile_loadd(6, p[1].at, 64);
      _tile_dpbf16ps(1, 5, 6);
      _tile_dpbf16ps(3, 7, 6);
    }
    _tile_stored(0, acc[0].at, 64);
    _tile_stored(1, acc[1].at, 64);
    _tile_stored(2, acc[2].at, 64);
    _tile_stored(3, acc[3].at, 64);
    __m512 factor[2];
    for (int h = 0; h < 2; h++) {
      factor[h] = _mm512_div_ps(_mm512_set1_ps(1.0f), sum[h]);
      alignas(64) float total[16];
      _mm512_store_ps(total, sum[h]);
      for (int n = 0; n < 16; n++)
        lse[i * N + h * 16 + n] = std::log2(total[n]);
    }
    unpack_transposed(acc, factor, o + i * N * qs, qs);
  }
}

}  // namespace

std::vector<at::Tensor> attention(at::Tensor q, at::Tensor k, at::Tensor v,
                                  int64_t window, double scale) {
  const Shape s(q, k, window);
  at::Tensor o = at::empty_like(q);
  at::Tensor lse =
      at::empty({s.batch, s.heads, s.length}, q.options().dtype(at::kFloat));
  const bf16 *qp = data(q), *kp = data(k), *vp = data(v);
  bf16* op = data(o);
  float* lp = lse.data_ptr<float>();
  at::parallel_for(0, s.batch * s.kv, 1, [&](int64_t begin, int64_t end) {
    TileScope scope;
    std::vector<Tile> vt(2 * s.length / N);
    for (int64_t t = begin; t < end; t++) {
      const int64_t b = t / s.kv, g = t % s.kv,
                    kv0 = (b * s.length * s.kv + g) * D;
      for (int64_t j = 0; j < s.length / N; j++)
        pack_transposed(vp + kv0 + j * N * s.kv * D, s.kv * D, &vt[2 * j]);
      for (int64_t h = g * G; h < (g + 1) * G; h++) {
        const int64_t q0 = (b * s.length * s.heads + h) * D;
        forward_head(s, qp + q0, kp + kv0, vt.data(), op + q0,
                     lp + (b * s.heads + h) * s.length, scale);
      }
    }
  });
  return {o, lse};
}

namespace {

// One head's 32 queries, packed every way that the backward pass needs.
struct QueryBlock {
  Tile qt[2], ot[2];  // right operands of keys @ q^T and values @ do^T
  Tile qv[2], ov[2];  // right operands of ds^T @ q and p^T @ do
  Tile dq[4];         // fp32 sums of dq^T, tiles [d half][query half]
  __m512 lse[2], delta[2];

  void fill(const bf16* q, const bf16* o, const bf16* go, const float* l,
            int64_t stride) {
    alignas(64) float sums[N];
    for (int n = 0; n < N; n++) {
      __m512i a = _mm512_loadu_si512(o + n * stride),
              b = _mm512_loadu_si512(go + n * stride);
      __m512 dot =
          _mm512_dpbf16_ps(_mm512_setzero_ps(), (__m512bh)a, (__m512bh)b);
      sums[n] = _mm512_reduce_add_ps(dot);
    }
    for (int h = 0; h < 2; h++) {
      lse[h] = _mm512_loadu_ps(l + h * 16);
      delta[h] = _mm512_load_ps(sums + h * 16);
      pack_pairs_of_columns(q + h * 16 * stride, stride, qt[h]);
      pack_pairs_of_columns(go + h * 16 * stride, stride, ot[h]);
    }
    pack_pairs_of_rows(q, stride, qv);
    pack_pairs_of_rows(go, stride, ov);
    memset(dq, 0, sizeof dq);
  }
};

// sum[key][d] (32 x 32 fp32, row-major) += both heads' left tiles @ right
// tiles.
inline void add_to_keys(float* sum, const Tile (*left)[2], const Tile* r0,
                        const Tile* r1) {
  for (int h = 0; h < 2; h++) {  // half of d
    _tile_loadd(0, sum + h * 16, D * 4);
    _tile_loadd(1, sum + 16 * D + h * 16, D * 4);
    _tile_loadd(6, r0[h].at, 64);
    _tile_loadd(2, left[0][0].at, 64);
    _tile_dpbf16ps(0, 2, 6);
    _tile_loadd(3, left[0][1].at, 64);
    _tile_dpbf16ps(1, 3, 6);
    _tile_loadd(7, r1[h].at, 64);
    _tile_loadd(4, left[1][0].at, 64);
    _tile_dpbf16ps(0, 4, 7);
    _tile_loadd(5, left[1][1].at, 64);
    _tile_dpbf16ps(1, 5, 7);
    _tile_stored(0, sum + h * 16, D * 4);
    _tile_stored(1, sum + 16 * D + h * 16, D * 4);
  }
}

// Backward of one key block against one query block of both heads.
inline void backward_block(QueryBlock* query, const bf16* k, const bf16* v,
                           int64_t ks, const Tile* kt, float* dk, float* dv,
                           Mask mask, __m512 c) {
  Tile p[G][2], ds[G][2];  // left operands: [key half], keys x 32 queries
  const bool masked = mask.diagonal || mask.edge;
  for (int g = 0; g < G; g++) {
    QueryBlock& x = query[g];
    Tile score[2][2], dp[2][2], dsr[2];  // [query half][key half]
    _tile_loadd(5, k, ks * 2);
    _tile_loadd(7, k + 16 * ks, ks * 2);
    for (int h = 0; h < 2; h++) {
      _tile_loadd(6, x.qt[h].at, 64);
      SCORES(5, score[h][0]);
      SCORES(7, score[h][1]);
    }
    _tile_loadd(5, v, ks * 2);
    _tile_loadd(7, v + 16 * ks, ks * 2);
    for (int h = 0; h < 2; h++) {
      _tile_loadd(6, x.ot[h].at, 64);
      SCORES(5, dp[h][0]);
      SCORES(7, dp[h][1]);
    }
    for (int r = 0; r < 16; r++) {
      __m512 e[2][2], f[2][2];  // [query half][key of the pair]
      for (int b = 0; b < 2; b++) {
        const int key = 2 * r + b;
        for (int h = 0; h < 2; h++) {
          e[h][b] = exp2_fast(
              _mm512_fmsub_ps(load(score[h][key / 16], key % 16), c, x.lse[h]));
          if (masked) e[h][b] = _mm512_maskz_mov_ps(mask(key, h), e[h][b]);
          f[h][b] = _mm512_mul_ps(
              e[h][b],
              _mm512_sub_ps(load(dp[h][key / 16], key % 16), x.delta[h]));
        }
        store(p[g][key / 16], key % 16, to_bf16(e[0][b], e[1][b]));
        store(ds[g][key / 16], key % 16, to_bf16(f[0][b], f[1][b]));
      }
      for (int h = 0; h < 2; h++)
        store(dsr[h], r, interleave(to_bf16(f[h][0], f[h][1])));
    }
    _tile_loadd(0, x.dq[0].at, 64);
    _tile_loadd(1, x.dq[1].at, 64);
    _tile_loadd(2, x.dq[2].at, 64);
    _tile_loadd(3, x.dq[3].at, 64);
    _tile_loadd(5, kt[0].at, 64);
    _tile_loadd(7, kt[1].at, 64);
    _tile_loadd(6, dsr[0].at, 64);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(2, 7, 6);
    _tile_loadd(4, dsr[1].at, 64);
    _tile_dpbf16ps(1, 5, 4);
    _tile_dpbf16ps(3, 7, 4);
    _tile_stored(0, x.dq[0].at, 64);
    _tile_stored(1, x.dq[1].at, 64);
    _tile_stored(2, x.dq[2].at, 64);
    _tile_stored(3, x.dq[3].at, 64);
  }
  add_to_keys(dv, p, query[0].ov, query[1].ov);
  add_to_keys(dk, ds, query[0].qv, query[1].qv);
}

void write_keys(const std::vector<float>& sum, float factor, bf16* out,
                int64_t rows, int64_t stride) {
  const __m512 f = _mm512_set1_ps(factor);
  for (int64_t n = 0; n < rows; n++)
    _mm512_storeu_si512(
        out + n * stride,
        to_bf16(_mm512_mul_ps(_mm512_loadu_ps(&sum[n * D]), f),
                _mm512_mul_ps(_mm512_loadu_ps(&sum[n * D + 16]), f)));
}

}  // namespace

std::vector<at::Tensor> attention_backward(at::Tensor go, at::Tensor q,
                                           at::Tensor k, at::Tensor v,
                                           at::Tensor o, at::Tensor lse,
                                           int64_t window, double scale) {
  const Shape s(q, k, window);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k),
             dv = at::empty_like(v);
  const bf16 *gp = data(go), *qp = data(q), *kp = data(k), *vp = data(v),
             *op = data(o);
  bf16 *dqp = data(dq), *dkp = data(dk), *dvp = data(dv);
  const float* lp = lse.data_ptr<float>();
  const int64_t qs = s.heads * D, ks = s.kv * D;
  const __m512 c = _mm512_set1_ps(scale * LOG2E);
  const __m512 factor[2] = {_mm512_set1_ps(scale), _mm512_set1_ps(scale)};
  at::parallel_for(0, s.batch * s.kv, 1, [&](int64_t begin, int64_t end) {
    TileScope scope;
    std::vector<Tile> kt(2 * s.length / N);
    QueryBlock query[G];
    for (int64_t t = begin; t < end; t++) {
      const int64_t b = t / s.kv, g = t % s.kv;
      const int64_t kv0 = (b * s.length * s.kv + g) * D;
      const int64_t q0 = (b * s.length * s.heads + g * G) * D;
      std::vector<float> dk_sum(s.length * D), dv_sum(s.length * D);
      for (int64_t j = 0; j < s.length / N; j++)
        pack_transposed(kp + kv0 + j * N * ks, ks, &kt[2 * j]);
      for (int64_t i = 0; i < s.length / N; i++) {
        const int64_t at = q0 + i * N * qs;
        for (int h = 0; h < G; h++)
          query[h].fill(qp + at + h * D, op + at + h * D, gp + at + h * D,
                        lp + (b * s.heads + g * G + h) * s.length + i * N, qs);
        for (int64_t j = s.first(i); j <= i; j++)
          backward_block(query, kp + kv0 + j * N * ks, vp + kv0 + j * N * ks,
                         ks, &kt[2 * j], &dk_sum[j * N * D], &dv_sum[j * N * D],
                         s.mask(i, j), c);
        for (int h = 0; h < G; h++)
          unpack_transposed(query[h].dq, factor, dqp + at + h * D, qs);
      }
      write_keys(dk_sum, scale, dkp + kv0, s.length, ks);
      write_keys(dv_sum, 1.0f, dvp + kv0, s.length, ks);
    }
  });
  return {dq, dk, dv};
}
