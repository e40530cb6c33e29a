// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/index_score.h"
#include "kernels/latent_attention.h"
#include "kernels/rope.h"
#include "kernels/row_codec.h"
#include "replay/deepseek_v41/picks.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::RowFormat;

// Rows whose scores stand in memory at a time.
constexpr uint64_t kScoreRows = 16;

std::vector<LayerSlots> SlotsOf(const ModelLayout& layout) {
  std::vector<LayerSlots> out(layout.n_layers);
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const Slot& slot = layout.slots[i];
    LayerSlots& of_layer = out[slot.owner_layer];
    const auto index = static_cast<int64_t>(i);
    if (slot.is_window()) {
      of_layer.window = index;
    } else if (slot.kind == SlotKind::kOpenGroup) {
      of_layer.open = index;
    } else if (slot.name.ends_with(".index")) {
      of_layer.index = index;
    } else {
      of_layer.main = index;
    }
  }
  return out;
}

std::vector<float> CompressInvFreq(const Config& c) {
  return kernels::YarnInvFreq(c.compress_theta, c.rope_dim, c.yarn);
}

uint32_t Index(int64_t slot) { return static_cast<uint32_t>(slot); }

// Per channel a softmax over the members' gates weighs their values; a member
// is [values | gates], dim f32 each.
void PoolMembers(std::span<const uint8_t* const> members, size_t dim,
                 float* out) {
  const auto value = [&](size_t t, size_t i) {
    float v = 0;
    std::memcpy(&v, members[t] + i * sizeof(v), sizeof(v));
    return v;
  };
  for (size_t i = 0; i < dim; ++i) {
    float max = value(0, dim + i);
    for (size_t t = 1; t < members.size(); ++t) {
      max = std::max(max, value(t, dim + i));
    }
    float sum = 0;
    float acc = 0;
    for (size_t t = 0; t < members.size(); ++t) {
      // In double, rounded once: the library's float exp differs between
      // processors.
      const auto e = static_cast<float>(
          std::exp(static_cast<double>(value(t, dim + i) - max)));
      sum += e;
      acc += e * value(t, i);
    }
    out[i] = acc / sum;
  }
}

// One run a row, so that a tap sees where each stands.
std::vector<RowRun> OneByOne(std::span<const RowRun> runs) {
  std::vector<RowRun> out;
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i) {
      out.push_back({run.segment, run.row + i, run.position + i, 1});
    }
  }
  return out;
}

}  // namespace

AttentionSite::AttentionSite(const Config& config, const ModelLayout& layout,
                             RowMath* math)
    : c_(config),
      layout_(layout),
      math_(*math),
      slots_(SlotsOf(layout)),
      main_inv_freq_(kernels::RopeInvFreq(static_cast<float>(config.rope_theta),
                                          config.rope_dim, 1.0f)),
      compress_inv_freq_(CompressInvFreq(config)) {}

void AttentionSite::Begin(const RowBatch& batch) {
  const auto dim = static_cast<size_t>(c_.rope_dim);
  main_tables_.resize(batch.n_rows() * dim);
  compress_tables_.resize(batch.n_rows() * dim);
  for (size_t s = 0; s < batch.n_segments(); ++s) {
    const RowRun run = batch.All(s);
    for (uint64_t i = 0; i < run.n; ++i) {
      const size_t at = (run.row + i) * dim;
      kernels::RopeTable(main_inv_freq_, run.position + i,
                         main_tables_.data() + at);
      kernels::RopeTable(compress_inv_freq_, run.position + i,
                         compress_tables_.data() + at);
    }
  }
  picks_.assign(batch.n_rows(), {});
  blocks_.assign(batch.n_rows(), {});
}

