// SPDX-License-Identifier: Apache-2.0

#include "replay/kv_model.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"
#include "kernels/rope.h"
#include "replay/tensor_loader.h"

namespace torpor::replay {

using kernels::DType;
using kernels::PackedMatrix;
using kernels::RowSink;

KvModel::KvModel(std::shared_ptr<kernels::Ops> ops, KvModelSpec spec,
                 ModelTensors tensors, OuterWeights outer,
                 std::string weights_digest)
    : own_ops_(std::move(ops)),
      ops_(*own_ops_),
      spec_(std::move(spec)),
      tensors_(std::move(tensors)),
      outer_(std::move(outer)),
      x_(&ops_),
      h_(&ops_),
      attended_(&ops_),
      kv_(&ops_),
      k_(&ops_),
      q_(&ops_),
      y_(&ops_),
      logits_(&ops_) {
  const char* const kv_dtype = DTypeName(spec_.shape.dtype);
  fingerprint_.weights = std::move(weights_digest);
  fingerprint_.layout = LayoutDigest(spec_.layout);
  fingerprint_.kv_dtype = kv_dtype;
  fingerprint_.rope = spec_.rope_name;
  numerics_id_ =
      absl::StrFormat("%s/%s/%s/kv-%s", ops_.name(), spec_.numerics_name,
                      DTypeName(outer_.dtype), kv_dtype);
  for (size_t i = 0; i < spec_.ropes.size(); ++i) tables_.emplace_back(&ops_);
  const auto all = static_cast<uint64_t>(spec_.max_positions);
  for (uint32_t l = 0; l < spec_.layout.n_layers; ++l) {
    const uint64_t window = spec_.layers[l].window;
    kv_layers_.push_back({.shape = spec_.shape,
                          .window = window >= all ? 0 : window,
                          .k_slot = 2 * l,
                          .v_slot = 2 * l + 1});
  }
}

uint64_t KvModel::SequenceBytes(uint64_t n_tokens) const {
  return KvCache::BytesFor(ops_, kv_layers_, kMaxRows, n_tokens);
}

int64_t KvModel::WorkFloats() const {
  const int64_t head_dim = spec_.shape.head_dim;
  return 3 * spec_.hidden_size + 2 * spec_.n_heads * head_dim +
         2 * spec_.shape.n_kv_heads * head_dim +
         static_cast<int64_t>(spec_.ropes.size()) * head_dim;
}

absl::Status KvModel::Settle() {
  const absl::Status status = ops_.Finish();
  return absl::IsUnavailable(status) ? status : absl::OkStatus();
}

std::unique_ptr<Sequence> KvModel::NewSequence() {
  return std::make_unique<KvCache>(&ops_, kv_layers_, kMaxRows);
}

absl::Status KvModel::Forward(std::span<const Segment> segments,
                              const ForwardOptions& options,
                              std::vector<std::vector<float>>* logits) {
  TORPOR_ASSIGN_OR_RETURN(RowBatch batch,
                          RowBatch::Make(segments, spec_.layout, kMaxRows));
  TORPOR_RETURN_IF_ERROR(Embed(segments, batch));
  for (size_t i = 0; i < tables_.size(); ++i) {
    FillTables(batch, spec_.ropes[i], &tables_[i]);
  }
  for (uint32_t l = 0; l < spec_.layout.n_layers; ++l) {
    if (options.cancelled && options.cancelled()) {
      return absl::CancelledError("forward: cancelled");
    }
    if (options.before_layer) {
      TORPOR_RETURN_IF_ERROR(options.before_layer(l));
    }
    if (options.on_layer_input) ShowInput(l, batch, options);
    RunLayer(l, batch);
  }
  Head(batch, logits);
  return ops_.Finish();
}

void KvModel::ShowInput(uint32_t l, const RowBatch& batch,
                        const ForwardOptions& options) {
  for (size_t s = 0; s < batch.n_segments(); ++s) {
    const RowRun run = batch.Input(l, s);
    std::vector<float> rows(run.n * static_cast<size_t>(spec_.hidden_size));
    const size_t bytes = rows.size() * sizeof(float);
    ops_.Download(rows.data(), X(run.row), bytes);
    options.on_layer_input(l, s, run.position, rows);
    ops_.Upload(X(run.row), rows.data(), bytes);
  }
}

absl::Status KvModel::Embed(std::span<const Segment> segments,
                            const RowBatch& batch) {
  const auto hidden = static_cast<size_t>(spec_.hidden_size);
  x_.Resize(batch.n_rows() * hidden);
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const RowRun run = batch.All(s);
    if (segment.inputs != nullptr) {
      ops_.Upload(X(run.row), segment.inputs, run.n * hidden * sizeof(float));
      continue;
    }
    for (uint64_t i = 0; i < run.n; ++i) {
      if (segment.ids[i] < vocab_size()) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "token at position %d: got id %d, the vocabulary has %d",
          run.position + i, segment.ids[i], vocab_size()));
    }
    ops_.EmbedRows({.table = outer_.embedding.get(),
                    .dtype = outer_.embedding_dtype,
                    .ids = segment.ids.data(),
                    .n_rows = static_cast<int64_t>(run.n),
                    .dim = spec_.hidden_size,
                    .scale = outer_.embedding_scale,
                    .out = X(run.row)});
  }
  return absl::OkStatus();
}

