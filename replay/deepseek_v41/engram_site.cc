// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/engram_site.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/weight_codec.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::deepseek_v41 {
namespace {

constexpr int64_t kScaleColumns = 32;

void ReadTableRow(const EngramWeights& w, int64_t row, std::span<float> out,
                  kernels::CpuOps* host) {
  if (w.table.dtype != "F8_E4M3") {
    ReadRow(w.table, static_cast<uint64_t>(row), out);
    return;
  }
  const auto dim = static_cast<int64_t>(out.size());
  host->DecodeWeights({.format = kernels::WeightFormat::kFp8,
                       .codes = w.table.bytes.data() + row * dim,
                       .codes_stride = dim,
                       .scales = w.scale.bytes.data() + row * w.scale.shape[1],
                       .scales_stride = w.scale.shape[1],
                       .block_columns = kScaleColumns,
                       .n_rows = 1,
                       .dim = dim,
                       .out = out.data(),
                       .out_stride = dim});
}

// The ids up to a row of a segment, as far back as the tables look.
std::vector<uint32_t> IdsUpTo(const Segment& segment, uint64_t position,
                              uint64_t lookback) {
  const uint64_t n = std::min(position, lookback) + 1;
  std::vector<uint32_t> ids;
  for (uint64_t back = n; back-- > 0;) {
    const uint64_t at = position - back;
    ids.push_back(
        at >= segment.begin
            ? segment.ids[at - segment.begin]
            : segment.history[segment.history.size() - (segment.begin - at)]);
  }
  return ids;
}

std::vector<float> Lookup(const Config& c, size_t table,
                          const EngramIndex& index, const EngramWeights& w,
                          const RowBatch& batch, std::span<const RowRun> runs,
                          kernels::CpuOps* host) {
  const auto dim = static_cast<size_t>(c.engram.head_dim);
  std::vector<int64_t> rows(static_cast<size_t>(c.engram.n_rows()));
  std::vector<float> e(CountRows(runs) * rows.size() * dim);
  auto to = std::span(e);
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i) {
      const std::vector<uint32_t> ids = IdsUpTo(
          batch.segment(run.segment), run.position + i, index.lookback());
      index.RowsOf(table, ids, rows);
      for (const int64_t row : rows) {
        ReadTableRow(w, row, to.first(dim), host);
        to = to.subspan(dim);
      }
    }
  }
  return e;
}

}  // namespace

void AddEngram(const Config& c, size_t table, const EngramIndex& index,
               const EngramWeights& w, const RowBatch& batch,
               std::span<const RowRun> runs, FloatRows* x, RowMath* math,
               kernels::CpuOps* host) {
  const FloatRows e =
      math->Upload(Lookup(c, table, index, w, batch, runs, host),
                   c.engram.n_rows() * c.engram.head_dim);
  const FloatRows kv = math->Project(w.wkv, e);
  math->ops().EngramGate({.x = x->data(),
                          .n_rows = static_cast<int64_t>(x->n_rows()),
                          .n_streams = c.n_streams,
                          .dim = c.hidden_size,
                          .kv = kv.data(),
                          .qk = w.qk.data(),
                          .eps = static_cast<float>(c.norm_eps)});
  *x = math->Round(std::move(*x));
}

}  // namespace torpor::replay::deepseek_v41
