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
constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// Tensors of a layer, put where `ops` reads them.
class Reader {
 public:
  Reader(TensorLoader* loader, DType dtype, kernels::Ops* ops)
      : loader_(*loader), dtype_(dtype), ops_(*ops) {}

  absl::StatusOr<Floats> Vector(const std::string& name, int64_t n) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                            loader_.Vector(name, n));
    return Floats(&ops_, values);
  }
  absl::StatusOr<Floats> Bias(const std::vector<TensorLoader::Part>& parts) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                            loader_.Bias(parts));
    return Floats(&ops_, values);
  }
  absl::StatusOr<kernels::PackedMatrix> Matrix(
      const std::vector<TensorLoader::Part>& parts, int64_t columns) {
    TORPOR_ASSIGN_OR_RETURN(kernels::PackedMatrix matrix,
                            loader_.Matrix(parts, columns, dtype_));
    return ops_.Place(std::move(matrix));
  }

 private:
  TensorLoader& loader_;
  const DType dtype_;
  kernels::Ops& ops_;
};

absl::StatusOr<LayerWeights> LoadLayer(const Config& c, int64_t layer,
                                       kernels::Ops* ops, Reader* reader) {
  const std::string at = absl::StrFormat("layers.%d.", layer);
  const int64_t q_rows = c.n_heads * c.head_dim;
  const int64_t kv_rows = c.n_kv_heads * c.head_dim;
  const std::vector<TensorLoader::Part> q = {{at + "self_attn.q_proj", q_rows}};
  const std::vector<TensorLoader::Part> kv = {
      {at + "self_attn.k_proj", kv_rows}, {at + "self_attn.v_proj", kv_rows}};
  const std::vector<TensorLoader::Part> o = {
      {at + "self_attn.o_proj", c.hidden_size}};
  LayerWeights w(ops);
  for (const auto& [name, out] :
       {std::pair{"input_layernorm.weight", &w.input_norm},
        std::pair{"post_attention_layernorm.weight", &w.post_attention_norm},
        std::pair{"pre_feedforward_layernorm.weight", &w.pre_feedforward_norm},
        std::pair{"post_feedforward_layernorm.weight",
                  &w.post_feedforward_norm}}) {
    TORPOR_ASSIGN_OR_RETURN(*out, reader->Vector(at + name, c.hidden_size));
  }
  TORPOR_ASSIGN_OR_RETURN(
      w.q_norm, reader->Vector(at + "self_attn.q_norm.weight", c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(
      w.k_norm, reader->Vector(at + "self_attn.k_norm.weight", c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(w.q, reader->Matrix(q, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.kv, reader->Matrix(kv, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.o, reader->Matrix(o, q_rows));
  if (c.attention_bias) {
    TORPOR_ASSIGN_OR_RETURN(w.q_bias, reader->Bias(q));
    TORPOR_ASSIGN_OR_RETURN(w.kv_bias, reader->Bias(kv));
    TORPOR_ASSIGN_OR_RETURN(w.o_bias, reader->Bias(o));
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
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, kPrefixes, kEmbedding));
  return DTypeOf(tensors, prefix + kEmbedding);
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
  Reader reader(&loader, dtype, ops);
  Weights w(ops);
  w.dtype = dtype;
  TORPOR_ASSIGN_OR_RETURN(
      const TensorView embedding,
      loader.Get(kEmbedding, {c.vocab_size, c.hidden_size}));
  w.embedding = ops->Place(embedding.bytes);
  w.embedding_dtype = embedding.dtype == "BF16" ? DType::kBf16 : DType::kF32;
  w.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  if (dtype == DType::kBf16) {
    w.embedding_scale = kernels::RoundToBf16(w.embedding_scale);
  }
  for (int64_t l = 0; l < c.n_layers; ++l) {
    TORPOR_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(c, l, ops, &reader));
    w.layers.push_back(std::move(layer));
  }
  TORPOR_ASSIGN_OR_RETURN(w.final_norm,
                          reader.Vector("norm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.head, reader.Matrix({{c.tied_embeddings ? "embed_tokens" : "lm_head",
                              c.vocab_size}},
                            c.hidden_size));
  TORPOR_RETURN_IF_ERROR(ops->Finish());
  w.digest = loader.Digest();
  return w;
}

}  // namespace torpor::replay::gemma3
