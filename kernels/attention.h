// SPDX-License-Identifier: Apache-2.0
//
// softmax(scale * q K^T [softcapped]) V over a range of keys a row, full and
// sliding-window layers alike: the caller gives each row its keys.
//
// A row's order of operations is anchored at absolute positions: pages of 64
// keys within splits of 1,024, online softmax page by page inside a split,
// splits merged in ascending order. Rows beside it, tiles, threads and batch
// change nothing (design D9). Keys outside a row's range are never weighted:
// not by 0, since 0 x NaN is NaN. In bf16, q and the softmax numerators are
// rounded to bf16 before their products; sums are f32. A sink joins a row's
// softmax after its splits are merged.
// Floor: 4 * rows * keys * head_dim operations a head; K and V read once a
// tile of rows.

#ifndef TORPOR_KERNELS_ATTENTION_H_
#define TORPOR_KERNELS_ATTENTION_H_

#include <cstdint>

#include "kernels/kv_page.h"

namespace torpor::kernels {

inline constexpr int64_t kSplitTokens = 1024;

// Keys [begin, end), absolute positions; never empty.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Pages of one layer of one sequence. Page b stands at pages[b % n_pages]: a
// ring for windows, everything for full layers.
struct KvView {
  const uint8_t* const* pages = nullptr;
  int64_t n_pages = 0;

  [[nodiscard]] TORPOR_DEVICE const uint8_t* page(int64_t b) const {
    return pages[b % n_pages];
  }
};

// Rows of one sequence inside a ragged batch.
struct AttentionSegment {
  // First row in q and out.
  int64_t row_begin = 0;
  int64_t n_rows = 0;
  // [n_rows].
  const KeyRange* keys = nullptr;
  KvView kv;
};

struct AttentionParams {
  KvShape shape;
  // A multiple of shape.n_kv_heads; query head h reads KV head
  // h / (n_heads / n_kv_heads).
  int64_t n_heads = 0;
  float scale = 1.0f;
  // 0 = none.
  float softcap = 0.0f;
  // [n_heads] f32: a logit beside those of the row's keys, without a value;
  // neither scaled nor softcapped. Null = none.
  const float* sinks = nullptr;
  // [rows, n_heads, head_dim] f32.
  const float* q = nullptr;
  // The same shape, of `out_dtype`.
  void* out = nullptr;
  DType out_dtype = DType::kF32;
  const AttentionSegment* segments = nullptr;
  int64_t n_segments = 0;
};

// Scalar, double, two passes. Reads only the keys of each row.
void AttentionRef(const AttentionParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_ATTENTION_H_
