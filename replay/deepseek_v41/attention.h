// SPDX-License-Identifier: Apache-2.0
//
// The attention site of a layer (model.h has its equations): what it writes,
// what it chooses, what it reads. Picks pass from index sources to the layers
// above them inside one forward. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_ATTENTION_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_ATTENTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/deepseek_v41/weights.h"
#include "replay/record_cache.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

// Layout slots of one layer; -1 = none.
struct LayerSlots {
  int64_t window = -1;
  int64_t main = -1;
  int64_t index = -1;
  int64_t open = -1;
};

class AttentionSite {
 public:
  // All outlive it.
  AttentionSite(const Config& config, const ModelLayout& layout, RowMath* math);

  // Before the layers of a forward.
  void Begin(const RowBatch& batch);

  // `x` is [rows, hidden] for the rows that enter the layer. Writes their
  // window rows, entries and keys as the batch says; returns y of the rows that
  // run, [rows, hidden].
  FloatRows Run(uint32_t layer, const LayerWeights& w, const RowBatch& batch,
                std::span<const float> x);

 private:
  // A group of tokens that closes in this forward.
  struct Group {
    size_t segment;
    uint64_t index;
    RowRun closing;
  };

  [[nodiscard]] const LayerConfig& layer(uint32_t l) const {
    return c_.layers[l];
  }
  static RecordCache* CacheOf(const RowBatch& batch, size_t segment) {
    return static_cast<RecordCache*>(batch.segment(segment).sequence);
  }

  void WriteWindow(uint32_t l, const LayerWeights& w, const RowBatch& batch,
                   std::span<const RowRun> entering, std::span<const float> x);
  void WriteEntries(uint32_t l, const CompressorWeights& w,
                    const RowBatch& batch, std::span<const RowRun> entering,
                    std::span<const float> x);
  // The latents of groups that close, before their norm.
  FloatRows PoolGroups(uint32_t l, const CompressorWeights& w,
                       const RowBatch& batch, std::span<const RowRun> entering,
                       std::span<const float> x, std::vector<Group>* groups);
  void StoreGroups(int64_t slot, kernels::RowFormat format, int64_t dim,
                   const RowBatch& batch, std::span<const Group> groups,
                   std::span<const float> rows);

  void Choose(uint32_t l, const IndexerWeights& w, const RowBatch& batch,
              std::span<const RowRun> runs, std::span<const float> x,
              std::span<const float> q_r);
  void QuantiseQueries(FloatRows* q);
  void ChooseForRow(uint32_t l, const RowRun& row, std::span<float> scores);
  FloatRows Attend(uint32_t l, const AttentionWeights& w, const RowBatch& batch,
                   std::span<const RowRun> runs, FloatRows q);
  FloatRows ProjectOut(const AttentionWeights& w, std::span<const float> o);

  // Rotates the last channels of each head, rows of `runs` in order.
  void Rope(uint32_t l, std::span<const RowRun> runs, int64_t n_heads,
            int64_t dim, bool inverse, FloatRows* x);
  // The same at the first token of each group.
  void RopeGroups(int64_t ratio, std::span<const Group> groups, int64_t dim,
                  FloatRows* x);

  const Config& c_;
  const ModelLayout& layout_;
  RowMath& math_;
  std::vector<LayerSlots> slots_;
  const std::vector<float> main_inv_freq_;
  const std::vector<float> compress_inv_freq_;
  // [rows of the batch, rope_dim]
  std::vector<float> main_tables_;
  std::vector<float> compress_tables_;
  // Per row of the batch, of the last index source and candidate source.
  std::vector<std::vector<int32_t>> picks_;
  std::vector<std::vector<int32_t>> blocks_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ATTENTION_H_
