// SPDX-License-Identifier: Apache-2.0
//
// Attention of many heads over one latent per token, keys and values alike
// (DeepSeek V4.1 section 2.9): each row has window rows and selected compressed
// entries, and one softmax runs over both and a sink a head, which only adds to
// the denominator:
//   l_k = scale * <q, kv_k>,  out = sum_k e^l_k kv_k / (sum_k e^l_k + e^sink)
//
// Keys are encoded rows (kernels/row_codec.h), named by pointers: those that
// are not named are never read. A row's order of operations follows its own
// lists, window first: dot products over ascending channels, the maximum over
// sink and keys, then the denominator, the sink's term first, and the values in
// ascending order of keys. Rows beside it and threads change nothing (design
// D9). Numerators below e^-87 may be 0.
// Floor: 4 * keys * n_heads * head_dim operations a row; its keys read once.

#ifndef TORPOR_KERNELS_LATENT_ATTENTION_H_
#define TORPOR_KERNELS_LATENT_ATTENTION_H_

#include <cstdint>

#include "kernels/row_codec.h"

namespace torpor::kernels {

// Keys of one row; at least one in all.
struct LatentKeys {
  const uint8_t* const* window = nullptr;  // [n_window]
  int64_t n_window = 0;
  const uint8_t* const* entries = nullptr;  // [n_entries]
  int64_t n_entries = 0;
};

struct LatentAttentionParams {
  int64_t n_rows = 0;
  int64_t n_heads = 0;
  // As both formats want it (row_codec.h).
  int64_t head_dim = 0;
  float scale = 1.0f;
  RowFormat window_format = RowFormat::kWindowFp8;
  RowFormat entry_format = RowFormat::kMainFp4;
  // [n_heads] f32.
  const float* sinks = nullptr;
  // Numerators are rounded to bf16 before they meet the values; the
  // denominator is of the unrounded ones.
  bool bf16_numerators = false;
  // [n_rows, n_heads, head_dim] f32.
  const float* q = nullptr;
  const LatentKeys* keys = nullptr;  // [n_rows]
  // The shape of q; may be q itself.
  float* out = nullptr;
};

// Scalar, double.
void LatentAttentionRef(const LatentAttentionParams& params);

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_LATENT_ATTENTION_H_
