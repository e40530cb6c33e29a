// SPDX-License-Identifier: Apache-2.0
// The gated MLP, (gelu(x Wg^T) * (x Wu^T)) Wd^T, forward and backward, for CPUs
// with AMX.  Works through 32 or 64 tokens at a time, so that nothing of the
// wide middle leaves the cache; the backward pass computes it again.
#include <mutex>

#include "tiles.h"

namespace {

constexpr float GELU_C = 0.79788456f, GELU_A = 0.044715f, LOG2E = 1.44269504f;

// Tiles 0..3 += (left rows a0, a1) @ (right tiles b0[k], b1[k]).
inline void product(const void* a0, const void* a1, int64_t stride,
                    int64_t step, const Tile* b0, const Tile* b1,
                    int64_t b_step, int count) {
  const char *p0 = static_cast<const char*>(a0),
             *p1 = static_cast<const char*>(a1);
  for (int k = 0; k < count;
       k++, p0 += step, p1 += step, b0 += b_step, b1 += b_step) {
    _tile_loadd(4, p0, stride);
    _tile_loadd(6, b0, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b1, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, p1, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

inline void zero() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

inline void load_sums(const Tile* t) {
  _tile_loadd(0, t, 64);
  _tile_loadd(1, t + 1, 64);
  _tile_loadd(2, t + 2, 64);
  _tile_loadd(3, t + 3, 64);
}

inline void store_sums(Tile* t) {
  _tile_stored(0, t, 64);
  _tile_stored(1, t + 1, 64);
  _tile_stored(2, t + 2, 64);
  _tile_stored(3, t + 3, 64);
}

// The sums of 32 x 32 outputs as bf16 rows.
inline void write_sums(bf16* rows, int64_t stride) {
  Tile t[4];
  store_sums(t);
  for (int r = 0; r < 32; r++)
    _mm512_storeu_si512(
        rows + r * stride,
        to_bf16(load(t[r / 16 * 2], r % 16), load(t[r / 16 * 2 + 1], r % 16)));
}

// sigmoid(2 c (x + a x^3)): gelu(x) is x times this.
inline __m512 gate_of(__m512 x, __m512 square) {
  const __m512 one = _mm512_set1_ps(1.0f);
  __m512 z =
      _mm512_mul_ps(x, _mm512_fmadd_ps(square, _mm512_set1_ps(GELU_A), one));
  __m512 e = exp2_fast(_mm512_mul_ps(z, _mm512_set1_ps(-2 * GELU_C * LOG2E)));
  return _mm512_rcp14_ps(_mm512_add_ps(one, e));
}

struct Sizes {
  int64_t tokens, in, mid;
  Sizes(const at::Tensor& x, const at::Tensor& wd)
      : tokens(x.numel() / x.size(-1)), in(x.size(-1)), mid(wd.size(1)) {
    TORCH_CHECK(tokens % 64 == 0 && in % 32 == 0 && mid % 32 == 0);
  }
};

// w [n, k] as right operand of x @ w^T: tiles [n / 16][k / 32].
std::vector<Tile> pack_forward(const bf16* w, int64_t n, int64_t k) {
  std::vector<Tile> out(n / 16 * (k / 32));
  for (int64_t i = 0; i < n / 16; i++)
    for (int64_t j = 0; j < k / 32; j++)
      pack_pairs_of_columns(w + i * 16 * k + j * 32, k, out[i * (k / 32) + j]);
  return out;
}

// w [n, k] as right operand of g @ w: tiles [k / 32][n / 32][half of 32
// columns].
std::vector<Tile> pack_backward(const bf16* w, int64_t n, int64_t k) {
  std::vector<Tile> out(k / 32 * (n / 32) * 2);
  for (int64_t i = 0; i < k / 32; i++)
    for (int64_t j = 0; j < n / 32; j++)
      pack_pairs_of_rows(w + j * 32 * k + i * 32, k,
                         &out[(i * (n / 32) + j) * 2]);
  return out;
}

}  // namespace

at::Tensor mlp(at::Tensor x, at::Tensor wgu, at::Tensor wd) {
  const Sizes s(x, wd);
  const int kin = s.in / 32, kmid = s.mid / 32;
  at::Tensor y = at::empty_like(x);
  const bf16* xp = data(x);
  bf16* yp = data(y);
  const auto gu = pack_forward(data(wgu), 2 * s.mid, s.in);
  const auto down = pack_forward(data(wd), s.in, s.mid);
  at::parallel_for(0, s.tokens / 32, 1, [&](int64_t begin, int64_t end) {
    TileScope scope;
    std::vector<Tile> h(2 * kmid);  // [token half][mid / 32]
    for (int64_t t = begin; t < end; t++) {
      const bf16* rows = xp + t * 32 * s.in;
      const bf16* rows1 = rows + 16 * s.in;
      for (int n = 0; n < kmid; n++) {
        Tile g[4], u[4];
        const Tile* w = &gu[2 * n * kin];
        zero();
        product(rows, rows1, s.in * 2, 64, w, w + kin, 1, kin);
        store_sums(g);
        w += s.mid / 16 * kin;
        zero();
        product(rows, rows1, s.in * 2, 64, w, w + kin, 1, kin);
        store_sums(u);
        for (int r = 0; r < 32; r++) {
          __m512 v[2];
          for (int c = 0; c < 2; c++) {
            __m512 a = load(g[r / 16 * 2 + c], r % 16);
            __m512 b = _mm512_mul_ps(a, load(u[r / 16 * 2 + c], r % 16));
            v[c] = _mm512_mul_ps(b, gate_of(a, _mm512_mul_ps(a, a)));
          }
          store(h[r / 16 * kmid + n], r % 16, to_bf16(v[0], v[1]));
        }
      }
      for (int n = 0; n < kin; n++) {
        const Tile* w = &down[2 * n * kmid];
        zero();
        product(&h[0], &h[kmid], 64, sizeof(Tile), w, w + kmid, 1, kmid);
        write_sums(yp + t * 32 * s.in + n * 32, s.in);
      }
    }
  });
  return y;
}

// Gradients of x (bf16), of wgu transposed (fp32) and of wd (fp32).
std::vector<at::Tensor> mlp_backward(at::Tensor gy, at::Tensor x,
                                     at::Tensor wgu, at::Tensor wd) {
  const Sizes s(x, wd);
  const int kin = s.in / 32, kmid = s.mid / 32, wide = 3 * kmid;
  constexpr int M = 2;  // 32-token groups in one go
  at::Tensor dx = at::empty_like(x);
  at::Tensor dgu = at::zeros({s.in, 2 * s.mid}, x.options().dtype(at::kFloat));
  at::Tensor dd = at::zeros({s.in, s.mid}, x.options().dtype(at::kFloat));
  const bf16 *xp = data(x), *gp = data(gy);
  bf16* dxp = data(dx);
  const auto gu = pack_forward(data(wgu), 2 * s.mid, s.in);
  const auto down = pack_backward(data(wd), s.in, s.mid);
  const auto back = pack_backward(data(wgu), 2 * s.mid, s.in);
  std::mutex mutex;
  at::parallel_for(0, s.tokens / (32 * M), 1, [&](int64_t begin, int64_t end) {
    TileScope scope;
    // x and gy transposed: [in / 16][group]; dgate, dup and h by token pairs:
    // [mid / 16 x 3][group]; dgate and dup: [group][token half][mid / 32 x 2].
    std::vector<Tile> xt(2 * kin * M), gt(2 * kin * M), pairs(2 * wide * M);
    std::vector<Tile> rows(M * 2 * 2 * kmid), sums(kin * wide * 4);
    memset(sums.data(), 0, sums.size() * sizeof(Tile));
    for (int64_t t = begin; t < end; t++) {
      for (int m = 0; m < M; m++) {
        const int64_t at = (t * M + m) * 32 * s.in;
        const bf16 *x0 = xp + at, *x1 = x0 + 16 * s.in, *g0 = gp + at,
                   *g1 = g0 + 16 * s.in;
        for (int k = 0; k < kin; k++) {
          Tile two[2];
          pack_transposed(x0 + k * 32, s.in, two);
          xt[2 * k * M + m] = two[0];
          xt[(2 * k + 1) * M + m] = two[1];
          pack_transposed(g0 + k * 32, s.in, two);
          gt[2 * k * M + m] = two[0];
          gt[(2 * k + 1) * M + m] = two[1];
        }
        for (int n = 0; n < kmid; n++) {
          Tile g[4], u[4], d[4];
          const Tile* w = &gu[2 * n * kin];
          zero();
          product(x0, x1, s.in * 2, 64, w, w + kin, 1, kin);
          store_sums(g);
          w += s.mid / 16 * kin;
          zero();
          product(x0, x1, s.in * 2, 64, w, w + kin, 1, kin);
          store_sums(u);
          w = &down[n * kin * 2];
          zero();
          product(g0, g1, s.in * 2, 64, w, w + 1, 2, kin);
          store_sums(d);
          Tile* dst = &rows[m * 4 * kmid + n];
          for (int r = 0; r < 16; r++) {  // tokens 2r and 2r + 1
            __m512 dg[2][2], du[2][2], h[2][2];
            for (int b = 0; b < 2; b++) {
              const int row = 2 * r + b;
              for (int c = 0; c < 2; c++) {
                const int tile = row / 16 * 2 + c;
                __m512 a = load(g[tile], row % 16), v = load(u[tile], row % 16);
                __m512 dh = load(d[tile], row % 16);
                __m512 sq = _mm512_mul_ps(a, a), sg = gate_of(a, sq),
                       ge = _mm512_mul_ps(a, sg);
                // gelu' = s + gelu (1 - s) 2 c (1 + 3 a x^2)
                __m512 z =
                    _mm512_fmadd_ps(sq, _mm512_set1_ps(6 * GELU_C * GELU_A),
                                    _mm512_set1_ps(2 * GELU_C));
                z = _mm512_mul_ps(z, _mm512_fnmadd_ps(ge, sg, ge));
                h[b][c] = _mm512_mul_ps(ge, v);
                du[b][c] = _mm512_mul_ps(dh, ge);
                dg[b][c] =
                    _mm512_mul_ps(_mm512_mul_ps(dh, v), _mm512_add_ps(sg, z));
              }
              Tile* half = dst + row / 16 * 2 * kmid;
              store(half[0], row % 16, to_bf16(dg[b][0], dg[b][1]));
              store(half[kmid], row % 16, to_bf16(du[b][0], du[b][1]));
            }
            for (int c = 0; c < 2; c++) {
              const int at16 = 2 * n + c;
              store(pairs[at16 * M + m], r,
                    interleave(to_bf16(dg[0][c], dg[1][c])));
              store(pairs[(2 * kmid + at16) * M + m], r,
                    interleave(to_bf16(du[0][c], du[1][c])));
              store(pairs[(4 * kmid + at16) * M + m], r,
                    interleave(to_bf16(h[0][c], h[1][c])));
            }
          }
        }
        for (int n = 0; n < kin; n++) {
          const Tile *w = &back[n * 2 * kmid * 2], *r = &rows[m * 4 * kmid];
          zero();
          product(r, r + 2 * kmid, 64, sizeof(Tile), w, w + 1, 2, 2 * kmid);
          write_sums(dxp + at + n * 32, s.in);
        }
      }
      for (int a = 0; a < kin; a++)
        for (int n = 0; n < wide; n++) {
          const Tile* left = &(n < 2 * kmid ? xt : gt)[2 * a * M];
          const Tile* right = &pairs[2 * n * M];
          Tile* sum = &sums[(a * wide + n) * 4];
          load_sums(sum);
          product(left, left + M, 64, sizeof(Tile), right, right + M, 1, M);
          store_sums(sum);
        }
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (int a = 0; a < kin; a++)
      for (int n = 0; n < wide; n++)
        for (int i = 0; i < 4; i++) {
          const bool gate_up = n < 2 * kmid;
          const int64_t width = gate_up ? 2 * s.mid : s.mid;
          float* out = (gate_up ? dgu : dd).data_ptr<float>() +
                       (a * 32 + i / 2 * 16) * width +
                       (gate_up ? n : n - 2 * kmid) * 32 + i % 2 * 16;
          for (int r = 0; r < 16; r++)
            _mm512_storeu_ps(
                out + r * width,
                _mm512_add_ps(_mm512_loadu_ps(out + r * width),
                              load(sums[(a * wide + n) * 4 + i], r)));
        }
  });
  return {dx, dgu, dd};
}
