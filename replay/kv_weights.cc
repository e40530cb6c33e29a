// SPDX-License-Identifier: Apache-2.0

#include "replay/kv_weights.h"

#include <utility>

#include "base/status.h"

namespace torpor::replay {

using kernels::DType;

absl::StatusOr<Floats> WeightReader::Vector(const std::string& name,
                                            int64_t n) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                          loader_.Vector(name, n));
  return Floats(&ops_, values);
}

absl::StatusOr<Floats> WeightReader::Table(const std::string& name, int64_t n,
                                           int64_t columns) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                          loader_.Table(name, n, columns));
  return Floats(&ops_, values);
}

absl::StatusOr<Floats> WeightReader::Bias(
    const std::vector<TensorLoader::Part>& parts) {
  TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values, loader_.Bias(parts));
  return Floats(&ops_, values);
}

absl::StatusOr<kernels::PackedMatrix> WeightReader::Matrix(
    const std::vector<TensorLoader::Part>& parts, int64_t columns) {
  TORPOR_ASSIGN_OR_RETURN(kernels::PackedMatrix matrix,
                          loader_.Matrix(parts, columns, dtype_));
  return ops_.Place(std::move(matrix));
}

absl::StatusOr<kernels::DType> EmbeddingDType(
    const ModelTensors& tensors, std::span<const char* const> prefixes) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, prefixes, kEmbedding));
  return DTypeOf(tensors, prefix + kEmbedding);
}

absl::StatusOr<OuterWeights> LoadOuterWeights(int64_t vocab_size,
                                              int64_t hidden_size, bool tied,
                                              WeightReader* reader) {
  OuterWeights w(reader->ops());
  w.dtype = reader->dtype();
  TORPOR_ASSIGN_OR_RETURN(
      const TensorView embedding,
      reader->tensors().Get(kEmbedding, {vocab_size, hidden_size}));
  w.embedding = reader->ops()->Place(embedding.bytes);
  w.embedding_dtype = embedding.dtype == "BF16" ? DType::kBf16 : DType::kF32;
  TORPOR_ASSIGN_OR_RETURN(w.final_norm,
                          reader->Vector("norm.weight", hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.head, reader->Matrix({{tied ? "embed_tokens" : "lm_head", vocab_size}},
                             hidden_size));
  return w;
}

absl::StatusOr<AttentionWeights> LoadAttentionWeights(
    const AttentionWeightsShape& shape, const std::string& at,
    WeightReader* reader) {
  const std::string in = at + "self_attn.";
  const int64_t q_rows = shape.n_heads * shape.head_dim;
  const int64_t kv_rows = shape.n_kv_heads * shape.head_dim;
  const std::vector<TensorLoader::Part> q = {{in + "q_proj", q_rows}};
  const std::vector<TensorLoader::Part> kv = {{in + "k_proj", kv_rows},
                                              {in + "v_proj", kv_rows}};
  const std::vector<TensorLoader::Part> o = {
      {in + "o_proj", shape.hidden_size}};
  AttentionWeights w(reader->ops());
  TORPOR_ASSIGN_OR_RETURN(
      w.norm, reader->Vector(at + "input_layernorm.weight", shape.hidden_size));
  if (shape.head_norms) {
    TORPOR_ASSIGN_OR_RETURN(
        w.q_norm, reader->Vector(in + "q_norm.weight", shape.head_dim));
    TORPOR_ASSIGN_OR_RETURN(
        w.k_norm, reader->Vector(in + "k_norm.weight", shape.head_dim));
  }
  TORPOR_ASSIGN_OR_RETURN(w.q, reader->Matrix(q, shape.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.kv, reader->Matrix(kv, shape.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.o, reader->Matrix(o, q_rows));
  if (shape.biases) {
    TORPOR_ASSIGN_OR_RETURN(w.q_bias, reader->Bias(q));
    TORPOR_ASSIGN_OR_RETURN(w.kv_bias, reader->Bias(kv));
    TORPOR_ASSIGN_OR_RETURN(w.o_bias, reader->Bias(o));
  }
  if (shape.sinks) {
    TORPOR_ASSIGN_OR_RETURN(w.sinks,
                            reader->Vector(in + "sinks", shape.n_heads));
  }
  return w;
}

}  // namespace torpor::replay
