// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/bf16.h"
#include "kernels/cpu_ops.h"
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
  Gemma3Model(Config config, ModelTensors tensors, Weights weights,
              DType kv_dtype, const ModelOptions& options)
      : c_(std::move(config)),
        tensors_(std::move(tensors)),
        w_(std::move(weights)),
        layout_(LayoutOf(c_, kv_dtype)),
        shape_{kv_dtype, c_.n_kv_heads, c_.head_dim},
        ops_(options.isa, options.n_threads),
        full_inv_freq_(InvFreq(c_.full_rope)),
        sliding_inv_freq_(InvFreq(c_.sliding_rope)) {
    fingerprint_.weights = w_.digest;
    fingerprint_.layout = LayoutDigest(layout_);
    fingerprint_.kv_dtype = DTypeName(kv_dtype);
    fingerprint_.rope = RopeName(c_);
    numerics_id_ = absl::StrFormat(
        "cpu/%s/gemma3.%d/%s/kv-%s", std::string(kernels::IsaName(options.isa)),
        kNumericsVersion, DTypeName(w_.dtype), DTypeName(kv_dtype));
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
    return KvCache::BytesFor(kv_layers_, kMaxRows, n_tokens);
  }
  uint64_t WorkBytes() const override {
    const int64_t row = 3 * c_.hidden_size + 2 * c_.n_heads * c_.head_dim +
                        2 * c_.n_kv_heads * c_.head_dim +
                        3 * c_.intermediate_size + 2 * c_.head_dim;
    return kMaxRows * static_cast<uint64_t>(row) * 4;
  }

  std::unique_ptr<Sequence> NewSequence() override {
    return std::make_unique<KvCache>(kv_layers_, kMaxRows);
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
      if (options.on_layer_input) {
        for (size_t s = 0; s < batch.n_segments(); ++s) {
          const RowRun run = batch.Input(l, s);
          options.on_layer_input(l, s, run.position,
                                 std::span(X(run.row), run.n * c_.hidden_size));
        }
      }
      RunLayer(l, batch);
    }
    Head(batch, logits);
    return absl::OkStatus();
  }

 private:
  std::vector<float> InvFreq(const Rope& rope) const {
    return kernels::RopeInvFreq(static_cast<float>(rope.theta), c_.head_dim,
                                static_cast<float>(rope.linear_factor));
  }

  float* X(uint64_t row) { return x_.data() + row * c_.hidden_size; }

  absl::Status Embed(std::span<const Segment> segments, const RowBatch& batch) {
    const auto hidden = static_cast<size_t>(c_.hidden_size);
    x_.resize(batch.n_rows() * hidden);
    for (size_t s = 0; s < segments.size(); ++s) {
      const Segment& segment = segments[s];
      const RowRun run = batch.All(s);
      if (segment.inputs != nullptr) {
        std::copy_n(segment.inputs, run.n * hidden, X(run.row));
        continue;
      }
      for (uint64_t i = 0; i < run.n; ++i) {
        const uint32_t id = segment.ids[i];
        if (id >= layout_.vocab_size) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "token at position %d: got id %d, the vocabulary has %d",
              run.position + i, id, layout_.vocab_size));
        }
        EmbedRow(id, X(run.row + i));
      }
    }
    return absl::OkStatus();
  }

  void EmbedRow(uint32_t id, float* out) const {
    const auto hidden = static_cast<size_t>(c_.hidden_size);
    ReadRow(w_.embedding, id, std::span(out, hidden));
    for (size_t i = 0; i < hidden; ++i) out[i] *= w_.embedding_scale;
  }

  void MakeRopeTables(const RowBatch& batch) {
    const auto dim = static_cast<size_t>(c_.head_dim);
    full_tables_.resize(batch.n_rows() * dim);
    sliding_tables_.resize(batch.n_rows() * dim);
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const RowRun run = batch.All(s);
      for (uint64_t i = 0; i < run.n; ++i) {
        const size_t at = (run.row + i) * dim;
        kernels::RopeTable(full_inv_freq_, run.position + i,
                           full_tables_.data() + at);
        kernels::RopeTable(sliding_inv_freq_, run.position + i,
                           sliding_tables_.data() + at);
      }
    }
  }

  RowSink StoreSink() const {
    return w_.dtype == DType::kBf16 ? RowSink::kStoreBf16 : RowSink::kStoreF32;
  }

  // out[0..) = norm of the batch rows of `runs`, one after the other.
  void NormRows(std::span<const RowRun> runs, const std::vector<float>& weight,
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
  void AddNormed(std::span<const RowRun> runs, const std::vector<float>& weight,
                 const std::vector<float>& y) {
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
                const std::vector<float>& bias, std::vector<float>* c) {
    c->resize(rows * static_cast<size_t>(b.n()));
    ops_.Gemm({.a = a,
               .n_rows = static_cast<int64_t>(rows),
               .b = &b,
               .bias = bias.empty() ? nullptr : bias.data(),
               .c = c->data()});
  }

  // Norm over each head, then rope, in place; rows of `runs` in order.
  void NormAndRope(std::span<const RowRun> runs, int64_t n_heads,
                   const std::vector<float>& weight, bool sliding, float* x) {
    const std::vector<float>& tables = sliding ? sliding_tables_ : full_tables_;
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
    Multiply(h_.bytes.data(), total, w.kv, w.kv_bias, &kv_);
    // The GEMM gives K and V side by side; K alone is normed and turned.
    k_.resize(total * static_cast<size_t>(row));
    for (uint64_t i = 0; i < total; ++i) {
      std::copy_n(kv_.data() + 2 * i * row, row, k_.data() + i * row);
    }
    NormAndRope(runs, c_.n_kv_heads, w.k_norm, sliding, k_.data());
    std::vector<kernels::Bf16> k16(static_cast<size_t>(row));
    std::vector<kernels::Bf16> v16(static_cast<size_t>(row));
    uint64_t at = 0;
    for (const RowRun& run : runs) {
      auto* cache = static_cast<KvCache*>(batch.segment(run.segment).sequence);
      cache->Reserve(l, run.position + run.n);
      for (uint64_t i = 0; i < run.n; ++i, ++at) {
        const float* k = k_.data() + at * row;
        const float* v = kv_.data() + (2 * at + 1) * row;
        if (shape_.dtype == DType::kF32) {
          cache->PutRow(l, run.position + i, k, v);
          continue;
        }
        for (int64_t j = 0; j < row; ++j) {
          k16[static_cast<size_t>(j)] = kernels::ToBf16(k[j]);
          v16[static_cast<size_t>(j)] = kernels::ToBf16(v[j]);
        }
        cache->PutRow(l, run.position + i, k16.data(), v16.data());
      }
    }
  }

  void Attend(uint32_t l, const RowBatch& batch, std::span<const RowRun> runs) {
    const LayerWeights& w = w_.layers[l];
    const bool sliding = c_.is_sliding[l];
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    NormRows(runs, w.input_norm, &h_);
    Multiply(h_.bytes.data(), total, w.q, w.q_bias, &q_);
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
         .out = attended_.bytes.data(),
         .out_dtype = w_.dtype,
         .segments = segments.data(),
         .n_segments = static_cast<int64_t>(segments.size())});
    Multiply(attended_.bytes.data(), total, w.o, w.o_bias, &y_);
    AddNormed(runs, w.post_attention_norm, y_);
  }

  void FeedForward(uint32_t l, std::span<const RowRun> runs) {
    const LayerWeights& w = w_.layers[l];
    uint64_t total = 0;
    for (const RowRun& run : runs) total += run.n;
    NormRows(runs, w.pre_feedforward_norm, &h_);
    Multiply(h_.bytes.data(), total, w.gate_up, {}, &gate_up_);
    gated_.Resize(total, c_.intermediate_size, w_.dtype);
    ops_.GatedGelu({.gate_up = gate_up_.data(),
                    .n_rows = static_cast<int64_t>(total),
                    .dim = c_.intermediate_size,
                    .out = gated_.bytes.data(),
                    .out_dtype = w_.dtype});
    Multiply(gated_.bytes.data(), total, w.down, {}, &y_);
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
      Multiply(h_.bytes.data(), run.n, w_.head, {}, &out);
      if (c_.final_softcap != 0) {
        ops_.Softcap({out.data(), static_cast<int64_t>(out.size()),
                      static_cast<float>(c_.final_softcap)});
      }
    }
  }

  const Config c_;
  const ModelTensors tensors_;
  const Weights w_;
  const ModelLayout layout_;
  const kernels::KvShape shape_;
  Fingerprint fingerprint_;
  std::string numerics_id_;
  std::vector<KvLayerSpec> kv_layers_;

  kernels::CpuOps ops_;
  const std::vector<float> full_inv_freq_;
  const std::vector<float> sliding_inv_freq_;
  // Work of one forward, kept between them.
  std::vector<float> x_;
  std::vector<float> full_tables_;
  std::vector<float> sliding_tables_;
  Activations h_;
  Activations attended_;
  Activations gated_;
  std::vector<float> kv_;
  std::vector<float> k_;
  std::vector<float> q_;
  std::vector<float> gate_up_;
  std::vector<float> y_;
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
  TORPOR_ASSIGN_OR_RETURN(Weights weights,
                          LoadWeights(config, tensors, compute));
  return std::unique_ptr<Model>(std::make_unique<Gemma3Model>(
      std::move(config), std::move(tensors), std::move(weights), kv, options));
}

}  // namespace torpor::replay::gemma3
