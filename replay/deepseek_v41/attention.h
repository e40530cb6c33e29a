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
#include "replay/deepseek_v41/picks.h"
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
                const FloatRows& x);

 private:
  // A group of tokens that closes in this forward.
  struct Group {
    size_t segment;
    uint64_t index;
    RowRun closing;
  };
  // A row of a slot, and where it is written.
  struct Record {
    uint64_t row;
    uint8_t* at;
  };

  [[nodiscard]] const LayerConfig& layer(uint32_t l) const {
    return c_.layers[l];
  }
  static RecordCache* CacheOf(const RowBatch& batch, size_t segment) {
    return static_cast<RecordCache*>(batch.segment(segment).sequence);
  }

  void WriteWindow(uint32_t l, const LayerWeights& w, const RowBatch& batch,
                   std::span<const RowRun> entering, const FloatRows& x);
  void WriteEntries(uint32_t l, const CompressorWeights& w,
                    const RowBatch& batch, std::span<const RowRun> entering,
                    const FloatRows& x);
  // The latents of groups that close, before their norm.
  FloatRows FindGroups(uint32_t l, const CompressorWeights& w,
                       const RowBatch& batch, std::span<const RowRun> entering,
                       const FloatRows& x, std::vector<Group>* groups);
  // Those of groups of several tokens, whose `members` are [values | gates].
  FloatRows PoolGroups(uint32_t l, const RowBatch& batch,
                       std::span<const RowRun> runs, const FloatRows& members,
                       std::vector<Group>* groups);
  void StoreMembers(uint32_t slot, const RowBatch& batch,
                    std::span<const RowRun> runs, const FloatRows& members);
  void StoreGroups(int64_t slot, kernels::RowFormat format,
                   const RowBatch& batch, std::span<const Group> groups,
                   const FloatRows& rows);
  // Encodes rows into their places in a slot, and shows them.
  void Encode(uint32_t slot, kernels::RowFormat format, const FloatRows& rows,
              std::span<const Record> to);

  void Choose(uint32_t l, const IndexerWeights& w, const RowBatch& batch,
              std::span<const RowRun> runs, const FloatRows& x,
              const FloatRows& q_r);
  FloatRows Attend(uint32_t l, const AttentionWeights& w, const RowBatch& batch,
                   std::span<const RowRun> runs, FloatRows q);
  FloatRows ProjectOut(const AttentionWeights& w, const FloatRows& o);

  // Rotates the last channels of each head, rows of `runs` in order.
  void Rope(uint32_t l, std::span<const RowRun> runs, int64_t n_heads,
            bool inverse, FloatRows* x);
  // The same at the first token of each group.
  void RopeGroups(int64_t ratio, std::span<const Group> groups, FloatRows* x);
  void RopeBy(const FloatRows& tables, int64_t n_heads, bool inverse,
              FloatRows* x);

  const Config& c_;
  const ModelLayout& layout_;
  RowMath& math_;
  std::vector<LayerSlots> slots_;
  const std::vector<float> main_inv_freq_;
  const std::vector<float> compress_inv_freq_;
  // [rows of the batch, rope_dim]
  FloatRows main_tables_;
  FloatRows compress_tables_;
  Picks picks_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ATTENTION_H_
