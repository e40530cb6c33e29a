// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/rope.h"
#include "kernels/row_codec.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::RowFormat;

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
      compress_inv_freq_(CompressInvFreq(config)),
      picks_(config, math) {}

// Tables on the host: cos and sin in double, the same bits on every backend.
void AttentionSite::Begin(const RowBatch& batch) {
  const auto dim = static_cast<size_t>(c_.rope_dim);
  std::vector<float> main(batch.n_rows() * dim);
  std::vector<float> compress(main.size());
  for (size_t s = 0; s < batch.n_segments(); ++s) {
    const RowRun run = batch.All(s);
    for (uint64_t i = 0; i < run.n; ++i) {
      const size_t at = (run.row + i) * dim;
      kernels::RopeTable(main_inv_freq_, run.position + i, &main[at]);
      kernels::RopeTable(compress_inv_freq_, run.position + i, &compress[at]);
    }
  }
  main_tables_ = {};
  compress_tables_ = {};
  main_tables_ = math_.Upload(main, c_.rope_dim);
  compress_tables_ = math_.Upload(compress, c_.rope_dim);
  picks_.Begin(batch);
}

FloatRows AttentionSite::Run(uint32_t l, const LayerWeights& w,
                             const RowBatch& batch, const FloatRows& x) {
  const std::vector<RowRun> entering = batch.Entering(l);
  WriteWindow(l, w, batch, entering, x);
  if (w.compressor) WriteEntries(l, *w.compressor, batch, entering, x);
  const std::vector<RowRun> runs = batch.Running(l);
  if (runs.empty()) return {};

  const FloatRows own = math_.Gather(BlocksIn(runs, entering), x);
  const FloatRows q_r =
      math_.Norm(math_.Project(w.attn.wq_a, own), w.attn.q_norm);
  FloatRows q = math_.Project(w.attn.wq_b, q_r);
  Rope(l, runs, c_.n_heads, /*inverse=*/false, &q);
  math_.Show("q", l, runs, &q);
  if (w.indexer) Choose(l, *w.indexer, batch, runs, own, q_r);

  FloatRows o = Attend(l, w.attn, batch, runs, std::move(q));
  math_.Show("attn_o", l, runs, &o);
  Rope(l, runs, c_.n_heads, /*inverse=*/true, &o);
  FloatRows y = ProjectOut(w.attn, o);
  math_.Show("attn_y", l, runs, &y);
  return y;
}

// ---- what the layer writes -------------------------------------------------

void AttentionSite::WriteWindow(uint32_t l, const LayerWeights& w,
                                const RowBatch& batch,
                                std::span<const RowRun> entering,
                                const FloatRows& x) {
  const uint32_t slot = Index(slots_[l].window);
  const std::vector<RowRun> runs = batch.Written(slot);
  if (runs.empty()) return;
  const FloatRows own = math_.Gather(BlocksIn(runs, entering), x);
  FloatRows kv = math_.Norm(math_.Project(w.attn.wkv, own), w.attn.kv_norm);
  Rope(l, runs, 1, /*inverse=*/false, &kv);
  math_.Show("window", l, runs, &kv);

  std::vector<Record> to;
  for (const RowRun& run : runs) {
    RecordCache* cache = CacheOf(batch, run.segment);
    for (uint64_t pos = run.position; pos < run.position + run.n; ++pos) {
      to.push_back({pos, cache->Put(slot, pos)});
    }
  }
  Encode(slot, RowFormat::kWindowFp8, kv, to);
}

void AttentionSite::WriteEntries(uint32_t l, const CompressorWeights& w,
                                 const RowBatch& batch,
                                 std::span<const RowRun> entering,
                                 const FloatRows& x) {
  std::vector<Group> groups;
  FloatRows pooled = FindGroups(l, w, batch, entering, x, &groups);
  if (groups.empty()) return;
  std::vector<RowRun> closing;
  closing.reserve(groups.size());
  for (const Group& group : groups) closing.push_back(group.closing);
  const int64_t ratio = layer(l).ratio;

  FloatRows latent = math_.Norm(math_.Round(std::move(pooled)), w.norm);
  math_.Show("latent", l, closing, &latent);
  FloatRows key = math_.Norm(math_.Project(w.wk, latent), w.k_norm);
  FloatRows main = std::move(latent);
  RopeGroups(ratio, groups, &main);
  math_.Show("main", l, closing, &main);
  StoreGroups(slots_[l].main, RowFormat::kMainFp4, batch, groups, main);
  RopeGroups(ratio, groups, &key);
  math_.Show("index", l, closing, &key);
  StoreGroups(slots_[l].index, RowFormat::kIndexFp4, batch, groups, key);
}

