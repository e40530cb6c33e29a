// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"
#include "kernels/ops.h"
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
  FloatRows comb;  // [rows, streams * streams]
};

class V41Model final : public DeepSeekV41 {
 public:
  V41Model(std::shared_ptr<kernels::Ops> ops,
           std::shared_ptr<kernels::CpuOps> host, Config config,
           ModelLayout layout, ModelTensors tensors, Weights weights,
           std::optional<EngramIndex> engram)
      : own_ops_(std::move(ops)),
        host_(std::move(host)),
        ops_(*own_ops_),
        c_(std::move(config)),
        layout_(std::move(layout)),
        tensors_(std::move(tensors)),
        w_(std::move(weights)),
        engram_(std::move(engram)),
        math_(&ops_, w_.dtype, static_cast<float>(c_.norm_eps), kMaxRows),
        attention_(c_, layout_, &math_),
        experts_(c_, &math_) {
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
        c_.n_active * (c_.hidden_size + c_.expert_dim) +
        (c_.n_streams + 1) * c_.hidden_size +
        2 * c_.engram.n_rows() * c_.engram.head_dim;
    // Pointers to keys, and the ids of those that were picked.
    const auto keys = static_cast<uint64_t>(8 * c_.window + 12 * c_.index_topk +
                                            4 * c_.candidate_blocks);
    return kMaxRows * (static_cast<uint64_t>(row) * sizeof(float) + keys);
  }

