// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/weights.h"

#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "kernels/bf16.h"

namespace torpor::replay::gemma3 {
namespace {

using kernels::Bf16;
using kernels::DType;
using kernels::PackedMatrix;

// Where the text model's tensors begin, in the order in which they are tried.
constexpr const char* kPrefixes[] = {"language_model.model.",
                                     "model.language_model.", "model.", ""};
constexpr const char* kEmbedding = "embed_tokens.weight";

absl::StatusOr<std::string> FindPrefix(const ModelTensors& tensors) {
  for (const char* prefix : kPrefixes) {
    if (tensors.Has(std::string(prefix) + kEmbedding)) return prefix;
  }
  return absl::NotFoundError(absl::StrFormat(
      "tensor '%s': not among the weights under any known prefix", kEmbedding));
}

// Loads tensors by their names inside the text model and remembers them for
// the digest.
class Loader {
 public:
  Loader(const ModelTensors& tensors, std::string prefix, DType dtype)
      : tensors_(tensors), prefix_(std::move(prefix)), dtype_(dtype) {}

  absl::StatusOr<TensorView> Get(const std::string& name,
                                 const std::vector<int64_t>& shape) {
    std::string full = prefix_ + name;
    // The head stands beside the text model, not in it.
    if (name.starts_with("lm_head.") && !tensors_.Has(full)) {
      full = tensors_.Has("language_model." + name) ? "language_model." + name
                                                    : name;
    }
    TORPOR_ASSIGN_OR_RETURN(TensorView view, tensors_.Get(full));
    if (view.shape != shape) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor '%s': got shape [%s], wanted [%s]", full,
          absl::StrJoin(view.shape, ", "), absl::StrJoin(shape, ", ")));
    }
    if (view.dtype != "BF16" && view.dtype != "F32") {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor '%s': got dtype %s, wanted BF16 or F32", full, view.dtype));
    }
    used_[name] = view;
    return view;
  }

  absl::StatusOr<std::vector<float>> Vector(const std::string& name,
                                            int64_t n) {
    TORPOR_ASSIGN_OR_RETURN(const TensorView view, Get(name, {n}));
    std::vector<float> out(static_cast<size_t>(n));
    if (view.dtype == "F32") {
      std::memcpy(out.data(), view.bytes.data(), view.bytes.size());
    } else {
      std::vector<Bf16> raw(out.size());
      std::memcpy(raw.data(), view.bytes.data(), view.bytes.size());
      for (size_t i = 0; i < out.size(); ++i) out[i] = kernels::ToFloat(raw[i]);
    }
    return out;
  }

  struct Part {
    std::string name;
    int64_t rows;
  };

  // Linear layers of equal input as one matrix, their outputs in order.
  absl::StatusOr<PackedMatrix> Matrix(const std::vector<Part>& parts,
                                      int64_t columns) {
    // Every shape is checked before memory is taken for it.
    std::vector<TensorView> views;
    int64_t rows = 0;
    for (const Part& part : parts) {
      TORPOR_ASSIGN_OR_RETURN(TensorView view,
                              Get(part.name + ".weight", {part.rows, columns}));
      views.push_back(std::move(view));
      rows += part.rows;
    }
    PackedMatrix out = PackedMatrix::Empty(rows, columns, dtype_);
    int64_t at = 0;
    for (const TensorView& view : views) {
      if (view.dtype == "F32") {
        CopyRows<float>(view, at, &out);
      } else {
        CopyRows<Bf16>(view, at, &out);
      }
      at += view.shape[0];
    }
    return out;
  }

  absl::StatusOr<std::vector<float>> Bias(const std::vector<Part>& parts) {
    std::vector<float> out;
    for (const Part& part : parts) {
      TORPOR_ASSIGN_OR_RETURN(const std::vector<float> one,
                              Vector(part.name + ".bias", part.rows));
      out.insert(out.end(), one.begin(), one.end());
    }
    return out;
  }

  [[nodiscard]] std::string Digest() const { return DigestTensors(used_); }

 private:
  // Row by row through aligned memory: a tensor may stand at an odd offset of
  // its file.
  template <typename Source>
  static void CopyRows(const TensorView& view, int64_t at, PackedMatrix* out) {
    std::vector<Source> row(static_cast<size_t>(view.shape[1]));
    const size_t row_bytes = row.size() * sizeof(Source);
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      std::memcpy(row.data(), &view.bytes[static_cast<size_t>(i) * row_bytes],
                  row_bytes);
      out->SetRows(at + i, row.data(), 1);
    }
  }

  const ModelTensors& tensors_;
  const std::string prefix_;
  const DType dtype_;
  std::map<std::string, TensorView> used_;
};

