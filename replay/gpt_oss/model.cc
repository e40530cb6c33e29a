// SPDX-License-Identifier: Apache-2.0

#include "replay/gpt_oss/model.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cpu_ops.h"
#include "kernels/ops.h"
#include "kernels/rope.h"
#include "replay/config_json.h"
#include "replay/gpt_oss/config.h"
#include "replay/gpt_oss/experts.h"
#include "replay/gpt_oss/weights.h"
#include "replay/kv_model.h"
#include "replay/row_batch.h"

namespace torpor::replay::gpt_oss {
namespace {

using kernels::DType;

// Bumped whenever a change of this folder, of replay/kv_model.cc or of the CPU
// kernels changes bits.
constexpr int kNumericsVersion = 1;

KvRope RopeOf(const Config& c) {
  const auto scale = static_cast<float>(c.rope.attention_factor);
  if (c.rope.yarn) {
    return {kernels::YarnInvFreq(c.rope.theta, c.head_dim(), *c.rope.yarn),
            scale};
  }
  return {kernels::RopeInvFreq(static_cast<float>(c.rope.theta), c.head_dim(),
                               1.0f),
          scale};
}

KvModelSpec SpecOf(const Config& c, ModelLayout layout, DType kv_dtype) {
  KvModelSpec spec{
      .layout = std::move(layout),
      .rope_name = RopeName(c),
      .numerics_name = absl::StrFormat("gpt_oss.%d", kNumericsVersion),
      .hidden_size = c.hidden_size,
      .n_heads = c.n_heads,
      .shape = {kv_dtype, c.n_kv_heads(), c.head_dim()},
      .max_positions = c.stack.max_positions,
      .norm_eps = static_cast<float>(c.rms_norm_eps),
      .attention_scale = static_cast<float>(
          1.0 / std::sqrt(static_cast<double>(c.head_dim()))),
      .ropes = {RopeOf(c)}};
  for (const layouts::LayerSpec& layer : c.stack.layers) {
    spec.layers.push_back({.window = static_cast<uint64_t>(layer.reach)});
  }
  return spec;
}

class GptOssModel final : public KvModel {
 public:
  GptOssModel(std::shared_ptr<kernels::Ops> ops, Config config,
              ModelLayout layout, ModelTensors tensors, Weights weights,
              DType kv_dtype)
      : KvModel(std::move(ops), SpecOf(config, std::move(layout), kv_dtype),
                std::move(tensors), std::move(weights.outer),
                std::move(weights.digest)),
        c_(std::move(config)),
        layers_(std::move(weights.layers)),
        experts_(c_, dtype(), &this->ops()),
        router_(&this->ops()) {}

  uint64_t WorkBytes() const override {
    const int64_t row = WorkFloats() + c_.n_experts + experts_.WorkFloats();
    return kMaxRows * static_cast<uint64_t>(row) * sizeof(float);
  }

 private:
  void RunLayer(uint32_t l, const RowBatch& batch) override {
    const LayerWeights& w = layers_[l];
    WriteKv(l, batch, w.attention);
    const std::vector<RowRun> runs = batch.Running(l);
    if (runs.empty()) return;
    AddTo(runs, Attend(l, batch, runs, w.attention));
    const uint64_t total = CountRows(runs);
    Activations& h = NormRows(runs, w.experts.norm);
    Multiply(h.data(), total, w.experts.router, &w.experts.router_bias,
             &router_);
    AddTo(runs, experts_.Run(w.experts, static_cast<int64_t>(total), &router_,
                             h.data()));
  }

  // x += y, y being the rows of `runs` one after the other.
  void AddTo(std::span<const RowRun> runs, const Floats& y) {
    const float* from = y.data();
    for (const RowRun& run : runs) {
      const auto n = static_cast<int64_t>(run.n) * c_.hidden_size;
      ops().Add({.x = X(run.row), .y = from, .n = n});
      from += n;
    }
  }

  const Config c_;
  const std::vector<LayerWeights> layers_;
  Experts experts_;
  // The router's: [rows, n_experts].
  Floats router_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& directory,
                                            std::string_view config_json,
                                            const ModelOptions& options) {
  TORPOR_ASSIGN_OR_RETURN(const nlohmann::json json,
                          ParseConfigJson(config_json, "config.json"));
  TORPOR_ASSIGN_OR_RETURN(Config config, ParseConfig(json));
  TORPOR_ASSIGN_OR_RETURN(ModelTensors tensors, ModelTensors::Open(directory));
  TORPOR_ASSIGN_OR_RETURN(const DType stored, StoredDType(tensors));
  TORPOR_ASSIGN_OR_RETURN(const KvDTypes dtypes,
                          PickKvDTypes(options, config.dtype, stored));
  TORPOR_ASSIGN_OR_RETURN(ModelLayout layout, LayoutOf(config, dtypes.kv));
  std::shared_ptr<kernels::Ops> ops = OpsOf(options);
  kernels::CpuOps host(options.isa, options.n_threads);
  TORPOR_ASSIGN_OR_RETURN(
      Weights weights,
      LoadWeights(config, tensors, dtypes.compute, &host, ops.get()));
  return std::unique_ptr<Model>(std::make_unique<GptOssModel>(
      std::move(ops), std::move(config), std::move(layout), std::move(tensors),
      std::move(weights), dtypes.kv));
}

}  // namespace torpor::replay::gpt_oss
