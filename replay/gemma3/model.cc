// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"
#include "kernels/ops.h"
#include "replay/config_json.h"
#include "replay/gemma3/activations.h"
#include "replay/gemma3/config.h"
#include "replay/gemma3/weights.h"
#include "replay/kv_cache.h"
#include "replay/row_batch.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::gemma3 {
namespace {

using kernels::DType;
using kernels::PackedMatrix;
using kernels::RowSink;

// Bumped whenever a change of this file or of the CPU kernels changes bits.
constexpr int kNumericsVersion = 1;
// Rows of one forward: enough to keep a GEMM at its ceiling, few enough that
// its buffers stay in cache.
constexpr uint64_t kMaxRows = 512;

class Gemma3Model final : public Model {
 public:
  Gemma3Model(std::shared_ptr<kernels::Ops> ops, Config config,
              ModelTensors tensors, Weights weights, DType kv_dtype)
      : own_ops_(std::move(ops)),
        ops_(*own_ops_),
        c_(std::move(config)),
        tensors_(std::move(tensors)),
        w_(std::move(weights)),
        layout_(LayoutOf(c_, kv_dtype)),
        shape_{kv_dtype, c_.n_kv_heads, c_.head_dim},
        full_inv_freq_(InvFreq(c_.full_rope)),
        sliding_inv_freq_(InvFreq(c_.sliding_rope)),
        x_(&ops_),
        full_tables_(&ops_),
        sliding_tables_(&ops_),
        h_(&ops_),
        attended_(&ops_),
        gated_(&ops_),
        kv_(&ops_),
        k_(&ops_),
        q_(&ops_),
        gate_up_(&ops_),
        y_(&ops_),
        logits_(&ops_) {
    fingerprint_.weights = w_.digest;
    fingerprint_.layout = LayoutDigest(layout_);
    fingerprint_.kv_dtype = DTypeName(kv_dtype);
    fingerprint_.rope = RopeName(c_);
    numerics_id_ =
        absl::StrFormat("%s/gemma3.%d/%s/kv-%s", ops_.name(), kNumericsVersion,
                        DTypeName(w_.dtype), DTypeName(kv_dtype));
    for (uint32_t l = 0; l < layout_.n_layers; ++l) {
      kv_layers_.push_back(
          {.shape = shape_,
           .window =
               c_.persists(l) ? 0 : static_cast<uint64_t>(c_.sliding_window),
           .k_slot = 2 * l,
           .v_slot = 2 * l + 1});
    }
  }

  const ModelLayout& layout() const override { return layout_; }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  uint32_t vocab_size() const override { return layout_.vocab_size; }
  uint32_t hidden_size() const override {
    return static_cast<uint32_t>(c_.hidden_size);
  }
  uint64_t max_rows() const override { return kMaxRows; }
  uint64_t SequenceBytes(uint64_t n_tokens) const override {
    return KvCache::BytesFor(ops_, kv_layers_, kMaxRows, n_tokens);
  }
  uint64_t WorkBytes() const override {
    const int64_t row = 3 * c_.hidden_size + 2 * c_.n_heads * c_.head_dim +
                        2 * c_.n_kv_heads * c_.head_dim +
                        3 * c_.intermediate_size + 2 * c_.head_dim;
    return kMaxRows * static_cast<uint64_t>(row) * 4;
  }

  absl::Status Settle() override {
    const absl::Status status = ops_.Finish();
    return absl::IsUnavailable(status) ? status : absl::OkStatus();
  }
  std::unique_ptr<Sequence> NewSequence() override {
    return std::make_unique<KvCache>(&ops_, kv_layers_, kMaxRows);
  }

