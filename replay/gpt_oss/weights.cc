// SPDX-License-Identifier: Apache-2.0

#include "replay/gpt_oss/weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/bf16.h"
#include "kernels/weight_codec.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::gpt_oss {
namespace {

using kernels::DType;
using kernels::PackedMatrix;

constexpr const char* kPrefixes[] = {"model.", ""};
constexpr const char* kHead = "lm_head.weight";
// Columns of an MXFP4 scale.
constexpr int64_t kScaleColumns = 32;
// Rows that are decoded at a time.
constexpr int64_t kBandRows = 32;

// A layer's matrices [n, k], one an expert, in one tensor or as MXFP4.
struct ExpertStack {
  int64_t n = 0;
  int64_t k = 0;
  bool packed = false;
  // Packed: [experts, n, k / 32, 16]; else [experts, k, n].
  TensorView values;
  TensorView scales;
};

absl::StatusOr<ExpertStack> FindStack(const std::string& name,
                                      int64_t n_experts, int64_t n, int64_t k,
                                      TensorLoader* loader) {
  ExpertStack stack{.n = n, .k = k, .packed = loader->Has(name + "_blocks")};
  if (!stack.packed) {
    TORPOR_ASSIGN_OR_RETURN(stack.values, loader->Get(name, {n_experts, k, n}));
    return stack;
  }
  if (k % kScaleColumns != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensor '%s_blocks': %d columns in MXFP4, wanted a multiple of %d",
        name, k, kScaleColumns));
  }
  const int64_t n_scales = k / kScaleColumns;
  TORPOR_ASSIGN_OR_RETURN(
      stack.values,
      loader->Get(name + "_blocks", {n_experts, n, n_scales, kScaleColumns / 2},
                  {"U8"}));
  TORPOR_ASSIGN_OR_RETURN(
      stack.scales,
      loader->Get(name + "_scales", {n_experts, n, n_scales}, {"U8"}));
  return stack;
}

// Rows first, first + step, ... of an expert's matrix.
struct Band {
  int64_t expert = 0;
  int64_t first = 0;
  int64_t step = 1;
  int64_t n_rows = 0;
};

// Of a tensor [experts, k, n], whose elements may stand at odd addresses.
template <typename Source>
void TransposeBand(const ExpertStack& stack, const Band& band, float* out) {
  const uint8_t* from =
      stack.values.bytes.data() +
      static_cast<size_t>(band.expert * stack.k * stack.n + band.first) *
          sizeof(Source);
  const size_t step = static_cast<size_t>(band.step) * sizeof(Source);
  for (int64_t column = 0; column < stack.k; ++column) {
    for (int64_t row = 0; row < band.n_rows; ++row) {
      Source value;
      std::memcpy(&value, from + static_cast<size_t>(row) * step,
                  sizeof(value));
      if constexpr (sizeof(Source) == 2) {
        out[row * stack.k + column] = kernels::ToFloat(value);
      } else {
        out[row * stack.k + column] = value;
      }
    }
    from += static_cast<size_t>(stack.n) * sizeof(Source);
  }
}

// [band.n_rows, k] floats.
void ReadBand(const ExpertStack& stack, const Band& band, kernels::CpuOps* host,
              float* out) {
  if (!stack.packed) {
    stack.values.dtype == "BF16"
        ? TransposeBand<kernels::Bf16>(stack, band, out)
        : TransposeBand<float>(stack, band, out);
    return;
  }
  const int64_t row = band.expert * stack.n + band.first;
  const int64_t n_scales = stack.k / kScaleColumns;
  host->DecodeWeights({.format = kernels::WeightFormat::kFp4,
                       .codes = stack.values.bytes.data() + row * stack.k / 2,
                       .codes_stride = band.step * stack.k / 2,
                       .scales = stack.scales.bytes.data() + row * n_scales,
                       .scales_stride = band.step * n_scales,
                       .block_columns = kScaleColumns,
                       .n_rows = band.n_rows,
                       .dim = stack.k,
                       .out = out,
                       .out_stride = stack.k});
}

// An expert's matrix, with rows that take turns one kind after the other.
PackedMatrix PackExpert(const ExpertStack& stack, int64_t expert,
                        int64_t n_turns, DType dtype, kernels::CpuOps* host) {
  PackedMatrix matrix = PackedMatrix::Empty(stack.n, stack.k, dtype);
  const int64_t n = stack.n / n_turns;
  std::vector<float> band(static_cast<size_t>(kBandRows * stack.k));
  for (int64_t turn = 0; turn < n_turns; ++turn) {
    for (int64_t row = 0; row < n; row += kBandRows) {
      const int64_t n_rows = std::min(kBandRows, n - row);
      ReadBand(stack,
               {.expert = expert,
                .first = row * n_turns + turn,
                .step = n_turns,
                .n_rows = n_rows},
               host, band.data());
      matrix.SetRows(turn * n + row, band.data(), n_rows);
    }
  }
  return matrix;
}

