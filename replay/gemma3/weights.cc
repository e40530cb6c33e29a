// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/weights.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/bf16.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::gemma3 {
namespace {

using kernels::DType;

// Where the text model's tensors begin, in the order in which they are tried.
constexpr const char* kPrefixes[] = {"language_model.model.",
                                     "model.language_model.", "model.", ""};
constexpr const char* kHead = "lm_head.weight";

absl::StatusOr<LayerWeights> LoadLayer(const Config& c, int64_t layer,
                                       WeightReader* reader) {
  const std::string at = absl::StrFormat("layers.%d.", layer);
  LayerWeights w(reader->ops());
  TORPOR_ASSIGN_OR_RETURN(w.attention,
                          LoadAttentionWeights({.hidden_size = c.hidden_size,
                                                .n_heads = c.n_heads,
                                                .n_kv_heads = c.n_kv_heads,
                                                .head_dim = c.head_dim,
                                                .biases = c.attention_bias,
                                                .head_norms = true},
                                               at, reader));
  for (const auto& [name, out] :
       {std::pair{"post_attention_layernorm.weight", &w.post_attention_norm},
        std::pair{"pre_feedforward_layernorm.weight", &w.pre_feedforward_norm},
        std::pair{"post_feedforward_layernorm.weight",
                  &w.post_feedforward_norm}}) {
    TORPOR_ASSIGN_OR_RETURN(*out, reader->Vector(at + name, c.hidden_size));
  }
  TORPOR_ASSIGN_OR_RETURN(
      w.gate_up, reader->Matrix({{at + "mlp.gate_proj", c.intermediate_size},
                                 {at + "mlp.up_proj", c.intermediate_size}},
                                c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.down, reader->Matrix({{at + "mlp.down_proj", c.hidden_size}},
                             c.intermediate_size));
  return w;
}

}  // namespace

absl::StatusOr<DType> StoredDType(const ModelTensors& tensors) {
  return EmbeddingDType(tensors, kPrefixes);
}

absl::StatusOr<Weights> LoadWeights(const Config& c,
                                    const ModelTensors& tensors, DType dtype,
                                    kernels::Ops* ops) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, kPrefixes, kEmbedding));
  TensorLoader loader(tensors, prefix);
  // The head stands beside the text model, not in it.
  if (!loader.Has(kHead)) {
    const std::string nested = std::string("language_model.") + kHead;
    loader.Rename(kHead, tensors.Has(nested) ? nested : kHead);
  }
  WeightReader reader(&loader, dtype, ops);
  Weights w(ops);
  TORPOR_ASSIGN_OR_RETURN(
      w.outer, LoadOuterWeights(c.vocab_size, c.hidden_size, c.tied_embeddings,
                                &reader));
  w.outer.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  if (dtype == DType::kBf16) {
    w.outer.embedding_scale = kernels::RoundToBf16(w.outer.embedding_scale);
  }
  for (int64_t l = 0; l < c.n_layers; ++l) {
    TORPOR_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(c, l, &reader));
    w.layers.push_back(std::move(layer));
  }
  TORPOR_RETURN_IF_ERROR(ops->Finish());
  w.digest = loader.Digest();
  return w;
}

}  // namespace torpor::replay::gemma3
