// SPDX-License-Identifier: Apache-2.0

#include "kernels/paged_latent_attention.h"

namespace torpor::kernels {

LatentKeyLists::LatentKeyLists(const PagedLatentAttentionParams& p)
    : keys_(static_cast<size_t>(p.attention.n_rows)) {
  for (int64_t s = 0; s < p.n_segments; ++s) {
    const LatentSegment& segment = p.segments[s];
    for (int64_t i = 0; i < segment.n_rows; ++i) {
      LatentKeys& of_row = keys_[static_cast<size_t>(segment.row_begin + i)];
      const KeyRange window = segment.window_keys[i];
      for (int64_t row = window.begin; row < window.end; ++row) {
        rows_.push_back(segment.window.Row(row));
      }
      of_row.n_window = window.end - window.begin;
      if (segment.picks == nullptr) continue;
      const int32_t* picks = segment.picks + i * segment.picks_stride;
      for (int32_t k = 0; k < segment.n_picks[i]; ++k) {
        rows_.push_back(segment.entries.Row(picks[k]));
      }
      of_row.n_entries = segment.n_picks[i];
    }
  }
  // The lists stand in the order of the segments; they move no more.
  const uint8_t* const* at = rows_.data();
  for (int64_t s = 0; s < p.n_segments; ++s) {
    for (int64_t i = 0; i < p.segments[s].n_rows; ++i) {
      LatentKeys& of_row =
          keys_[static_cast<size_t>(p.segments[s].row_begin + i)];
      of_row.window = at;
      of_row.entries = at + of_row.n_window;
      at += of_row.n_window + of_row.n_entries;
    }
  }
}

}  // namespace torpor::kernels
