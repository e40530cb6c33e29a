// SPDX-License-Identifier: Apache-2.0
//
// kernels/latent_attention.h over rows of sequences whose keys stand in pages:
// each row's window as a range of rows, its entries as picks that an op chose.
// Results and floor are those of the lists that follow from them.

#ifndef TORPOR_KERNELS_PAGED_LATENT_ATTENTION_H_
#define TORPOR_KERNELS_PAGED_LATENT_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/latent_attention.h"
#include "kernels/record_rows.h"

namespace torpor::kernels {

// Rows of one sequence, whose keys stand in its pages.
struct LatentSegment {
  // First row in q and out.
  int64_t row_begin = 0;
  int64_t n_rows = 0;
  RecordPages window;
  // [n_rows], the host's: each row's window, in rows of `window`.
  const KeyRange* window_keys = nullptr;
  // Entries: row r reads rows picks[r, 0 .. n_picks[r]) of `entries`. Null =
  // none.
  RecordPages entries;
  const int32_t* picks = nullptr;  // [n_rows, picks_stride]
  const int32_t* n_picks = nullptr;
  int64_t picks_stride = 0;
};

// The same for rows of sequences, all of them in a segment.
struct PagedLatentAttentionParams {
  // `keys` follow from the segments.
  LatentAttentionParams attention;
  // The host's.
  const LatentSegment* segments = nullptr;
  int64_t n_segments = 0;
};

// The keys of every row of segments whose picks the host may read.
class LatentKeyLists {
 public:
  explicit LatentKeyLists(const PagedLatentAttentionParams& params);
  [[nodiscard]] const LatentKeys* keys() const { return keys_.data(); }

 private:
  std::vector<const uint8_t*> rows_;
  std::vector<LatentKeys> keys_;
};

}  // namespace torpor::kernels

#endif  // TORPOR_KERNELS_PAGED_LATENT_ATTENTION_H_
