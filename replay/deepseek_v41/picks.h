// SPDX-License-Identifier: Apache-2.0
//
// Which compressed entries the rows of a forward read (DeepSeek V4.1 section
// 2.8): index sources choose them by scores, the layers above read them. They
// stand in the backend's memory; a tap sees them, and may change them, through
// the host's. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

class Picks {
 public:
  // Both outlive it.
  Picks(const Config& config, RowMath* math);

  // Before the layers of a forward: none of its rows has picked anything.
  void Begin(const RowBatch& batch);

  // For an index source: `q` [rows of `runs`, index_heads * index_dim] after
  // rope, `weights` [rows, index_heads], against the keys in `slot`.
  void Choose(uint32_t layer, uint32_t slot, const RowBatch& batch,
              std::span<const RowRun> runs, FloatRows q, FloatRows weights);

  // What the rows of the batch from `row` on picked last, [.., stride()], and
  // how many each.
  [[nodiscard]] int64_t stride() const {
    return static_cast<int64_t>(best_.stride);
  }
  [[nodiscard]] const int32_t* IdsOf(uint64_t row) { return best_.IdsOf(row); }
  [[nodiscard]] const int32_t* CountsOf(uint64_t row) {
    return best_.CountsOf(row);
  }

 private:
  // Ids that the rows of a batch chose, each at most `stride`.
  struct Choices {
    explicit Choices(kernels::Ops* ops) : ids(ops), n(ops) {}
    int32_t* IdsOf(uint64_t row) { return ids.data() + row * stride; }
    int32_t* CountsOf(uint64_t row) { return n.data() + row; }

    kernels::Buffer<int32_t> ids;  // [n_rows, stride]
    kernels::Buffer<int32_t> n;    // [n_rows]
    size_t stride = 1;
  };

  // The values that their codes stand for.
  void QuantiseQueries(FloatRows* q);
  // Room for rows of as many scores.
  void ReserveScores(int64_t stride);
  // Rows of one run by scores_, [rows, stride], of which each row's first
  // `visible` count.
  void ChooseByScores(uint32_t layer, const RowRun& run,
                      std::span<const int64_t> visible, int64_t stride);
  void ShowChoices(std::string_view name, uint32_t layer, const RowRun& run,
                   Choices* choices);

  const Config& c_;
  RowMath& math_;
  Choices best_;
  // Of the last candidate source.
  Choices blocks_;
  // Work of Choose, kept between calls.
  Floats scores_;
  kernels::Buffer<uint8_t> codes_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_PICKS_H_