  absl::Status Forward(std::span<const Segment> segments,
                       const ForwardOptions& options,
                       std::vector<std::vector<float>>* logits) override {
    TORPOR_ASSIGN_OR_RETURN(RowBatch batch,
                            RowBatch::Make(segments, layout_, kMaxRows));
    TORPOR_RETURN_IF_ERROR(Embed(segments, batch));
    MakeRopeTables(batch);
    for (uint32_t l = 0; l < layout_.n_layers; ++l) {
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

 private:
  void ShowInput(uint32_t l, const RowBatch& batch,
                 const ForwardOptions& options) {
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const RowRun run = batch.Input(l, s);
      std::vector<float> rows(run.n * static_cast<size_t>(c_.hidden_size));
      const size_t bytes = rows.size() * sizeof(float);
      ops_.Download(rows.data(), X(run.row), bytes);
      options.on_layer_input(l, s, run.position, rows);
      ops_.Upload(X(run.row), rows.data(), bytes);
    }
  }

  std::vector<float> InvFreq(const Rope& rope) const {
    return kernels::RopeInvFreq(static_cast<float>(rope.theta), c_.head_dim,
                                static_cast<float>(rope.linear_factor));
  }

  float* X(uint64_t row) { return x_.data() + row * c_.hidden_size; }

  absl::Status Embed(std::span<const Segment> segments, const RowBatch& batch) {
    const auto hidden = static_cast<size_t>(c_.hidden_size);
    x_.Resize(batch.n_rows() * hidden);
    for (size_t s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      const RowRun run = batch.All(s);
      if (segment.inputs != nullptr) {
        ops_.Upload(X(run.row), segment.inputs, run.n * hidden * sizeof(float));
        continue;
      }
      for (uint64_t i = 0; i < run.n; ++i) {
        if (segment.ids[i] < layout_.vocab_size) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "token at position %d: got id %d, the vocabulary has %d",
            run.position + i, segment.ids[i], layout_.vocab_size));
      }
      ops_.EmbedRows({.table = w_.embedding.get(),
                      .dtype = w_.embedding_dtype,
                      .ids = segment.ids.data(),
                      .n_rows = static_cast<int64_t>(run.n),
                      .dim = c_.hidden_size,
                      .scale = w_.embedding_scale,
                      .out = X(run.row)});
    }
    return absl::OkStatus();
  }

  void MakeRopeTables(const RowBatch& batch) {
    FillTables(batch, full_inv_freq_, &full_tables_);
    FillTables(batch, sliding_inv_freq_, &sliding_tables_);
  }