FloatRows AttentionSite::Run(uint32_t l, const LayerWeights& w,
                             const RowBatch& batch, std::span<const float> x) {
  const std::vector<RowRun> entering = batch.Entering(l);
  WriteWindow(l, w, batch, entering, x);
  if (w.compressor) WriteEntries(l, *w.compressor, batch, entering, x);
  const std::vector<RowRun> runs = batch.Running(l);
  if (runs.empty()) return {};

  const FloatRows own = RowsOf(runs, entering, x, c_.hidden_size);
  const FloatRows q_r =
      math_.Norm(math_.Project(w.attn.wq_a, own), w.attn.q_norm);
  FloatRows q = math_.Project(w.attn.wq_b, q_r);
  Rope(l, runs, c_.n_heads, c_.head_dim, /*inverse=*/false, &q);
  math_.Show("q", l, runs, q);
  if (w.indexer) Choose(l, *w.indexer, batch, runs, own, q_r);

  FloatRows o = Attend(l, w.attn, batch, runs, std::move(q));
  math_.Show("attn_o", l, runs, o);
  Rope(l, runs, c_.n_heads, c_.head_dim, /*inverse=*/true, &o);
  FloatRows y = ProjectOut(w.attn, o);
  math_.Show("attn_y", l, runs, y);
  return y;
}

// ---- what the layer writes -------------------------------------------------

void AttentionSite::WriteWindow(uint32_t l, const LayerWeights& w,
                                const RowBatch& batch,
                                std::span<const RowRun> entering,
                                std::span<const float> x) {
  const uint32_t slot = Index(slots_[l].window);
  const std::vector<RowRun> runs = batch.Written(slot);
  if (runs.empty()) return;
  FloatRows kv = math_.Norm(
      math_.Project(w.attn.wkv, RowsOf(runs, entering, x, c_.hidden_size)),
      w.attn.kv_norm);
  Rope(l, runs, 1, c_.head_dim, /*inverse=*/false, &kv);
  math_.Show("window", l, runs, kv);

  const int64_t row_bytes = layout_.slots[slot].row_bytes;
  std::vector<uint8_t> records(CountRows(runs) *
                               static_cast<size_t>(row_bytes));
  math_.ops().EncodeRows({.format = RowFormat::kWindowFp8,
                          .x = kv.data(),
                          .n_rows = static_cast<int64_t>(CountRows(runs)),
                          .dim = c_.head_dim,
                          .x_stride = c_.head_dim,
                          .out = records.data(),
                          .out_stride = row_bytes});
  const uint8_t* from = records.data();
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i, from += row_bytes) {
      uint8_t* to = CacheOf(batch, run.segment)->Put(slot, run.position + i);
      std::memcpy(to, from, static_cast<size_t>(row_bytes));
      if (math_.tap() != nullptr) {
        math_.tap()->OnRecord(slot, run.position + i,
                              {to, static_cast<size_t>(row_bytes)});
      }
    }
  }
}

void AttentionSite::WriteEntries(uint32_t l, const CompressorWeights& w,
                                 const RowBatch& batch,
                                 std::span<const RowRun> entering,
                                 std::span<const float> x) {
  std::vector<Group> groups;
  const FloatRows pooled = PoolGroups(l, w, batch, entering, x, &groups);
  if (groups.empty()) return;
  std::vector<RowRun> closing;
  for (const Group& group : groups) closing.push_back(group.closing);
  const int64_t ratio = layer(l).ratio;

  FloatRows latent = math_.Norm(math_.Round(pooled), w.norm);
  math_.Show("latent", l, closing, latent);
  FloatRows key = math_.Norm(math_.Project(w.wk, latent), w.k_norm);
  FloatRows main = std::move(latent);
  RopeGroups(ratio, groups, c_.head_dim, &main);
  math_.Show("main", l, closing, main);
  StoreGroups(slots_[l].main, RowFormat::kMainFp4, c_.head_dim, batch, groups,
              main);
  RopeGroups(ratio, groups, c_.index_dim, &key);
  math_.Show("index", l, closing, key);
  StoreGroups(slots_[l].index, RowFormat::kIndexFp4, c_.index_dim, batch,
              groups, key);
}