absl::StatusOr<LayerWeights> LoadLayer(const Config& c, int64_t layer,
                                       Loader* loader) {
  const std::string at = absl::StrFormat("layers.%d.", layer);
  const int64_t q_rows = c.n_heads * c.head_dim;
  const int64_t kv_rows = c.n_kv_heads * c.head_dim;
  const std::vector<Loader::Part> q = {{at + "self_attn.q_proj", q_rows}};
  const std::vector<Loader::Part> kv = {{at + "self_attn.k_proj", kv_rows},
                                        {at + "self_attn.v_proj", kv_rows}};
  const std::vector<Loader::Part> o = {
      {at + "self_attn.o_proj", c.hidden_size}};
  LayerWeights w;
  for (const auto& [name, out] :
       {std::pair{"input_layernorm.weight", &w.input_norm},
        std::pair{"post_attention_layernorm.weight", &w.post_attention_norm},
        std::pair{"pre_feedforward_layernorm.weight", &w.pre_feedforward_norm},
        std::pair{"post_feedforward_layernorm.weight",
                  &w.post_feedforward_norm}}) {
    TORPOR_ASSIGN_OR_RETURN(*out, loader->Vector(at + name, c.hidden_size));
  }
  TORPOR_ASSIGN_OR_RETURN(
      w.q_norm, loader->Vector(at + "self_attn.q_norm.weight", c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(
      w.k_norm, loader->Vector(at + "self_attn.k_norm.weight", c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(w.q, loader->Matrix(q, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.kv, loader->Matrix(kv, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.o, loader->Matrix(o, q_rows));
  if (c.attention_bias) {
    TORPOR_ASSIGN_OR_RETURN(w.q_bias, loader->Bias(q));
    TORPOR_ASSIGN_OR_RETURN(w.kv_bias, loader->Bias(kv));
    TORPOR_ASSIGN_OR_RETURN(w.o_bias, loader->Bias(o));
  }
  TORPOR_ASSIGN_OR_RETURN(
      w.gate_up, loader->Matrix({{at + "mlp.gate_proj", c.intermediate_size},
                                 {at + "mlp.up_proj", c.intermediate_size}},
                                c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.down, loader->Matrix({{at + "mlp.down_proj", c.hidden_size}},
                             c.intermediate_size));
  return w;
}

}  // namespace

absl::StatusOr<DType> StoredDType(const ModelTensors& tensors) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(tensors));
  TORPOR_ASSIGN_OR_RETURN(const TensorView view,
                          tensors.Get(prefix + kEmbedding));
  return view.dtype == "BF16" ? DType::kBf16 : DType::kF32;
}

absl::StatusOr<Weights> LoadWeights(const Config& c,
                                    const ModelTensors& tensors, DType dtype) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(tensors));
  Loader loader(tensors, prefix, dtype);
  Weights w;
  w.dtype = dtype;
  TORPOR_ASSIGN_OR_RETURN(
      w.embedding, loader.Get(kEmbedding, {c.vocab_size, c.hidden_size}));
  w.embedding_scale = std::sqrt(static_cast<float>(c.hidden_size));
  if (dtype == DType::kBf16) {
    w.embedding_scale = kernels::RoundToBf16(w.embedding_scale);
  }
  for (int64_t l = 0; l < c.n_layers; ++l) {
    TORPOR_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(c, l, &loader));
    w.layers.push_back(std::move(layer));
  }
  TORPOR_ASSIGN_OR_RETURN(w.final_norm,
                          loader.Vector("norm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.head, loader.Matrix({{c.tied_embeddings ? "embed_tokens" : "lm_head",
                              c.vocab_size}},
                            c.hidden_size));
  w.digest = loader.Digest();
  return w;
}

}  // namespace torpor::replay::gemma3