  absl::Status Settle() override {
    const absl::Status status = ops_.Finish();
    return absl::IsUnavailable(status) ? status : absl::OkStatus();
  }
  std::unique_ptr<Sequence> NewSequence() override {
    return std::make_unique<RecordCache>(&ops_, layout_, kMaxRows);
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
      std::vector<float> rows(run.n * stream_size());
      const size_t bytes = rows.size() * sizeof(float);
      ops_.Download(rows.data(), x_.row(run.row), bytes);
      options.on_layer_input(l, s, run.position, rows);
      ops_.Upload(x_.row(run.row), rows.data(), bytes);
    }
  }

  absl::Status Embed(const RowBatch& batch) {
    x_ = {};
    mix_ = {};
    x_ = math_.New(batch.n_rows(), c_.n_streams * c_.hidden_size);
    FloatRows embedded = math_.New(batch.n_rows(), c_.hidden_size);
    for (size_t s = 0; s < batch.n_segments(); ++s) {
      TORPOR_RETURN_IF_ERROR(
          EmbedSegment(batch.segment(s), batch.All(s), &embedded));
    }
    // Every stream begins as the embedding.
    for (int64_t j = 0; j < c_.n_streams; ++j) {
      math_.SetColumns(j * c_.hidden_size, embedded, &x_);
    }
    x_ = math_.Round(std::move(x_));
    // The first site reads stream 0 alone.
    const auto streams = static_cast<size_t>(c_.n_streams);
    std::vector<float> mix(batch.n_rows() * streams, 0.0f);
    for (uint64_t row = 0; row < batch.n_rows(); ++row) {
      mix[row * streams] = 1.0f;
    }
    mix_ = math_.Upload(mix, c_.n_streams);
    return absl::OkStatus();
  }

  absl::Status EmbedSegment(const Segment& segment, const RowRun& run,
                            FloatRows* out) {
    if (segment.inputs != nullptr) {
      ops_.Upload(out->row(run.row), segment.inputs,
                  run.n * hidden_size() * sizeof(float));
      return absl::OkStatus();
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
                    .out = out->row(run.row)});
    return absl::OkStatus();
  }

  void RunLayer(uint32_t l, const RowBatch& batch) {
    const LayerWeights& w = w_.layers[l];
    const std::vector<RowRun> entering = batch.Entering(l);
    if (entering.empty()) return;
    if (w.engram) {
      FloatRows x = Gather(entering, x_);
      AddEngram(c_, static_cast<size_t>(c_.layers[l].engram), *engram_,
                *w.engram, batch, entering, &x, &math_, host_.get());
      math_.Show("engram_x", l, entering, &x);
      Scatter(entering, x, &x_);
    }
    FloatRows in = math_.Norm(Collapse(entering), w.attn.norm);
    math_.Show("attn_in", l, entering, &in);
    const FloatRows attended = attention_.Run(l, w, batch, in);
    const std::vector<RowRun> runs = batch.Running(l);
    if (runs.empty()) return;
    Expand(l, "attn_hc", w.attn_hc, runs, attended);

    in = math_.Norm(Collapse(runs), w.ffn.norm);
    math_.Show("ffn_in", l, runs, &in);
    FloatRows y = experts_.Run(l, w.ffn, runs, in);
    math_.Show("ffn_y", l, runs, &y);
    Expand(l, "ffn_hc", w.ffn_hc, runs, y);
  }

  // u = sum_j p_j X_j of the rows of `runs`.
  FloatRows Collapse(std::span<const RowRun> runs) {
    const FloatRows x = Gather(runs, x_);
    const FloatRows p = Gather(runs, mix_);
    FloatRows u = math_.New(x.n_rows(), c_.hidden_size);
    ops_.HyperCollapse({.x = x.data(),
                        .n_rows = static_cast<int64_t>(x.n_rows()),
                        .n_streams = c_.n_streams,
                        .dim = c_.hidden_size,
                        .mix = p.data(),
                        .out = u.data()});
    return math_.Round(std::move(u));
  }

  // X = post y + comb X with the site's own coefficients; p = its pre.
  void Expand(uint32_t l, const std::string& site, const HyperWeights& w,
              std::span<const RowRun> runs, const FloatRows& y) {
    FloatRows x = Gather(runs, x_);
    Mix mix = MixOf(w, x);
    math_.Show(site + ".pre", l, runs, &mix.pre);
    math_.Show(site + ".post", l, runs, &mix.post);
    math_.Show(site + ".comb", l, runs, &mix.comb);
    ops_.HyperExpand({.x = x.data(),
                      .n_rows = static_cast<int64_t>(x.n_rows()),
                      .n_streams = c_.n_streams,
                      .dim = c_.hidden_size,
                      .y = y.data(),
                      .post = mix.post.data(),
                      .comb = mix.comb.data()});
    Scatter(runs, math_.Round(std::move(x)), &x_);
    Scatter(runs, mix.pre, &mix_);
  }

  Mix MixOf(const HyperWeights& w, const FloatRows& x) {
    const FloatRows projection = math_.Multiply(w.fn, x);
    Mix mix{math_.New(x.n_rows(), c_.n_streams),
            math_.New(x.n_rows(), c_.n_streams),
            math_.New(x.n_rows(), c_.n_streams * c_.n_streams)};
    ops_.HyperMix({.x = x.data(),
                   .n_rows = static_cast<int64_t>(x.n_rows()),
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
      const FloatRows of_segment = math_.Multiply(w_.head, x);
      std::vector<float>& out = (*logits)[s];
      out.resize(static_cast<size_t>(of_segment.size()));
      ops_.Download(out.data(), of_segment.data(), out.size() * sizeof(float));
    }
  }

  // Rows of `runs` out of, and back into, a batch's.
  FloatRows Gather(std::span<const RowRun> runs, const FloatRows& from) {
    return math_.Gather(BlocksOf(runs), from);
  }
  void Scatter(std::span<const RowRun> runs, const FloatRows& rows,
               FloatRows* to) {
    math_.Scatter(BlocksOf(runs), rows, to);
  }

  // First and last: everything below is in its memory.
  const std::shared_ptr<kernels::Ops> own_ops_;
  // Decodes rows of the Engram tables.
  const std::shared_ptr<kernels::CpuOps> host_;
  kernels::Ops& ops_;
  const Config c_;
  const ModelLayout layout_;
  const ModelTensors tensors_;
  const Weights w_;
  const std::optional<EngramIndex> engram_;
  Fingerprint fingerprint_;
  std::string numerics_id_;

  RowMath math_;
  AttentionSite attention_;
  ExpertSite experts_;
  // Rows of the batch between two sites: X [rows, streams * hidden] and p
  // [rows, streams].
  FloatRows x_;
  FloatRows mix_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeepSeekV41>> LoadDeepSeekV41(
    const std::string& directory, std::string_view config_json,
    const ModelOptions& options) {
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
  auto host = std::make_shared<kernels::CpuOps>(options.isa, options.n_threads);
  std::shared_ptr<kernels::Ops> ops = options.ops;
  if (ops == nullptr) ops = host;
  TORPOR_ASSIGN_OR_RETURN(Weights weights,
                          LoadWeights(config, tensors, engram_json, compute,
                                      host.get(), ops.get()));
  return std::unique_ptr<DeepSeekV41>(std::make_unique<V41Model>(
      std::move(ops), std::move(host), std::move(config), std::move(layout),
      std::move(tensors), std::move(weights), std::move(engram)));
}

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<DeepSeekV41> model,
                          LoadDeepSeekV41(directory, config_json, options));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace torpor::replay::deepseek_v41