FloatRows AttentionSite::PoolGroups(uint32_t l, const CompressorWeights& w,
                                    const RowBatch& batch,
                                    std::span<const RowRun> entering,
                                    std::span<const float> x,
                                    std::vector<Group>* groups) {
  const auto dim = static_cast<size_t>(c_.head_dim);
  const auto ratio = static_cast<uint64_t>(layer(l).ratio);
  std::vector<uint64_t> first(batch.n_segments(),
                              std::numeric_limits<uint64_t>::max());
  for (const RowRun& run : batch.Written(Index(slots_[l].main))) {
    first[run.segment] = run.position;
  }
  const bool pools = w.gate.has_value();
  const std::vector<RowRun> runs =
      batch.Written(Index(pools ? slots_[l].open : slots_[l].main));
  const FloatRows own = RowsOf(runs, entering, x, c_.hidden_size);
  const FloatRows a = math_.Multiply(w.wkv, own);
  if (!pools) {
    for (const RowRun& run : OneByOne(runs)) {
      groups->push_back({run.segment, run.position, run});
    }
    return a;
  }

  const FloatRows z = math_.Multiply(*w.gate, own);
  const uint32_t open = Index(slots_[l].open);
  FloatRows pooled;
  size_t at = 0;
  for (const RowRun& run : OneByOne(runs)) {
    RecordCache* cache = CacheOf(batch, run.segment);
    uint8_t* row = cache->Put(open, run.position);
    std::memcpy(row, &a[at * dim], dim * sizeof(float));
    std::memcpy(row + dim * sizeof(float), &z[at * dim], dim * sizeof(float));
    ++at;
    if ((run.position + 1) % ratio != 0 || run.position < first[run.segment]) {
      continue;
    }
    const uint64_t group = run.position / ratio;
    groups->push_back({run.segment, group, run});
    std::vector<const uint8_t*> members;
    for (uint64_t t = 0; t < ratio; ++t) {
      members.push_back(cache->Row(open, group * ratio + t));
    }
    pooled.resize(pooled.size() + dim);
    PoolMembers(members, dim, pooled.data() + pooled.size() - dim);
  }
  return pooled;
}

void AttentionSite::StoreGroups(int64_t slot, RowFormat format, int64_t dim,
                                const RowBatch& batch,
                                std::span<const Group> groups,
                                std::span<const float> rows) {
  const size_t row_bytes = layout_.slots[Index(slot)].row_bytes;
  const float* from = rows.data();
  for (const Group& group : groups) {
    uint8_t* to = CacheOf(batch, group.segment)->Put(Index(slot), group.index);
    math_.ops().EncodeRows({.format = format,
                            .x = from,
                            .n_rows = 1,
                            .dim = dim,
                            .x_stride = dim,
                            .out = to,
                            .out_stride = static_cast<int64_t>(row_bytes)});
    from += dim;
    if (math_.tap() != nullptr) {
      math_.tap()->OnRecord(Index(slot), group.index, {to, row_bytes});
    }
  }
}

// ---- what it chooses -------------------------------------------------------