  // On the host: cos and sin in double, the same bits on every backend.
  void FillTables(const RowBatch& batch, const std::vector<float>& inv_freq,
                  Floats* tables) {
    const auto dim = static_cast<size_t>(c_.head_dim);
    host_tables_.resize(batch.n_rows() * dim);
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const RowRun run = batch.All(s);
      for (uint64_t i = 0; i < run.n; ++i) {
        kernels::RopeTable(inv_freq, run.position + i,
                           &host_tables_[(run.row + i) * dim]);
      }
    }
    tables->Resize(host_tables_.size());
    ops_.Upload(tables->data(), host_tables_.data(),
                host_tables_.size() * sizeof(float));
  }

  RowSink StoreSink() const {
    return w_.dtype == DType::kBf16 ? RowSink::kStoreBf16 : RowSink::kStoreF32;
  }

  // out[0..) = norm of the batch rows of `runs`, one after the other.
  void NormRows(std::span<const RowRun> runs, const Floats& weight,
                Activations* out) {
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    out->Resize(total, c_.hidden_size, w_.dtype);
    uint64_t at = 0;
    for (const RowRun& run : runs) {
      ops_.RmsNorm({.x = X(run.row),
                    .n_rows = static_cast<int64_t>(run.n),
                    .dim = c_.hidden_size,
                    .x_stride = c_.hidden_size,
                    .weight = weight.data(),
                    .offset = 1.0f,
                    .eps = static_cast<float>(c_.rms_norm_eps),
                    .out = out->Row(at),
                    .out_stride = c_.hidden_size,
                    .sink = StoreSink()});
      at += run.n;
    }
  }

  // x += norm(y), y being the rows of `runs` one after the other.
  void AddNormed(std::span<const RowRun> runs, const Floats& weight,
                 const Floats& y) {
    const float* from = y.data();
    for (const RowRun& run : runs) {
      ops_.RmsNorm({.x = from,
                    .n_rows = static_cast<int64_t>(run.n),
                    .dim = c_.hidden_size,
                    .x_stride = c_.hidden_size,
                    .weight = weight.data(),
                    .offset = 1.0f,
                    .eps = static_cast<float>(c_.rms_norm_eps),
                    .out = X(run.row),
                    .out_stride = c_.hidden_size,
                    .sink = RowSink::kAddF32});
      from += run.n * c_.hidden_size;
    }
  }

  void Multiply(const void* a, uint64_t rows, const PackedMatrix& b,
                const Floats* bias, Floats* c) {
    c->Resize(rows * static_cast<size_t>(b.n()));
    ops_.Gemm(
        {.a = a,
         .n_rows = static_cast<int64_t>(rows),
         .b = &b,
         .bias = bias == nullptr || bias->empty() ? nullptr : bias->data(),
         .c = c->data()});
  }

  // Norm over each head, then rope, in place; rows of `runs` in order.
  void NormAndRope(std::span<const RowRun> runs, int64_t n_heads,
                   const Floats& weight, bool sliding, float* x) {
    const Floats& tables = sliding ? sliding_tables_ : full_tables_;
    for (const RowRun& run : runs) {
      const auto rows = static_cast<int64_t>(run.n);
      ops_.RmsNorm({.x = x,
                    .n_rows = rows * n_heads,
                    .dim = c_.head_dim,
                    .x_stride = c_.head_dim,
                    .weight = weight.data(),
                    .offset = 1.0f,
                    .eps = static_cast<float>(c_.rms_norm_eps),
                    .out = x,
                    .out_stride = c_.head_dim,
                    .sink = RowSink::kStoreF32});
      ops_.Rope({.x = x,
                 .n_rows = rows,
                 .n_heads = n_heads,
                 .head_dim = c_.head_dim,
                 .tables = tables.data() + run.row * c_.head_dim});
      x += rows * n_heads * c_.head_dim;
    }
  }

  // K and V of the rows that the layer writes, into their sequences.
  void WriteKv(uint32_t l, const RowBatch& batch) {
    const std::vector<RowRun> runs = batch.Written(kv_layers_[l].k_slot);
    const LayerWeights& w = w_.layers[l];
    const bool sliding = c_.is_sliding[l];
    const int64_t row = c_.n_kv_heads * c_.head_dim;
    NormRows(runs, w.input_norm, &h_);
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    Multiply(h_.data(), total, w.kv, &w.kv_bias, &kv_);
    // The GEMM gives K and V side by side; K alone is normed and turned.
    k_.Resize(total * static_cast<size_t>(row));
    ops_.CopyRows({.x = kv_.data(),
                   .x_stride = 2 * row,
                   .n_rows = static_cast<int64_t>(total),
                   .dim = row,
                   .out = k_.data(),
                   .out_stride = row});
    NormAndRope(runs, c_.n_kv_heads, w.k_norm, sliding, k_.data());
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

  void Attend(uint32_t l, const RowBatch& batch, std::span<const RowRun> runs) {
    const LayerWeights& w = w_.layers[l];
    const bool sliding = c_.is_sliding[l];
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    NormRows(runs, w.input_norm, &h_);
    Multiply(h_.data(), total, w.q, &w.q_bias, &q_);
    NormAndRope(runs, c_.n_heads, w.q_norm, sliding, q_.data());

    std::vector<kernels::AttentionSegment> segments;
    std::vector<std::vector<kernels::KeyRange>> keys;
    keys.reserve(runs.size());
    int64_t at = 0;
    for (const RowRun& run : runs) {
      keys.push_back(batch.Keys(
          run, l, sliding ? static_cast<uint64_t>(c_.sliding_window) : 0));
      const auto* cache =
          static_cast<const KvCache*>(batch.segment(run.segment).sequence);
      segments.push_back({at, static_cast<int64_t>(run.n), keys.back().data(),
                          cache->View(l)});
      at += static_cast<int64_t>(run.n);
    }
    attended_.Resize(total, c_.n_heads * c_.head_dim, w_.dtype);
    ops_.Attention(
        {.shape = shape_,
         .n_heads = c_.n_heads,
         .scale = static_cast<float>(1.0 / std::sqrt(c_.query_pre_attn_scalar)),
         .q = q_.data(),
         .out = attended_.data(),
         .out_dtype = w_.dtype,
         .segments = segments.data(),
         .n_segments = static_cast<int64_t>(segments.size())});
    Multiply(attended_.data(), total, w.o, &w.o_bias, &y_);
    AddNormed(runs, w.post_attention_norm, y_);
  }

  void FeedForward(uint32_t l, std::span<const RowRun> runs) {
    const LayerWeights& w = w_.layers[l];
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    NormRows(runs, w.pre_feedforward_norm, &h_);
    Multiply(h_.data(), total, w.gate_up, nullptr, &gate_up_);
    gated_.Resize(total, c_.intermediate_size, w_.dtype);
    ops_.GatedGelu({.gate_up = gate_up_.data(),
                    .n_rows = static_cast<int64_t>(total),
                    .dim = c_.intermediate_size,
                    .out = gated_.data(),
                    .out_dtype = w_.dtype});
    Multiply(gated_.data(), total, w.down, nullptr, &y_);
    AddNormed(runs, w.post_feedforward_norm, y_);
  }

  void RunLayer(uint32_t l, const RowBatch& batch) {
    WriteKv(l, batch);
    const std::vector<RowRun> runs = batch.Running(l);
    if (runs.empty()) return;
    Attend(l, batch, runs);
    FeedForward(l, runs);
  }

  void Head(const RowBatch& batch, std::vector<std::vector<float>>* logits) {
    logits->assign(batch.n_segments(), {});
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const RowRun run = batch.Logits(s);
      if (run.n == 0) continue;
      NormRows(std::span(&run, 1), w_.final_norm, &h_);
      std::vector<float>& out = (*logits)[s];
      out.resize(run.n * static_cast<size_t>(w_.head.n()));
      // Straight into the caller's memory where the backend writes there.
      float* rows = out.data();
      if (!ops_.is_host()) {
        logits_.Resize(out.size());
        rows = logits_.data();
      }
      ops_.Gemm({.a = h_.data(),
                 .n_rows = static_cast<int64_t>(run.n),
                 .b = &w_.head,
                 .c = rows});
      if (c_.final_softcap != 0) {
        ops_.Softcap({rows, static_cast<int64_t>(out.size()),
                      static_cast<float>(c_.final_softcap)});
      }
      if (!ops_.is_host()) {
        ops_.Download(out.data(), rows, out.size() * sizeof(float));
      }
    }
  }

  // First and last: everything below is in its memory.
  const std::shared_ptr<kernels::Ops> own_ops_;
  kernels::Ops& ops_;
  const Config c_;
  const ModelTensors tensors_;
  const Weights w_;
  const ModelLayout layout_;
  const kernels::KvShape shape_;
  Fingerprint fingerprint_;
  std::string numerics_id_;
  std::vector<KvLayerSpec> kv_layers_;

  const std::vector<float> full_inv_freq_;
  const std::vector<float> sliding_inv_freq_;
  // Work of one forward, kept between them.
  std::vector<float> host_tables_;
  Floats x_;
  Floats full_tables_;
  Floats sliding_tables_;
  Activations h_;
  Activations attended_;
  Activations gated_;
  Floats kv_;
  Floats k_;
  Floats q_;
  Floats gate_up_;
  Floats y_;
  // Of backends whose memory is not the host's.
  Floats logits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ParseJsonObject(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(Config config, ParseConfig(json));
  if (config.head_dim % 16 != 0) {
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'head_dim': got %d, the CPU forward wants a multiple of 16",
        config.head_dim));
  }
  TORPOR_ASSIGN_OR_RETURN(ModelTensors tensors, ModelTensors::Open(directory));
  TORPOR_ASSIGN_OR_RETURN(const DType stored, StoredDType(tensors));
  TORPOR_ASSIGN_OR_RETURN(
      const DType compute,
      PickDType(options.compute_dtype, stored, "compute dtype"));
  DType native_kv = stored;
  if (options.kv_dtype == "native" && !config.dtype.empty() &&
      config.dtype != "bf16" && config.dtype != "f32") {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key 'dtype': got '%s', wanted bf16 or f32", config.dtype));
  }
  if (config.dtype == "bf16") native_kv = DType::kBf16;
  if (config.dtype == "f32") native_kv = DType::kF32;
  TORPOR_ASSIGN_OR_RETURN(const DType kv,
                          PickDType(options.kv_dtype, native_kv, "kv dtype"));
  std::shared_ptr<kernels::Ops> ops = options.ops;
  if (ops == nullptr) {
    ops = std::make_shared<kernels::CpuOps>(options.isa, options.n_threads);
  }
  TORPOR_ASSIGN_OR_RETURN(Weights weights,
                          LoadWeights(config, tensors, compute, ops.get()));
  return std::unique_ptr<Model>(std::make_unique<Gemma3Model>(
      std::move(ops), std::move(config), std::move(tensors), std::move(weights),
      kv));
}

}  // namespace torpor::replay::gemma3
