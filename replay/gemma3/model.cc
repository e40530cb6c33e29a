// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/model.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/ops.h"
#include "kernels/rope.h"
#include "replay/config_json.h"
#include "replay/gemma3/config.h"
#include "replay/gemma3/weights.h"
#include "replay/kv_model.h"
#include "replay/row_batch.h"

namespace torpor::replay::gemma3 {
namespace {

using kernels::DType;
using kernels::RowSink;

// Bumped whenever a change of this file, of replay/kv_model.cc or of the CPU
// kernels changes bits.
constexpr int kNumericsVersion = 1;
// Ropes of a KvModelSpec.
constexpr size_t kFull = 0;
constexpr size_t kSliding = 1;

KvRope RopeOf(const Config& c, const Rope& rope) {
  return {.inv_freq =
              kernels::RopeInvFreq(static_cast<float>(rope.theta), c.head_dim,
                                   static_cast<float>(rope.linear_factor))};
}

KvModelSpec SpecOf(const Config& c, DType kv_dtype) {
  KvModelSpec spec{
      .layout = LayoutOf(c, kv_dtype),
      .rope_name = RopeName(c),
      .numerics_name = absl::StrFormat("gemma3.%d", kNumericsVersion),
      .hidden_size = c.hidden_size,
      .n_heads = c.n_heads,
      .shape = {kv_dtype, c.n_kv_heads, c.head_dim},
      .max_positions = c.max_positions,
      .norm_offset = 1.0f,
      .norm_eps = static_cast<float>(c.rms_norm_eps),
      .attention_scale =
          static_cast<float>(1.0 / std::sqrt(c.query_pre_attn_scalar)),
      .final_softcap = static_cast<float>(c.final_softcap),
      .ropes = {RopeOf(c, c.full_rope), RopeOf(c, c.sliding_rope)}};
  for (const bool slides : c.is_sliding) {
    spec.layers.push_back(
        slides ? KvModelSpec::Layer{static_cast<uint64_t>(c.sliding_window),
                                    kSliding}
               : KvModelSpec::Layer{0, kFull});
  }
  return spec;
}

class Gemma3Model final : public KvModel {
 public:
  Gemma3Model(std::shared_ptr<kernels::Ops> ops, Config config,
              ModelTensors tensors, Weights weights, DType kv_dtype)
      : KvModel(std::move(ops), SpecOf(config, kv_dtype), std::move(tensors),
                std::move(weights.outer), std::move(weights.digest)),
        c_(std::move(config)),
        layers_(std::move(weights.layers)),
        gated_(&this->ops()),
        gate_up_(&this->ops()),
        down_(&this->ops()) {}

  uint64_t WorkBytes() const override {
    const int64_t row =
        WorkFloats() + c_.hidden_size + 3 * c_.intermediate_size;
    return kMaxRows * static_cast<uint64_t>(row) * sizeof(float);
  }

 private:
  void RunLayer(uint32_t l, const RowBatch& batch) override {
    const LayerWeights& w = layers_[l];
    WriteKv(l, batch, w.attention);
    const std::vector<RowRun> runs = batch.Running(l);
    if (runs.empty()) return;
    AddNormed(runs, w.post_attention_norm, Attend(l, batch, runs, w.attention));
    FeedForward(runs, w);
  }

  // x += norm(y), y being the rows of `runs` one after the other.
  void AddNormed(std::span<const RowRun> runs, const Floats& weight,
                 const Floats& y) {
    const float* from = y.data();
    for (const RowRun& run : runs) {
      ops().RmsNorm({.x = from,
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

  void FeedForward(std::span<const RowRun> runs, const LayerWeights& w) {
    const uint64_t total = CountRows(runs);
    Multiply(NormRows(runs, w.pre_feedforward_norm).data(), total, w.gate_up,
             nullptr, &gate_up_);
    gated_.Resize(total, c_.intermediate_size, dtype());
    ops().GatedGelu({.gate_up = gate_up_.data(),
                     .n_rows = static_cast<int64_t>(total),
                     .dim = c_.intermediate_size,
                     .out = gated_.data(),
                     .out_dtype = dtype()});
    Multiply(gated_.data(), total, w.down, nullptr, &down_);
    AddNormed(runs, w.post_feedforward_norm, down_);
  }

  const Config c_;
  const std::vector<LayerWeights> layers_;
  // Work of one forward, kept between them.
  Activations gated_;
  Floats gate_up_;
  Floats down_;
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
  TORPOR_ASSIGN_OR_RETURN(const KvDTypes dtypes,
                          PickKvDTypes(options, config.dtype, stored));
  std::shared_ptr<kernels::Ops> ops = OpsOf(options);
  TORPOR_ASSIGN_OR_RETURN(
      Weights weights, LoadWeights(config, tensors, dtypes.compute, ops.get()));
  return std::unique_ptr<Model>(std::make_unique<Gemma3Model>(
      std::move(ops), std::move(config), std::move(tensors), std::move(weights),
      dtypes.kv));
}

}  // namespace torpor::replay::gemma3
