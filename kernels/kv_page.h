// SPDX-License-Identifier: Apache-2.0
//
// K and V of 64 consecutive tokens of one layer, laid out for attention:
//   per KV head: K, then V
//   K bf16: [64 / 16][head_dim / 2][16 tokens][2]   f32: [64 /
//   16][head_dim][16] V bf16: [64 / 2][head_dim][2 tokens]            f32:
//   [64][head_dim]
// Pages are aligned to absolute positions: page b holds tokens [64b, 64b + 64).
// A page is memory only; stored rows are row-major [n_kv_heads, head_dim].

#ifndef TORPOR_KERNELS_KV_PAGE_H_
#define TORPOR_KERNELS_KV_PAGE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/device_function.h"
#include "kernels/gemm.h"

namespace torpor::kernels {

inline constexpr int64_t kPageTokens = 64;

struct KvShape {
  DType dtype = DType::kF32;
  int64_t n_kv_heads = 0;
  // A multiple of 16.
  int64_t head_dim = 0;

  [[nodiscard]] TORPOR_DEVICE int64_t row_elements() const {
    return n_kv_heads * head_dim;
  }
  [[nodiscard]] size_t row_bytes() const {
    return static_cast<size_t>(row_elements()) * DTypeBytes(dtype);
  }
  // K (or V) of one head in a page.
  [[nodiscard]] size_t head_bytes() const {
    return static_cast<size_t>(kPageTokens * head_dim) * DTypeBytes(dtype);
  }
  [[nodiscard]] size_t page_bytes() const {
    return 2 * head_bytes() * static_cast<size_t>(n_kv_heads);
  }
};

// Puts one token's row of K or V, row-major in the shape's dtype and of any
// alignment, into a page. `token` in [0, 64).
void PutKRow(const KvShape& shape, uint8_t* page, int64_t token,
             const void* row);
void PutVRow(const KvShape& shape, uint8_t* page, int64_t token,
             const void* row);
// The row again, bit for bit.
void GetKRow(const KvShape& shape, const uint8_t* page, int64_t token,
             void* row);
void GetVRow(const KvShape& shape, const uint8_t* page, int64_t token,
             void* row);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_KV_PAGE_H_