FloatRows AttentionSite::FindGroups(uint32_t l, const CompressorWeights& w,
                                    const RowBatch& batch,
                                    std::span<const RowRun> entering,
                                    const FloatRows& x,
                                    std::vector<Group>* groups) {
  const bool pools = w.gate.has_value();
  const std::vector<RowRun> runs =
      batch.Written(Index(pools ? slots_[l].open : slots_[l].main));
  if (runs.empty()) return {};
  const FloatRows own = math_.Gather(BlocksIn(runs, entering), x);
  FloatRows values = math_.Multiply(w.wkv, own);
  if (!pools) {
    for (const RowRun& run : OneByOne(runs)) {
      groups->push_back({run.segment, run.position, run});
    }
    return values;
  }
  const FloatRows gates = math_.Multiply(*w.gate, own);
  FloatRows members = math_.New(own.n_rows(), 2 * c_.head_dim);
  math_.SetColumns(0, values, &members);
  math_.SetColumns(c_.head_dim, gates, &members);
  FloatRows pooled = PoolGroups(l, batch, runs, members, groups);
  StoreMembers(Index(slots_[l].open), batch, runs, members);
  return pooled;
}

FloatRows AttentionSite::PoolGroups(uint32_t l, const RowBatch& batch,
                                    std::span<const RowRun> runs,
                                    const FloatRows& members,
                                    std::vector<Group>* groups) {
  const auto ratio = static_cast<uint64_t>(layer(l).ratio);
  const uint32_t open = Index(slots_[l].open);
  std::vector<uint64_t> first(batch.n_segments(),
                              std::numeric_limits<uint64_t>::max());
  for (const RowRun& run : batch.Written(Index(slots_[l].main))) {
    first[run.segment] = run.position;
  }
  std::vector<const uint8_t*> of_groups;
  uint64_t begin = 0;
  for (const RowRun& run : runs) {
    const RecordCache* cache = CacheOf(batch, run.segment);
    for (const RowRun& row : OneByOne(std::span(&run, 1))) {
      if ((row.position + 1) % ratio != 0 ||
          row.position < first[row.segment]) {
        continue;
      }
      groups->push_back({row.segment, row.position / ratio, row});
      for (uint64_t t = row.position + 1 - ratio; t <= row.position; ++t) {
        // Those before this batch stand in the open group's ring.
        of_groups.push_back(t < run.position
                                ? cache->Row(open, t)
                                : reinterpret_cast<const uint8_t*>(
                                      members.row(begin + (t - run.position))));
      }
    }
    begin += run.n;
  }
  FloatRows pooled = math_.New(groups->size(), c_.head_dim);
  math_.ops().PoolMembers({.members = of_groups.data(),
                           .n_groups = static_cast<int64_t>(groups->size()),
                           .n_members = static_cast<int64_t>(ratio),
                           .dim = c_.head_dim,
                           .out = pooled.data()});
  return pooled;
}

// The last rows of each run: the ring holds no more.
void AttentionSite::StoreMembers(uint32_t slot, const RowBatch& batch,
                                 std::span<const RowRun> runs,
                                 const FloatRows& members) {
  uint64_t begin = 0;
  for (const RowRun& run : runs) {
    RecordCache* cache = CacheOf(batch, run.segment);
    const auto ring = static_cast<uint64_t>(cache->Pages(slot).ring_rows);
    const uint64_t n = std::min(run.n, ring);
    std::vector<uint8_t*> to;
    for (uint64_t i = run.n - n; i < run.n; ++i) {
      to.push_back(cache->Put(slot, run.position + i));
    }
    math_.ops().ScatterRows({.x = members.row(begin + run.n - n),
                             .x_stride = members.dim(),
                             .n_rows = static_cast<int64_t>(n),
                             .dim = members.dim(),
                             .out = to.data()});
    begin += run.n;
  }
}

void AttentionSite::StoreGroups(int64_t slot, RowFormat format,
                                const RowBatch& batch,
                                std::span<const Group> groups,
                                const FloatRows& rows) {
  std::vector<Record> to;
  for (const Group& group : groups) {
    RecordCache* cache = CacheOf(batch, group.segment);
    to.push_back({group.index, cache->Put(Index(slot), group.index)});
  }
  Encode(Index(slot), format, rows, to);
}

void AttentionSite::Encode(uint32_t slot, RowFormat format,
                           const FloatRows& rows, std::span<const Record> to) {
  std::vector<uint8_t*> at;
  for (const Record& record : to) at.push_back(record.at);
  math_.ops().EncodeRows({.format = format,
                          .x = rows.data(),
                          .n_rows = static_cast<int64_t>(rows.n_rows()),
                          .dim = rows.dim(),
                          .x_stride = rows.dim(),
                          .rows = at.data()});
  if (math_.tap() == nullptr) return;
  std::vector<uint8_t> bytes(layout_.slots[slot].row_bytes);
  for (const Record& record : to) {
    math_.ops().Download(bytes.data(), record.at, bytes.size());
    math_.tap()->OnRecord(slot, record.row, bytes);
    math_.ops().Upload(record.at, bytes.data(), bytes.size());
  }
}

// ---- what it chooses -------------------------------------------------------

