// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"
#include "kernels/hyper_connection.h"
#include "replay/config_json.h"
#include "replay/deepseek_v41/attention.h"
#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/engram.h"
#include "replay/deepseek_v41/engram_site.h"
#include "replay/deepseek_v41/experts.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/deepseek_v41/weights.h"
#include "replay/record_cache.h"
#include "replay/row_batch.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::DType;

// Bumped whenever a change of this folder or of the CPU kernels changes bits.
constexpr int kNumericsVersion = 2;
// Rows of one forward.
constexpr uint64_t kMaxRows = 512;

// Coefficients of one site, rows of its runs one after the other.
struct Mix {
  FloatRows pre;   // [rows, streams]
  FloatRows post;  // [rows, streams]
  FloatRows comb;  // [rows, streams, streams]
};

class V41Model final : public DeepSeekV41 {
 public:
  V41Model(std::unique_ptr<kernels::CpuOps> ops, Config config,
           ModelLayout layout, ModelTensors tensors, Weights weights,
           std::optional<EngramIndex> engram)
      : own_ops_(std::move(ops)),
        ops_(*own_ops_),
        c_(std::move(config)),
        layout_(std::move(layout)),
        tensors_(std::move(tensors)),
        w_(std::move(weights)),
        engram_(std::move(engram)),
        math_(&ops_, w_.dtype, static_cast<float>(c_.norm_eps)),
        attention_(c_, layout_, &math_) {
    fingerprint_.weights = w_.digest;
    fingerprint_.layout = LayoutDigest(layout_);
    fingerprint_.kv_dtype = "native";
    fingerprint_.rope = RopeName(c_);
    fingerprint_.quantiser = "deepseek_v41 bf16-ceil-1";
    numerics_id_ = absl::StrFormat("%s/deepseek_v41.%d/%s", ops_.name(),
                                   kNumericsVersion, DTypeName(w_.dtype));
  }

  const ModelLayout& layout() const override { return layout_; }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  uint32_t vocab_size() const override { return layout_.vocab_size; }
  uint32_t hidden_size() const override {
    return static_cast<uint32_t>(c_.hidden_size);
  }
  uint32_t stream_size() const override {
    return static_cast<uint32_t>(c_.n_streams * c_.hidden_size);
  }
  uint64_t id_lookback() const override {
    return engram_ ? engram_->lookback() : 0;
  }
  uint64_t max_rows() const override { return kMaxRows; }
  uint64_t SequenceBytes(uint64_t n_tokens) const override {
    return RecordCache::BytesFor(layout_, kMaxRows, n_tokens);
  }
  uint64_t WorkBytes() const override {
    const int64_t row =
        (3 * c_.n_streams + 6) * c_.hidden_size + 4 * c_.n_heads * c_.head_dim +
        3 * c_.index_heads * c_.index_dim + 2 * c_.o_groups * c_.o_rank +
        3 * c_.expert_dim * (c_.n_active + 1) +
        (c_.n_streams + 1) * c_.hidden_size +
        c_.engram.n_rows() * c_.engram.head_dim;
    const auto keys = static_cast<uint64_t>(8 * (c_.window + c_.index_topk));
    return kMaxRows * (static_cast<uint64_t>(row) * sizeof(float) + keys);
  }

  std::unique_ptr<Sequence> NewSequence() override {
    return std::make_unique<RecordCache>(layout_, kMaxRows);
  }
  void set_tap(Tap* tap) override { math_.set_tap(tap); }