// On the host: cos and sin in double, the same bits on every backend.
void KvModel::FillTables(const RowBatch& batch, const KvRope& rope,
                         Floats* tables) {
  const auto dim = static_cast<size_t>(spec_.shape.head_dim);
  host_tables_.resize(batch.n_rows() * dim);
  for (size_t s = 0; s < batch.n_segments(); ++s) {
    const RowRun run = batch.All(s);
    for (uint64_t i = 0; i < run.n; ++i) {
      kernels::RopeTable(rope.inv_freq, run.position + i,
                         &host_tables_[(run.row + i) * dim]);
    }
  }
  for (float& v : host_tables_) v *= rope.scale;
  tables->Resize(host_tables_.size());
  ops_.Upload(tables->data(), host_tables_.data(),
              host_tables_.size() * sizeof(float));
}

Activations& KvModel::NormRows(std::span<const RowRun> runs,
                               const Floats& weight) {
  h_.Resize(CountRows(runs), spec_.hidden_size, dtype());
  uint64_t at = 0;
  for (const RowRun& run : runs) {
    ops_.RmsNorm({.x = X(run.row),
                  .n_rows = static_cast<int64_t>(run.n),
                  .dim = spec_.hidden_size,
                  .x_stride = spec_.hidden_size,
                  .weight = weight.data(),
                  .offset = spec_.norm_offset,
                  .eps = spec_.norm_eps,
                  .out = h_.Row(at),
                  .out_stride = spec_.hidden_size,
                  .sink = dtype() == DType::kBf16 ? RowSink::kStoreBf16
                                                  : RowSink::kStoreF32});
    at += run.n;
  }
  return h_;
}

void KvModel::Multiply(const void* a, uint64_t rows, const PackedMatrix& b,
                       const Floats* bias, Floats* c) {
  c->Resize(rows * static_cast<size_t>(b.n()));
  ops_.Gemm({.a = a,
             .n_rows = static_cast<int64_t>(rows),
             .b = &b,
             .bias = bias == nullptr || bias->empty() ? nullptr : bias->data(),
             .c = c->data()});
}

void KvModel::TurnHeads(uint32_t l, std::span<const RowRun> runs,
                        int64_t n_heads, const Floats& norm, float* x) {
  const int64_t head_dim = spec_.shape.head_dim;
  const Floats& tables = tables_[spec_.layers[l].rope];
  for (const RowRun& run : runs) {
    const auto rows = static_cast<int64_t>(run.n);
    if (!norm.empty()) {
      ops_.RmsNorm({.x = x,
                    .n_rows = rows * n_heads,
                    .dim = head_dim,
                    .x_stride = head_dim,
                    .weight = norm.data(),
                    .offset = spec_.norm_offset,
                    .eps = spec_.norm_eps,
                    .out = x,
                    .out_stride = head_dim,
                    .sink = RowSink::kStoreF32});
    }
    ops_.Rope({.x = x,
               .n_rows = rows,
               .n_heads = n_heads,
               .head_dim = head_dim,
               .tables = tables.data() + run.row * head_dim});
    x += rows * n_heads * head_dim;
  }
}

