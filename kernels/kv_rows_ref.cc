// SPDX-License-Identifier: Apache-2.0

#include "kernels/kv_rows.h"

#include <vector>

#include "kernels/bf16.h"

namespace torpor::kernels {
namespace {

uint8_t* PageOf(uint8_t* const* pages, int64_t n_pages, int64_t position) {
  return pages[position / kPageTokens % n_pages];
}

}  // namespace

void PutKvRef(const PutKvParams& p) {
  const int64_t n = p.shape.row_elements();
  std::vector<Bf16> k16(static_cast<size_t>(n));
  std::vector<Bf16> v16(static_cast<size_t>(n));
  for (int64_t row = 0; row < p.n_rows; ++row) {
    const int64_t position = p.position + row;
    uint8_t* page = PageOf(p.pages, p.n_pages, position);
    const float* k = p.k + row * p.k_stride;
    const float* v = p.v + row * p.v_stride;
    if (p.shape.dtype == DType::kF32) {
      PutKRow(p.shape, page, position % kPageTokens, k);
      PutVRow(p.shape, page, position % kPageTokens, v);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      k16[static_cast<size_t>(i)] = ToBf16(k[i]);
      v16[static_cast<size_t>(i)] = ToBf16(v[i]);
    }
    PutKRow(p.shape, page, position % kPageTokens, k16.data());
    PutVRow(p.shape, page, position % kPageTokens, v16.data());
  }
}

void ImportKvRef(const KvRowBytes& to, const uint8_t* from) {
  for (int64_t row = 0; row < to.n_rows; ++row) {
    const int64_t position = to.position + row;
    uint8_t* page = PageOf(to.pages, to.n_pages, position);
    const uint8_t* bytes = from + row * to.shape.row_bytes();
    to.is_k ? PutKRow(to.shape, page, position % kPageTokens, bytes)
            : PutVRow(to.shape, page, position % kPageTokens, bytes);
  }
}

void ExportKvRef(const KvRowBytes& from, uint8_t* to) {
  for (int64_t row = 0; row < from.n_rows; ++row) {
    const int64_t position = from.position + row;
    const uint8_t* page = PageOf(from.pages, from.n_pages, position);
    uint8_t* bytes = to + row * from.shape.row_bytes();
    from.is_k ? GetKRow(from.shape, page, position % kPageTokens, bytes)
              : GetVRow(from.shape, page, position % kPageTokens, bytes);
  }
}

}  // namespace torpor::kernels