void AttentionSite::Choose(uint32_t l, const IndexerWeights& w,
                           const RowBatch& batch, std::span<const RowRun> runs,
                           const FloatRows& x, const FloatRows& q_r) {
  FloatRows q = math_.Project(w.wq_b, q_r);
  Rope(l, runs, c_.index_heads, /*inverse=*/false, &q);
  FloatRows weights = math_.Project(w.weights_proj, x);
  const LayerConfig& config = layer(l);
  const uint32_t slot = Index(slots_[Index(config.kv_source)].index);
  picks_.Choose(l, slot, batch, runs, std::move(q), std::move(weights));
}

// ---- what it reads ---------------------------------------------------------

FloatRows AttentionSite::Attend(uint32_t l, const AttentionWeights& w,
                                const RowBatch& batch,
                                std::span<const RowRun> runs, FloatRows q) {
  const LayerConfig& config = layer(l);
  std::vector<std::vector<kernels::KeyRange>> windows;
  std::vector<kernels::LatentSegment> segments;
  windows.reserve(runs.size());
  int64_t at = 0;
  for (const RowRun& run : runs) {
    const RecordCache* cache = CacheOf(batch, run.segment);
    windows.push_back(batch.Keys(run, l, static_cast<uint64_t>(c_.window)));
    segments.push_back({.row_begin = at,
                        .n_rows = static_cast<int64_t>(run.n),
                        .window = cache->Pages(Index(slots_[l].window)),
                        .window_keys = windows.back().data()});
    at += static_cast<int64_t>(run.n);
    if (config.kv_source < 0) continue;
    kernels::LatentSegment& segment = segments.back();
    segment.entries = cache->Pages(Index(slots_[Index(config.kv_source)].main));
    segment.picks = picks_.IdsOf(run.row);
    segment.n_picks = picks_.CountsOf(run.row);
    segment.picks_stride = picks_.stride();
  }
  math_.ops().LatentAttention(
      {.attention = {.n_rows = at,
                     .n_heads = c_.n_heads,
                     .head_dim = c_.head_dim,
                     .scale = static_cast<float>(
                         1.0 / std::sqrt(static_cast<double>(c_.head_dim))),
                     .sinks = w.sinks.data(),
                     .bf16_numerators = math_.is_bf16(),
                     .q = q.data(),
                     .out = q.data()},
       .segments = segments.data(),
       .n_segments = static_cast<int64_t>(segments.size())});
  return math_.Round(std::move(q));
}

// Each group of heads through a layer of its own, then all of them together.
FloatRows AttentionSite::ProjectOut(const AttentionWeights& w,
                                    const FloatRows& o) {
  const int64_t in = o.dim() / c_.o_groups;
  FloatRows low = math_.New(o.n_rows(), c_.o_groups * c_.o_rank);
  FloatRows of_group = math_.New(o.n_rows(), in);
  for (int64_t g = 0; g < c_.o_groups; ++g) {
    math_.ops().CopyRows({.x = o.data() + g * in,
                          .x_stride = o.dim(),
                          .n_rows = static_cast<int64_t>(o.n_rows()),
                          .dim = in,
                          .out = of_group.data(),
                          .out_stride = in});
    const FloatRows part =
        math_.Project(w.wo_a[static_cast<size_t>(g)], of_group);
    math_.SetColumns(g * c_.o_rank, part, &low);
  }
  return math_.Project(w.wo_b, low);
}

// ---- rope ------------------------------------------------------------------

void AttentionSite::Rope(uint32_t l, std::span<const RowRun> runs,
                         int64_t n_heads, bool inverse, FloatRows* x) {
  const FloatRows& tables =
      layer(l).ratio == 0 ? main_tables_ : compress_tables_;
  RopeBy(math_.Gather(BlocksOf(runs), tables), n_heads, inverse, x);
}

void AttentionSite::RopeGroups(int64_t ratio, std::span<const Group> groups,
                               FloatRows* x) {
  std::vector<float> tables(groups.size() * static_cast<size_t>(c_.rope_dim));
  for (size_t i = 0; i < groups.size(); ++i) {
    kernels::RopeTable(compress_inv_freq_,
                       groups[i].index * static_cast<uint64_t>(ratio),
                       &tables[i * static_cast<size_t>(c_.rope_dim)]);
  }
  RopeBy(math_.Upload(tables, c_.rope_dim), 1, /*inverse=*/false, x);
}

void AttentionSite::RopeBy(const FloatRows& tables, int64_t n_heads,
                           bool inverse, FloatRows* x) {
  math_.ops().RopeTail({.x = x->data(),
                        .n_rows = static_cast<int64_t>(x->n_rows()),
                        .n_heads = n_heads,
                        .head_dim = x->dim() / n_heads,
                        .rope_dim = c_.rope_dim,
                        .tables = tables.data(),
                        .inverse = inverse});
  *x = math_.Round(std::move(*x));
}

}  // namespace torpor::replay::deepseek_v41