  absl::Status Forward(std::span<const Segment> segments,
                       const ForwardOptions& options,
                       std::vector<std::vector<float>>* logits) override {
    TORPOR_ASSIGN_OR_RETURN(
        RowBatch batch,
        RowBatch::Make(segments, layout_, kMaxRows, id_lookback()));
    TORPOR_RETURN_IF_ERROR(Embed(batch));
    attention_.Begin(batch);
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
                                 std::span(x_).subspan(run.row * stream_size(),
                                                       run.n * stream_size()));
        }
      }
      RunLayer(l, batch);
    }
    Head(batch, logits);
    return absl::OkStatus();
  }

 private:
  absl::Status Embed(const RowBatch& batch) {
    const auto hidden = static_cast<size_t>(c_.hidden_size);
    const auto streams = static_cast<size_t>(c_.n_streams);
    x_.resize(batch.n_rows() * streams * hidden);
    // The first site reads stream 0 alone.
    mix_.assign(batch.n_rows() * streams, 0.0f);
    for (uint64_t row = 0; row < batch.n_rows(); ++row) {
      mix_[row * streams] = 1.0f;
    }
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const Segment& segment = batch.segment(s);
      const RowRun run = batch.All(s);
      for (uint64_t i = 0; i < run.n; ++i) {
        float* const row = &x_[(run.row + i) * streams * hidden];
        if (segment.inputs != nullptr) {
          std::copy_n(segment.inputs + i * hidden, hidden, row);
        } else if (segment.ids[i] < layout_.vocab_size) {
          ReadRow(w_.embedding, segment.ids[i], std::span(row, hidden));
        } else {
          return absl::InvalidArgumentError(absl::StrFormat(
              "token at position %d: got id %d, the vocabulary has %d",
              run.position + i, segment.ids[i], layout_.vocab_size));
        }
        for (size_t j = 1; j < streams; ++j) {
          std::copy_n(row, hidden, row + j * hidden);
        }
      }
    }
    x_ = math_.Round(std::move(x_));
    return absl::OkStatus();
  }

  void RunLayer(uint32_t l, const RowBatch& batch) {
    const LayerWeights& w = w_.layers[l];
    const std::vector<RowRun> entering = batch.Entering(l);
    if (entering.empty()) return;
    if (w.engram) {
      FloatRows x = Gather(entering, x_, stream_size());
      AddEngram(c_, static_cast<size_t>(c_.layers[l].engram), *engram_,
                *w.engram, batch, entering, &x, &math_);
      math_.Show("engram_x", l, entering, x);
      Scatter(entering, x, stream_size(), &x_);
    }
    FloatRows in = math_.Norm(Collapse(entering), w.attn.norm);
    math_.Show("attn_in", l, entering, in);
    const FloatRows attended = attention_.Run(l, w, batch, in);
    const std::vector<RowRun> runs = batch.Running(l);
    if (runs.empty()) return;
    Expand(l, "attn_hc", w.attn_hc, runs, attended);

    in = math_.Norm(Collapse(runs), w.ffn.norm);
    math_.Show("ffn_in", l, runs, in);
    FloatRows y = RunExperts(c_, l, w.ffn, runs, in, &math_);
    math_.Show("ffn_y", l, runs, y);
    Expand(l, "ffn_hc", w.ffn_hc, runs, y);
  }

  // u = sum_j p_j X_j of the rows of `runs`.
  FloatRows Collapse(std::span<const RowRun> runs) {
    const FloatRows x = Gather(runs, x_, stream_size());
    const FloatRows p = Gather(runs, mix_, static_cast<size_t>(c_.n_streams));
    FloatRows u(CountRows(runs) * static_cast<size_t>(c_.hidden_size));
    ops_.HyperCollapse({.x = x.data(),
                        .n_rows = static_cast<int64_t>(CountRows(runs)),
                        .n_streams = c_.n_streams,
                        .dim = c_.hidden_size,
                        .mix = p.data(),
                        .out = u.data()});
    return math_.Round(std::move(u));
  }

  // X = post y + comb X with the site's own coefficients; p = its pre.
  void Expand(uint32_t l, const std::string& site, const HyperWeights& w,
              std::span<const RowRun> runs, std::span<const float> y) {
    FloatRows x = Gather(runs, x_, stream_size());
    Mix mix = MixOf(w, x);
    math_.Show(site + ".pre", l, runs, mix.pre);
    math_.Show(site + ".post", l, runs, mix.post);
    math_.Show(site + ".comb", l, runs, mix.comb);
    ops_.HyperExpand({.x = x.data(),
                      .n_rows = static_cast<int64_t>(CountRows(runs)),
                      .n_streams = c_.n_streams,
                      .dim = c_.hidden_size,
                      .y = y.data(),
                      .post = mix.post.data(),
                      .comb = mix.comb.data()});
    Scatter(runs, math_.Round(std::move(x)), stream_size(), &x_);
    Scatter(runs, mix.pre, static_cast<size_t>(c_.n_streams), &mix_);
  }

  Mix MixOf(const HyperWeights& w, const FloatRows& x) {
    const auto streams = static_cast<size_t>(c_.n_streams);
    const size_t rows = x.size() / stream_size();
    const FloatRows projection = math_.Multiply(w.fn, x);
    Mix mix{FloatRows(rows * streams), FloatRows(rows * streams),
            FloatRows(rows * streams * streams)};
    ops_.HyperMix({.x = x.data(),
                   .n_rows = static_cast<int64_t>(rows),
                   .n_streams = c_.n_streams,
                   .dim = c_.hidden_size,
                   .projection = projection.data(),
                   .base = w.base.data(),
                   .scale = w.scale.data(),
                   .norm_eps = static_cast<float>(c_.norm_eps),
                   .eps = static_cast<float>(c_.hc_eps),
                   .n_iterations = c_.sinkhorn_iterations,
                   .pre = mix.pre.data(),
                   .post = mix.post.data(),
                   .comb = mix.comb.data()});
    return mix;
  }

  void Head(const RowBatch& batch, std::vector<std::vector<float>>* logits) {
    logits->assign(batch.n_segments(), {});
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      const RowRun run = batch.Logits(s);
      if (run.n == 0) continue;
      const FloatRows x = math_.Norm(Collapse(std::span(&run, 1)), w_.norm);
      (*logits)[s] = math_.Multiply(w_.head, x);
    }
  }

  // Rows of `runs` out of, and back into, a batch's [n_rows, dim].
  static FloatRows Gather(std::span<const RowRun> runs, const FloatRows& from,
                          size_t dim) {
    FloatRows out;
    out.reserve(CountRows(runs) * dim);
    for (const RowRun& run : runs) {
      const float* at = from.data() + run.row * dim;
      out.insert(out.end(), at, at + run.n * dim);
    }
    return out;
  }
  static void Scatter(std::span<const RowRun> runs, const FloatRows& rows,
                      size_t dim, FloatRows* to) {
    const float* at = rows.data();
    for (const RowRun& run : runs) {
      std::copy_n(at, run.n * dim, to->data() + run.row * dim);
      at += run.n * dim;
    }
  }

  const std::unique_ptr<kernels::CpuOps> own_ops_;
  kernels::CpuOps& ops_;
  const Config c_;
  const ModelLayout layout_;
  const ModelTensors tensors_;
  const Weights w_;
  const std::optional<EngramIndex> engram_;
  Fingerprint fingerprint_;
  std::string numerics_id_;

  RowMath math_;
  AttentionSite attention_;
  // Rows of the batch between two sites: X [rows, streams, hidden] and p
  // [rows, streams].
  FloatRows x_;
  FloatRows mix_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeepSeekV41>> LoadDeepSeekV41(
    const std::string& directory, std::string_view config_json,
    const ModelOptions& options) {
  if (options.ops != nullptr) {
    return absl::UnimplementedError(absl::StrFormat(
        "DeepSeek V4.1 runs on the CPU alone: got the backend %s",
        options.ops->name()));
  }
  TORPOR_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ParseConfigJson(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(Config config, ParseConfig(json));
  TORPOR_ASSIGN_OR_RETURN(ModelLayout layout, LayoutOf(json));
  TORPOR_ASSIGN_OR_RETURN(ModelTensors tensors, ModelTensors::Open(directory));
  TORPOR_ASSIGN_OR_RETURN(const DType stored, StoredDType(tensors));
  TORPOR_ASSIGN_OR_RETURN(
      const DType compute,
      PickDType(options.compute_dtype, stored, "compute dtype"));
  std::optional<EngramIndex> engram;
  std::string engram_json;
  if (!config.engram_layers.empty()) {
    TORPOR_ASSIGN_OR_RETURN(engram_json,
                            ReadTextFile(directory + "/engram.json"));
    TORPOR_ASSIGN_OR_RETURN(engram, EngramIndex::Parse(engram_json, config));
  }
  auto ops = std::make_unique<kernels::CpuOps>(options.isa, options.n_threads);
  TORPOR_ASSIGN_OR_RETURN(
      Weights weights,
      LoadWeights(config, tensors, engram_json, compute, ops.get()));
  return std::unique_ptr<DeepSeekV41>(std::make_unique<V41Model>(
      std::move(ops), std::move(config), std::move(layout), std::move(tensors),
      std::move(weights), std::move(engram)));
}

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<DeepSeekV41> model,
                          LoadDeepSeekV41(directory, config_json, options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace torpor::replay::deepseek_v41
