// SPDX-License-Identifier: Apache-2.0
// AMX tiles: configuration, fast exp2 and the packings that products need.
#pragma once
#include <immintrin.h>
#include <torch/extension.h>

using bf16 = uint16_t;

struct alignas(64) Tile {
  uint32_t at[16][16];
};  // 1 KiB: fp32 or bf16 pairs

struct TileScope {
  TileScope() {
    alignas(64) uint8_t config[64] = {1};
    for (int i = 0; i < 8; i++) {
      reinterpret_cast<uint16_t*>(config + 16)[i] = 64;
      config[48 + i] = 16;
    }
    _tile_loadconfig(config);
  }
  ~TileScope() { _tile_release(); }
};

inline __m512 load(const Tile& t, int row) { return _mm512_load_ps(t.at[row]); }
inline void store(Tile& t, int row, __m512i v) {
  _mm512_store_si512(t.at[row], v);
}

inline __m512 exp2_fast(__m512 x) {
  __m512 n = _mm512_roundscale_ps(x, 0), f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00961813f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.05550411f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022651f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.69314718f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// Two fp32 vectors as bf16: lo in the lower half, hi in the upper half.
inline __m512i to_bf16(__m512 lo, __m512 hi) {
  return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

// The halves of a vector of 32 16-bit numbers, interleaved.
inline __m512i interleave(__m512i v) {
  alignas(64) static constexpr uint16_t index[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(index), v);
}

// 16 x 16 transposition of 32-bit numbers.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 2; k++) {
      r[4 * i + 2 * k] = _mm512_unpacklo_epi64(t[4 * i + k], t[4 * i + 2 + k]);
      r[4 * i + 2 * k + 1] =
          _mm512_unpackhi_epi64(t[4 * i + k], t[4 * i + 2 + k]);
    }
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 2; k++) {
      t[8 * k + i] = _mm512_shuffle_i32x4(r[8 * k + i], r[8 * k + 4 + i], 0x88);
      t[8 * k + 4 + i] =
          _mm512_shuffle_i32x4(r[8 * k + i], r[8 * k + 4 + i], 0xdd);
    }
  for (int i = 0; i < 8; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
  }
}

// 16 rows of 32 bf16, transposed by pairs: right operand of (x @ rows^T).
inline void pack_pairs_of_columns(const bf16* rows, int64_t stride, Tile& out) {
  __m512i r[16];
  for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(rows + i * stride);
  transpose(r);
  for (int i = 0; i < 16; i++) store(out, i, r[i]);
}

// 32 rows of 32 bf16 as the right operand of (x @ rows), left and right half.
inline void pack_pairs_of_rows(const bf16* rows, int64_t stride, Tile* out) {
  for (int i = 0; i < 16; i++) {
    __m512i a = _mm512_loadu_si512(rows + 2 * i * stride);
    __m512i b = _mm512_loadu_si512(rows + (2 * i + 1) * stride);
    store(out[0], i,
          interleave(_mm512_inserti64x4(a, _mm512_castsi512_si256(b), 1)));
    store(out[1], i, interleave(_mm512_shuffle_i64x2(a, b, 0xee)));
  }
}

// 32 rows of 32 bf16, transposed: left operand of (rows^T @ x), two tiles.
inline void pack_transposed(const bf16* rows, int64_t stride, Tile* out) {
  Tile half[2];
  pack_pairs_of_columns(rows, stride, half[0]);
  pack_pairs_of_columns(rows + 16 * stride, stride, half[1]);
  for (int i = 0; i < 16; i++) {
    __m512i a = _mm512_load_si512(half[0].at[i]),
            b = _mm512_load_si512(half[1].at[i]);
    __m512i low =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(a)),
                           _mm512_cvtepi32_epi16(b), 1);
    __m512i high = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm512_cvtepi32_epi16(_mm512_srli_epi32(a, 16))),
        _mm512_cvtepi32_epi16(_mm512_srli_epi32(b, 16)), 1);
    store(out[i / 8], 2 * i % 16, low);
    store(out[i / 8], 2 * i % 16 + 1, high);
  }
}

inline const bf16* data(const at::Tensor& t) {
  TORCH_CHECK(t.is_contiguous() && t.scalar_type() == at::kBFloat16);
  return reinterpret_cast<const bf16*>(t.data_ptr());
}
inline bf16* data(at::Tensor& t) {
  return reinterpret_cast<bf16*>(t.data_ptr());
}
