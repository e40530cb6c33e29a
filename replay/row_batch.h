// SPDX-License-Identifier: Apache-2.0
//
// Which rows of a ragged batch enter, write and run in each layer: the one
// place where prefill, decode and replay differ. Families ask it and stay free
// of plans. Plain arithmetic over Segments.

#ifndef TORPOR_REPLAY_ROW_BATCH_H_
#define TORPOR_REPLAY_ROW_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "replay/model.h"

namespace torpor::replay {

// Consecutive rows of one segment.
struct RowRun {
  size_t segment = 0;
  // First row in the batch's buffers, and its position in the sequence.
  uint64_t row = 0;
  uint64_t position = 0;
  uint64_t n = 0;
};

// Rows of all runs.
uint64_t CountRows(std::span<const RowRun> runs);

// Rows [first, first + n) of a buffer.
struct RowBlock {
  uint64_t first = 0;
  uint64_t n = 0;
  friend bool operator==(const RowBlock&, const RowBlock&) = default;
};

// Where the rows of `runs` stand in the batch's buffers, in order; those that
// follow each other are one block.
std::vector<RowBlock> BlocksOf(std::span<const RowRun> runs);
// Where they stand in a buffer that holds the rows of `from` alone, one after
// the other. REQUIRES: each run is the end of the run of its segment in `from`.
std::vector<RowBlock> BlocksIn(std::span<const RowRun> runs,
                               std::span<const RowRun> from);

class RowBatch {
 public:
  // kInvalidArgument for no rows, more than `max_rows`, less history than the
  // `id_lookback` tokens before a segment or, where there is a lookback, an id
  // outside the vocabulary. The segments outlive the batch.
  static absl::StatusOr<RowBatch> Make(std::span<const Segment> segments,
                                       const ModelLayout& layout,
                                       uint64_t max_rows,
                                       uint64_t id_lookback = 0);

  [[nodiscard]] size_t n_segments() const { return segments_.size(); }
  [[nodiscard]] uint64_t n_rows() const { return n_rows_; }
  [[nodiscard]] const Segment& segment(size_t s) const { return segments_[s]; }

  // Every row of a segment.
  [[nodiscard]] RowRun All(size_t s) const;
  // Rows of a segment whose input the layer needs.
  [[nodiscard]] RowRun Input(uint32_t layer, size_t s) const;
  // Rows of every segment whose input the layer needs; runs without rows are
  // left out. Rows that are written or run are the last of them.
  [[nodiscard]] std::vector<RowRun> Entering(uint32_t layer) const;
  // Tokens whose rows of a slot are written; runs without any are left out.
  [[nodiscard]] std::vector<RowRun> Written(uint32_t slot) const;
  // Rows that run attention and FFN in the layer; likewise.
  [[nodiscard]] std::vector<RowRun> Running(uint32_t layer) const;
  // Rows of a segment that give logits.
  [[nodiscard]] RowRun Logits(size_t s) const;

  // Keys of each row of `run` in a layer whose rows see `window` tokens, itself
  // included (0 = all): floors and two-way spans applied.
  [[nodiscard]] std::vector<kernels::KeyRange> Keys(const RowRun& run,
                                                    uint32_t layer,
                                                    uint64_t window) const;

 private:
  struct LayerBegin {
    uint64_t input;
    uint64_t run;
  };

  // Rows of a segment from position `begin` on.
  [[nodiscard]] RowRun From(size_t s, uint64_t begin) const;

  std::span<const Segment> segments_;
  uint64_t n_rows_ = 0;
  std::vector<uint64_t> first_row_;
  // [segment][layer]
  std::vector<std::vector<LayerBegin>> begins_;
  // [segment][slot]
  std::vector<std::vector<uint64_t>> writes_;
};

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_ROW_BATCH_H_
