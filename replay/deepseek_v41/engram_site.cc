// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/engram_site.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/weight_codec.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::deepseek_v41 {
namespace {

constexpr int64_t kScaleColumns = 32;

void ReadTableRow(const EngramWeights& w, int64_t row, std::span<float> out,
                  kernels::CpuOps* ops) {
  if (w.table.dtype != "F8_E4M3") {
    ReadRow(w.table, static_cast<uint64_t>(row), out);
    return;
  }
  const auto dim = static_cast<int64_t>(out.size());
  ops->DecodeWeights({.format = kernels::WeightFormat::kFp8,
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

FloatRows Lookup(const Config& c, size_t table, const EngramIndex& index,
                 const EngramWeights& w, const RowBatch& batch,
                 std::span<const RowRun> runs, kernels::CpuOps* ops) {
  const auto dim = static_cast<size_t>(c.engram.head_dim);
  std::vector<int64_t> rows(static_cast<size_t>(c.engram.n_rows()));
  FloatRows e(CountRows(runs) * rows.size() * dim);
  auto to = std::span(e);
  for (const RowRun& run : runs) {
    for (uint64_t i = 0; i < run.n; ++i) {
      const std::vector<uint32_t> ids = IdsUpTo(
          batch.segment(run.segment), run.position + i, index.lookback());
      index.RowsOf(table, ids, rows);
      for (const int64_t row : rows) {
        ReadTableRow(w, row, to.first(dim), ops);
        to = to.subspan(dim);
      }
    }
  }
  return e;
}

// In sixteen partial sums, folded in order: the same on every path.
template <typename Term>
float SumOf(size_t n, const Term& term) {
  float partial[16] = {};
  for (size_t i = 0; i < n; ++i) partial[i % 16] += term(i);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) partial[i] += partial[i + half];
  }
  return partial[0];
}

float Gate(std::span<const float> x, std::span<const float> qk,
           std::span<const float> key, float eps) {
  const size_t n = x.size();
  const auto count = static_cast<float>(n);
  const float dot = SumOf(n, [&](size_t i) { return x[i] * qk[i] * key[i]; });
  const float of_x = SumOf(n, [&](size_t i) { return x[i] * x[i]; });
  const float of_key = SumOf(n, [&](size_t i) { return key[i] * key[i]; });
  const float t = dot / std::sqrt(of_x / count + eps) /
                  std::sqrt(of_key / count + eps) / std::sqrt(count);
  // A NaN stays one.
  const float size = std::fabs(t) < 1e-6f ? 1e-6f : std::fabs(t);
  const float root = std::copysign(std::sqrt(size), t);
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(root))));
}

}  // namespace

void AddEngram(const Config& c, size_t table, const EngramIndex& index,
               const EngramWeights& w, const RowBatch& batch,
               std::span<const RowRun> runs, FloatRows* x, RowMath* math) {
  const auto hidden = static_cast<size_t>(c.hidden_size);
  const auto streams = static_cast<size_t>(c.n_streams);
  const FloatRows kv = math->Project(
      w.wkv, Lookup(c, table, index, w, batch, runs, &math->ops()));
  const size_t kv_row = (streams + 1) * hidden;
  const auto part = [&](std::span<const float> of, size_t i) {
    return of.subspan(i * hidden, hidden);
  };
  for (size_t row = 0; row < kv.size() / kv_row; ++row) {
    const auto of_row =
        std::span<const float>(kv).subspan(row * kv_row, kv_row);
    const std::span<const float> value = part(of_row, streams);
    for (size_t j = 0; j < streams; ++j) {
      const auto stream =
          std::span(*x).subspan((row * streams + j) * hidden, hidden);
      const float gate = Gate(stream, part(w.qk, j), part(of_row, j),
                              static_cast<float>(c.norm_eps));
      for (size_t i = 0; i < hidden; ++i) stream[i] += gate * value[i];
    }
  }
  *x = math->Round(std::move(*x));
}

}  // namespace torpor::replay::deepseek_v41