void KvModel::WriteKv(uint32_t l, const RowBatch& batch,
                      const AttentionWeights& w) {
  const std::vector<RowRun> runs = batch.Written(kv_layers_[l].k_slot);
  const int64_t row = spec_.shape.row_elements();
  const uint64_t total = CountRows(runs);
  Multiply(NormRows(runs, w.norm).data(), total, w.kv, &w.kv_bias, &kv_);
  // The GEMM gives K and V side by side; K alone is turned.
  k_.Resize(total * static_cast<size_t>(row));
  ops_.CopyRows({.x = kv_.data(),
                 .x_stride = 2 * row,
                 .n_rows = static_cast<int64_t>(total),
                 .dim = row,
                 .out = k_.data(),
                 .out_stride = row});
  TurnHeads(l, runs, spec_.shape.n_kv_heads, w.k_norm, k_.data());
  uint64_t at = 0;
  for (const RowRun& run : runs) {
    auto* cache = static_cast<KvCache*>(batch.segment(run.segment).sequence);
    cache->PutRows(l, run.position, run.n,
                   {.k = k_.data() + at * row,
                    .k_stride = row,
                    .v = kv_.data() + (2 * at + 1) * row,
                    .v_stride = 2 * row});
    at += run.n;
  }
}

const Floats& KvModel::Attend(uint32_t l, const RowBatch& batch,
                              std::span<const RowRun> runs,
                              const AttentionWeights& w) {
  const uint64_t total = CountRows(runs);
  Multiply(NormRows(runs, w.norm).data(), total, w.q, &w.q_bias, &q_);
  TurnHeads(l, runs, spec_.n_heads, w.q_norm, q_.data());

  std::vector<kernels::AttentionSegment> segments;
  std::vector<std::vector<kernels::KeyRange>> keys;
  keys.reserve(runs.size());
  int64_t at = 0;
  for (const RowRun& run : runs) {
    keys.push_back(batch.Keys(run, l, spec_.layers[l].window));
    const auto* cache =
        static_cast<const KvCache*>(batch.segment(run.segment).sequence);
    segments.push_back(
        {at, static_cast<int64_t>(run.n), keys.back().data(), cache->View(l)});
    at += static_cast<int64_t>(run.n);
  }
  attended_.Resize(total, spec_.n_heads * spec_.shape.head_dim, dtype());
  ops_.Attention({.shape = spec_.shape,
                  .n_heads = spec_.n_heads,
                  .scale = spec_.attention_scale,
                  .sinks = w.sinks.empty() ? nullptr : w.sinks.data(),
                  .q = q_.data(),
                  .out = attended_.data(),
                  .out_dtype = dtype(),
                  .segments = segments.data(),
                  .n_segments = static_cast<int64_t>(segments.size())});
  Multiply(attended_.data(), total, w.o, &w.o_bias, &y_);
  return y_;
}

void KvModel::Head(const RowBatch& batch,
                   std::vector<std::vector<float>>* logits) {
  logits->assign(batch.n_segments(), {});
  for (size_t s = 0; s < batch.n_segments(); ++s) {
    const RowRun run = batch.Logits(s);
    if (run.n == 0) continue;
    Activations& h = NormRows(std::span(&run, 1), outer_.final_norm);
    std::vector<float>& out = (*logits)[s];
    out.resize(run.n * static_cast<size_t>(outer_.head.n()));
    // Straight into the caller's memory where the backend writes there.
    float* rows = out.data();
    if (!ops_.is_host()) {
      logits_.Resize(out.size());
      rows = logits_.data();
    }
    ops_.Gemm({.a = h.data(),
               .n_rows = static_cast<int64_t>(run.n),
               .b = &outer_.head,
               .c = rows});
    if (spec_.final_softcap != 0) {
      ops_.Softcap(
          {rows, static_cast<int64_t>(out.size()), spec_.final_softcap});
    }
    if (!ops_.is_host()) {
      ops_.Download(out.data(), rows, out.size() * sizeof(float));
    }
  }
}

absl::StatusOr<KvDTypes> PickKvDTypes(const ModelOptions& options,
                                      const std::string& config_dtype,
                                      DType stored) {
  KvDTypes picked;
  TORPOR_ASSIGN_OR_RETURN(picked.compute, PickDType(options.compute_dtype,
                                                    stored, "compute dtype"));
  if (options.kv_dtype == "native" && !config_dtype.empty() &&
      config_dtype != "bf16" && config_dtype != "f32") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key 'dtype': got '%s', wanted bf16 or f32", config_dtype));
  }
  DType native = stored;
  if (config_dtype == "bf16") native = DType::kBf16;
  if (config_dtype == "f32") native = DType::kF32;
  TORPOR_ASSIGN_OR_RETURN(picked.kv,
                          PickDType(options.kv_dtype, native, "kv dtype"));
  return picked;
}

std::shared_ptr<kernels::Ops> OpsOf(const ModelOptions& options) {
  if (options.ops != nullptr) return options.ops;
  return std::make_shared<kernels::CpuOps>(options.isa, options.n_threads);
}

}  // namespace torpor::replay