absl::StatusOr<std::vector<PackedMatrix>> LoadStack(
    const std::string& name, int64_t n_experts, int64_t n, int64_t k,
    int64_t n_turns, kernels::CpuOps* host, WeightReader* reader) {
  TORPOR_ASSIGN_OR_RETURN(const ExpertStack stack,
                          FindStack(name, n_experts, n, k, &reader->tensors()));
  std::vector<PackedMatrix> matrices;
  for (int64_t e = 0; e < n_experts; ++e) {
    matrices.push_back(reader->ops()->Place(
        PackExpert(stack, e, n_turns, reader->dtype(), host)));
  }
  return matrices;
}

// [experts, 2 * dim], gate and up in turns, as gate's and then up's.
std::vector<float> InHalves(const std::vector<float>& turns, int64_t dim) {
  std::vector<float> halves(turns.size());
  const auto width = static_cast<size_t>(dim);
  for (size_t i = 0; i < turns.size(); ++i) {
    const size_t column = i % (2 * width);
    halves[i - column + column % 2 * width + column / 2] = turns[i];
  }
  return halves;
}

absl::StatusOr<ExpertWeights> LoadExperts(const Config& c,
                                          const std::string& at,
                                          kernels::CpuOps* host,
                                          WeightReader* reader) {
  const std::string in = at + "mlp.experts.";
  const int64_t dim = c.intermediate_size;
  const std::vector<TensorLoader::Part> router = {
      {at + "mlp.router", c.n_experts}};
  ExpertWeights w(reader->ops());
  TORPOR_ASSIGN_OR_RETURN(
      w.norm,
      reader->Vector(at + "post_attention_layernorm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.router, reader->Matrix(router, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.router_bias, reader->Bias(router));
  TORPOR_ASSIGN_OR_RETURN(w.gate_up,
                          LoadStack(in + "gate_up_proj", c.n_experts, 2 * dim,
                                    c.hidden_size, 2, host, reader));
  TORPOR_ASSIGN_OR_RETURN(
      const std::vector<float> gate_up_bias,
      reader->tensors().Table(in + "gate_up_proj_bias", c.n_experts, 2 * dim));
  w.gate_up_bias = Floats(reader->ops(), InHalves(gate_up_bias, dim));
  TORPOR_ASSIGN_OR_RETURN(
      w.down, LoadStack(in + "down_proj", c.n_experts, c.hidden_size, dim, 1,
                        host, reader));
  TORPOR_ASSIGN_OR_RETURN(
      w.down_bias,
      reader->Table(in + "down_proj_bias", c.n_experts, c.hidden_size));
  return w;
}

}  // namespace

absl::StatusOr<DType> StoredDType(const ModelTensors& tensors) {
  return EmbeddingDType(tensors, kPrefixes);
}

absl::StatusOr<Weights> LoadWeights(const Config& c,
                                    const ModelTensors& tensors, DType dtype,
                                    kernels::CpuOps* host, kernels::Ops* ops) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, kPrefixes, kEmbedding));
  TensorLoader loader(tensors, prefix);
  // The head stands beside the model, not in it.
  loader.Rename(kHead, kHead);
  WeightReader reader(&loader, dtype, ops);
  Weights w(ops);
  TORPOR_ASSIGN_OR_RETURN(w.outer,
                          LoadOuterWeights(c.stack.vocab_size, c.hidden_size,
                                           c.tied_embeddings, &reader));
  for (int64_t l = 0; l < c.n_layers(); ++l) {
    const std::string at = absl::StrFormat("layers.%d.", l);
    LayerWeights layer(ops);
    TORPOR_ASSIGN_OR_RETURN(layer.attention,
                            LoadAttentionWeights({.hidden_size = c.hidden_size,
                                                  .n_heads = c.n_heads,
                                                  .n_kv_heads = c.n_kv_heads(),
                                                  .head_dim = c.head_dim(),
                                                  .biases = c.attention_bias,
                                                  .sinks = true},
                                                 at, &reader));
    TORPOR_ASSIGN_OR_RETURN(layer.experts, LoadExperts(c, at, host, &reader));
    w.layers.push_back(std::move(layer));
  }
  TORPOR_RETURN_IF_ERROR(ops->Finish());
  w.digest = loader.Digest();
  return w;
}

}  // namespace torpor::replay::gpt_oss