void AttentionSite::Choose(uint32_t l, const IndexerWeights& w,
                           const RowBatch& batch, std::span<const RowRun> runs,
                           std::span<const float> x,
                           std::span<const float> q_r) {
  const uint64_t n_rows = CountRows(runs);
  FloatRows q = math_.Project(w.wq_b, q_r);
  Rope(l, runs, c_.index_heads, c_.index_dim, /*inverse=*/false, &q);
  QuantiseQueries(&q);
  math_.Show("index_q", l, runs, q);
  FloatRows weights = math_.Project(w.weights_proj, x);
  const auto factor =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.index_heads)));
  for (float& v : weights) v *= factor;
  math_.Show("index_weights", l, runs, weights);

  const LayerConfig& config = layer(l);
  const uint32_t slot = Index(slots_[Index(config.kv_source)].index);
  const std::vector<RowRun> rows = OneByOne(runs);
  FloatRows scores;
  for (uint64_t at = 0; at < n_rows;) {
    // Rows of one sequence: they share their keys.
    uint64_t end = at;
    std::vector<int64_t> visible;
    while (end < n_rows && end - at < kScoreRows &&
           rows[end].segment == rows[at].segment) {
      visible.push_back(static_cast<int64_t>(rows[end].position + 1) /
                        config.ratio);
      ++end;
    }
    const int64_t stride = visible.back();
    scores.resize((end - at) * static_cast<size_t>(stride));
    const int64_t row_dim = c_.index_heads * c_.index_dim;
    math_.ops().IndexScore(
        {.n_rows = static_cast<int64_t>(end - at),
         .n_heads = c_.index_heads,
         .dim = c_.index_dim,
         .scale = static_cast<float>(
             1.0 / std::sqrt(static_cast<double>(c_.index_dim))),
         .q = q.data() + static_cast<int64_t>(at) * row_dim,
         .weights = weights.data() + static_cast<int64_t>(at) * c_.index_heads,
         .pages = CacheOf(batch, rows[at].segment)->Pages(slot),
         .page_rows = RecordCache::kPageRows,
         .n_visible = visible.data(),
         .scores = scores.data(),
         .scores_stride = stride});
    for (uint64_t i = at; i < end; ++i) {
      ChooseForRow(
          l, rows[i],
          std::span(scores).subspan((i - at) * static_cast<size_t>(stride),
                                    static_cast<size_t>(visible[i - at])));
    }
    at = end;
  }
}

void AttentionSite::QuantiseQueries(FloatRows* q) {
  const auto n_rows = static_cast<int64_t>(q->size()) / c_.index_dim;
  const int64_t row_bytes =
      kernels::RowBytes(RowFormat::kIndexFp4, c_.index_dim, 0);
  std::vector<uint8_t> codes(static_cast<size_t>(n_rows * row_bytes));
  math_.ops().EncodeRows({.format = RowFormat::kIndexFp4,
                          .x = q->data(),
                          .n_rows = n_rows,
                          .dim = c_.index_dim,
                          .x_stride = c_.index_dim,
                          .out = codes.data(),
                          .out_stride = row_bytes});
  math_.ops().DecodeRows({.format = RowFormat::kIndexFp4,
                          .in = codes.data(),
                          .n_rows = n_rows,
                          .dim = c_.index_dim,
                          .in_stride = row_bytes,
                          .out = q->data(),
                          .out_stride = c_.index_dim});
}

void AttentionSite::ChooseForRow(uint32_t l, const RowRun& row,
                                 std::span<float> scores) {
  Tap* const tap = math_.tap();
  if (l == c_.candidate_source) {
    blocks_[row.row] =
        CandidateBlocks(scores, c_.candidate_block_size, c_.candidate_blocks);
    if (tap != nullptr) {
      tap->OnChoice("candidate_blocks", l, row.position, &blocks_[row.row]);
    }
  }
  if (layer(l).uses_candidates) {
    KeepBlocks(blocks_[row.row], c_.candidate_block_size, scores);
  }
  picks_[row.row] = TopK(scores, c_.index_topk);
  if (tap != nullptr) {
    tap->OnChoice("picks", l, row.position, &picks_[row.row]);
  }
}

// ---- what it reads ---------------------------------------------------------

