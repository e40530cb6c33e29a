// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/picks.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/row_codec.h"
#include "replay/record_cache.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::RowFormat;

// Rows whose scores stand in memory at a time.
constexpr uint64_t kScoreRows = 16;
// Lists and scores grow by so many.
constexpr uint64_t kStep = 1024;

const uint8_t* const* PagesOf(const RowBatch& batch, size_t segment,
                              uint32_t slot) {
  return static_cast<const RecordCache*>(batch.segment(segment).sequence)
      ->Pages(slot)
      .pages;
}

}  // namespace

Picks::Picks(const Config& config, RowMath* math)
    : c_(config),
      math_(*math),
      best_(&math->ops()),
      blocks_(&math->ops()),
      scores_(&math->ops()),
      codes_(&math->ops()) {}

void Picks::Begin(const RowBatch& batch) {
  // No more than there is to choose from, in steps: a decode step would make
  // the lists grow each time.
  uint64_t furthest = 1;
  for (size_t i = 0; i < batch.n_segments(); ++i) {
    const RowRun run = batch.All(i);
    furthest = std::max(furthest, run.position + run.n);
  }
  const uint64_t there = (furthest + kStep - 1) / kStep * kStep;
  const auto at_most = [&](int64_t configured) {
    return std::clamp<uint64_t>(static_cast<uint64_t>(configured), 1, there);
  };
  best_.stride = at_most(c_.index_topk);
  blocks_.stride = at_most(c_.candidate_blocks);
  const uint64_t n_rows = batch.n_rows();
  const std::vector<int32_t> zeros(n_rows, 0);
  for (Choices* choices : {&best_, &blocks_}) {
    choices->ids.Resize(n_rows * choices->stride);
    choices->n.Resize(n_rows);
    math_.ops().Upload(choices->n.data(), zeros.data(),
                       n_rows * sizeof(int32_t));
  }
}

void Picks::Choose(uint32_t l, uint32_t slot, const RowBatch& batch,
                   std::span<const RowRun> runs, FloatRows q,
                   FloatRows weights) {
  QuantiseQueries(&q);
  math_.Show("index_q", l, runs, &q);
  math_.ops().Scale(
      {.x = weights.data(),
       .n = weights.size(),
       .factor = static_cast<float>(
           1.0 / std::sqrt(static_cast<double>(c_.index_heads)))});
  math_.Show("index_weights", l, runs, &weights);
  const int64_t ratio = c_.layers[l].ratio;
  uint64_t at = 0;
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; i += kScoreRows) {
      const uint64_t n = std::min(kScoreRows, run.n - i);
      std::vector<int64_t> visible;
      for (uint64_t pos = run.position + i; pos < run.position + i + n; ++pos) {
        visible.push_back(static_cast<int64_t>(pos + 1) / ratio);
      }
      const int64_t stride = visible.back();
      ReserveScores(stride);
      math_.ops().IndexScore(
          {.n_rows = static_cast<int64_t>(n),
           .n_heads = c_.index_heads,
           .dim = c_.index_dim,
           .scale = static_cast<float>(
               1.0 / std::sqrt(static_cast<double>(c_.index_dim))),
           .q = q.row(at),
           .weights = weights.row(at),
           .pages = PagesOf(batch, run.segment, slot),
           .page_rows = RecordCache::kPageRows,
           .n_visible = visible.data(),
           .scores = scores_.data(),
           .scores_stride = stride});
      ChooseByScores(l, {run.segment, run.row + i, run.position + i, n},
                     visible, stride);
      at += n;
    }
  }
}

void Picks::QuantiseQueries(FloatRows* q) {
  const int64_t n_rows = q->size() / c_.index_dim;
  const int64_t row_bytes =
      kernels::RowBytes(RowFormat::kIndexFp4, c_.index_dim, 0);
  codes_.Resize(static_cast<size_t>(n_rows * row_bytes));
  math_.ops().EncodeRows({.format = RowFormat::kIndexFp4,
                          .x = q->data(),
                          .n_rows = n_rows,
                          .dim = c_.index_dim,
                          .x_stride = c_.index_dim,
                          .out = codes_.data(),
                          .out_stride = row_bytes});
  math_.ops().DecodeRows({.format = RowFormat::kIndexFp4,
                          .in = codes_.data(),
                          .n_rows = n_rows,
                          .dim = c_.index_dim,
                          .in_stride = row_bytes,
                          .out = q->data(),
                          .out_stride = c_.index_dim});
}

void Picks::ReserveScores(int64_t stride) {
  const auto steps = (static_cast<uint64_t>(stride) + kStep - 1) / kStep;
  scores_.Resize(kScoreRows * std::max<uint64_t>(1, steps) * kStep);
}

void Picks::ChooseByScores(uint32_t l, const RowRun& run,
                           std::span<const int64_t> visible, int64_t stride) {
  const auto n_rows = static_cast<int64_t>(run.n);
  if (l == c_.candidate_source) {
    math_.ops().CandidateBlocks(
        {.scores = scores_.data(),
         .n_rows = n_rows,
         .scores_stride = stride,
         .n_scores = visible.data(),
         .block_size = c_.candidate_block_size,
         .n_blocks = static_cast<int64_t>(blocks_.stride),
         .blocks = blocks_.IdsOf(run.row),
         .n_chosen = blocks_.CountsOf(run.row)});
    ShowChoices("candidate_blocks", l, run, &blocks_);
  }
  if (c_.layers[l].uses_candidates) {
    math_.ops().KeepBlocks({.scores = scores_.data(),
                            .n_rows = n_rows,
                            .scores_stride = stride,
                            .n_scores = visible.data(),
                            .block_size = c_.candidate_block_size,
                            .blocks = blocks_.IdsOf(run.row),
                            .n_blocks = static_cast<int64_t>(blocks_.stride),
                            .n_chosen = blocks_.CountsOf(run.row)});
  }
  math_.ops().TopK({.scores = scores_.data(),
                    .n_rows = n_rows,
                    .scores_stride = stride,
                    .n_scores = visible.data(),
                    .k = static_cast<int64_t>(best_.stride),
                    .ids = best_.IdsOf(run.row),
                    .n_ids = best_.CountsOf(run.row)});
  ShowChoices("picks", l, run, &best_);
}

void Picks::ShowChoices(std::string_view name, uint32_t l, const RowRun& run,
                        Choices* choices) {
  if (math_.tap() == nullptr) return;
  for (uint64_t i = 0; i < run.n; ++i) {
    int32_t n = 0;
    int32_t* const n_at = choices->CountsOf(run.row + i);
    int32_t* const ids_at = choices->IdsOf(run.row + i);
    math_.ops().Download(&n, n_at, sizeof(n));
    std::vector<int32_t> ids(static_cast<size_t>(n));
    math_.ops().Download(ids.data(), ids_at, ids.size() * sizeof(int32_t));
    math_.tap()->OnChoice(name, l, run.position + i, &ids);
    assert(ids.size() <= choices->stride);
    n = static_cast<int32_t>(ids.size());
    math_.ops().Upload(n_at, &n, sizeof(n));
    math_.ops().Upload(ids_at, ids.data(), ids.size() * sizeof(int32_t));
  }
}

}  // namespace torpor::replay::deepseek_v41
