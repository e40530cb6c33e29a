// SPDX-License-Identifier: Apache-2.0
//
// K and V rows into and out of pages (kernels/kv_page.h on the CPU). A row that
// stands at `position` is in page position / 64, which is pages[that %
// n_pages]: a ring, or everything. Floor: each row read once and written once.

#ifndef TORPOR_KERNELS_KV_ROWS_H_
#define TORPOR_KERNELS_KV_ROWS_H_

#include <cstdint>

#include "kernels/kv_page.h"

namespace torpor::kernels {

// Rows that a forward computed, rounded to the shape's dtype.
struct PutKvParams {
  KvShape shape;
  uint8_t* const* pages = nullptr;
  int64_t n_pages = 0;
  int64_t position = 0;
  int64_t n_rows = 0;
  // [n_rows, n_kv_heads, head_dim] f32, rows `stride` elements apart.
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
};

// Rows as they are stored: [n_rows, n_kv_heads, head_dim] of the shape's dtype,
// of any alignment, K or V.
struct KvRowBytes {
  KvShape shape;
  uint8_t* const* pages = nullptr;
  int64_t n_pages = 0;
  int64_t position = 0;
  int64_t n_rows = 0;
  bool is_k = true;
};

// One row at a time.
void PutKvRef(const PutKvParams& params);
void ImportKvRef(const KvRowBytes& to, const uint8_t* from);
void ExportKvRef(const KvRowBytes& from, uint8_t* to);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_KV_ROWS_H_