FloatRows AttentionSite::Attend(uint32_t l, const AttentionWeights& w,
                                const RowBatch& batch,
                                std::span<const RowRun> runs, FloatRows q) {
  const LayerConfig& config = layer(l);
  const uint32_t window = Index(slots_[l].window);
  // Every row's lists of keys, in one piece of memory.
  std::vector<const uint8_t*> pointers;
  std::vector<kernels::LatentKeys> keys;
  for (const RowRun& run : runs) {
    const RecordCache* cache = CacheOf(batch, run.segment);
    const std::vector<kernels::KeyRange> ranges =
        batch.Keys(run, l, static_cast<uint64_t>(c_.window));
    for (uint64_t i = 0; i < run.n; ++i) {
      for (int64_t pos = ranges[i].begin; pos < ranges[i].end; ++pos) {
        pointers.push_back(cache->Row(window, static_cast<uint64_t>(pos)));
      }
      keys.push_back({.n_window = ranges[i].end - ranges[i].begin});
      if (config.kv_source < 0) continue;
      const uint32_t main = Index(slots_[Index(config.kv_source)].main);
      for (const int32_t pick : picks_[run.row + i]) {
        pointers.push_back(cache->Row(main, static_cast<uint64_t>(pick)));
      }
      keys.back().n_entries = static_cast<int64_t>(picks_[run.row + i].size());
    }
  }
  const uint8_t* const* at = pointers.data();
  for (kernels::LatentKeys& of_row : keys) {
    of_row.window = at;
    of_row.entries = at + of_row.n_window;
    at += of_row.n_window + of_row.n_entries;
  }
  math_.ops().LatentAttention(
      {.n_rows = static_cast<int64_t>(keys.size()),
       .n_heads = c_.n_heads,
       .head_dim = c_.head_dim,
       .scale = static_cast<float>(1.0 /
                                   std::sqrt(static_cast<double>(c_.head_dim))),
       .sinks = w.sinks.data(),
       .bf16_numerators = math_.is_bf16(),
       .q = q.data(),
       .keys = keys.data(),
       .out = q.data()});
  return math_.Round(std::move(q));
}

FloatRows AttentionSite::ProjectOut(const AttentionWeights& w,
                                    std::span<const float> o) {
  const auto groups = static_cast<size_t>(c_.o_groups);
  const auto in = static_cast<size_t>(c_.n_heads * c_.head_dim) / groups;
  const auto rank = static_cast<size_t>(c_.o_rank);
  const size_t n_rows = o.size() / (groups * in);
  FloatRows low(n_rows * groups * rank);
  FloatRows of_group(n_rows * in);
  for (size_t g = 0; g < groups; ++g) {
    for (size_t row = 0; row < n_rows; ++row) {
      std::copy_n(&o[(row * groups + g) * in], in, &of_group[row * in]);
    }
    const FloatRows part = math_.Project(w.wo_a[g], of_group);
    for (size_t row = 0; row < n_rows; ++row) {
      std::copy_n(&part[row * rank], rank, &low[(row * groups + g) * rank]);
    }
  }
  return math_.Project(w.wo_b, low);
}

// ---- rope ------------------------------------------------------------------

void AttentionSite::Rope(uint32_t l, std::span<const RowRun> runs,
                         int64_t n_heads, int64_t dim, bool inverse,
                         FloatRows* x) {
  const std::vector<float>& tables =
      layer(l).ratio == 0 ? main_tables_ : compress_tables_;
  float* at = x->data();
  for (const RowRun& run : runs) {
    const auto rows = static_cast<int64_t>(run.n);
    math_.ops().RopeTail(
        {.x = at,
         .n_rows = rows,
         .n_heads = n_heads,
         .head_dim = dim,
         .rope_dim = c_.rope_dim,
         .tables = tables.data() + static_cast<int64_t>(run.row) * c_.rope_dim,
         .inverse = inverse});
    at += rows * n_heads * dim;
  }
  *x = math_.Round(std::move(*x));
}

void AttentionSite::RopeGroups(int64_t ratio, std::span<const Group> groups,
                               int64_t dim, FloatRows* x) {
  std::vector<float> tables(groups.size() * static_cast<size_t>(c_.rope_dim));
  for (size_t i = 0; i < groups.size(); ++i) {
    kernels::RopeTable(compress_inv_freq_,
                       groups[i].index * static_cast<uint64_t>(ratio),
                       &tables[i * static_cast<size_t>(c_.rope_dim)]);
  }
  math_.ops().RopeTail({.x = x->data(),
                        .n_rows = static_cast<int64_t>(groups.size()),
                        .n_heads = 1,
                        .head_dim = dim,
                        .rope_dim = c_.rope_dim,
                        .tables = tables.data()});
  *x = math_.Round(std::move(*x));
}

}  // namespace torpor::replay::deepseek_v41
