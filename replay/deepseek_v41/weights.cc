// SPDX-License-Identifier: Apache-2.0

#include "replay/deepseek_v41/weights.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/weight_codec.h"
#include "replay/fingerprint.h"
#include "replay/tensor_loader.h"

namespace torpor::replay::deepseek_v41 {
namespace {

using kernels::DType;
using kernels::PackedMatrix;

constexpr const char* kPrefixes[] = {"", "model.", "model.language_model.",
                                     "language_model.model."};
constexpr const char* kEmbedding = "embed.weight";
constexpr const char* kHead = "head.weight";
constexpr int64_t kScaleSize = 32;

int64_t Blocks(int64_t n) { return (n + kScaleSize - 1) / kScaleSize; }

// Loads linear layers in every format that the release or a plain copy of it
// has, and vectors, into a backend's memory.
class LinearLoader {
 public:
  LinearLoader(TensorLoader* loader, DType compute, kernels::CpuOps* host,
               kernels::Ops* ops)
      : loader_(*loader), compute_(compute), host_(*host), ops_(*ops) {}

  TensorLoader& tensors() { return loader_; }
  kernels::Ops* ops() { return &ops_; }

  absl::StatusOr<Floats> Vector(const std::string& name, int64_t n) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> values,
                            loader_.Vector(name, n));
    return Floats(&ops_, values);
  }

  // `name`.weight [n, k]. `keep_f32`: stays F32 where it is stored so.
  absl::StatusOr<Linear> Load(const std::string& name, int64_t n, int64_t k,
                              bool keep_f32 = false) {
    return Stack({{name, n}}, k, keep_f32);
  }

  // Several of equal input as one, their outputs in order.
  absl::StatusOr<Linear> Stack(const std::vector<TensorLoader::Part>& parts,
                               int64_t k, bool keep_f32 = false) {
    TORPOR_ASSIGN_OR_RETURN(const std::string dtype,
                            loader_.DTypeNamed(parts[0].name + ".weight"));
    Linear linear;
    if (dtype == "F32" || dtype == "BF16") {
      const bool f32 = keep_f32 && dtype == "F32";
      TORPOR_ASSIGN_OR_RETURN(
          PackedMatrix w,
          loader_.Matrix(parts, k, f32 ? DType::kF32 : compute_));
      linear.w = ops_.Place(std::move(w));
      return linear;
    }
    linear.quantised_input = true;
    // Every shape is checked before memory is taken for it.
    std::vector<Quantised> all;
    int64_t rows = 0;
    for (const TensorLoader::Part& part : parts) {
      TORPOR_ASSIGN_OR_RETURN(Quantised one, Find(part, k));
      all.push_back(std::move(one));
      rows += part.rows;
    }
    PackedMatrix w = PackedMatrix::Empty(rows, k, compute_);
    int64_t at = 0;
    for (const Quantised& one : all) {
      Decode(one, k, [&](int64_t row, const float* band, int64_t n) {
        w.SetRows(at + row, band, n);
      });
      at += one.rows;
    }
    linear.w = ops_.Place(std::move(w));
    return linear;
  }

  // `name`.weight [groups * n, k], each group a layer of its own input; its
  // inputs are not rounded, whatever the weights' format.
  absl::StatusOr<std::vector<Linear>> Groups(const std::string& name,
                                             int64_t groups, int64_t n,
                                             int64_t k) {
    TORPOR_ASSIGN_OR_RETURN(const std::vector<float> rows,
                            FloatsOf(name, groups * n, k));
    std::vector<Linear> out;
    for (int64_t g = 0; g < groups; ++g) {
      Linear linear;
      linear.w = ops_.Place(
          PackedMatrix::Pack(rows.data() + g * n * k, n, k, compute_));
      out.push_back(std::move(linear));
    }
    return out;
  }

 private:
  // `name`.weight in any format, as floats.
  absl::StatusOr<std::vector<float>> FloatsOf(const std::string& name,
                                              int64_t n, int64_t k) {
    TORPOR_ASSIGN_OR_RETURN(const std::string dtype,
                            loader_.DTypeNamed(name + ".weight"));
    if (dtype == "F32" || dtype == "BF16") {
      return loader_.Table(name + ".weight", n, k);
    }
    TORPOR_ASSIGN_OR_RETURN(const Quantised all, Find({name, n}, k));
    std::vector<float> out(static_cast<size_t>(n * k));
    Decode(all, k, [&](int64_t row, const float* band, int64_t rows) {
      std::copy_n(band, rows * k, out.data() + row * k);
    });
    return out;
  }

  using BandSink =
      std::function<void(int64_t row, const float* band, int64_t n)>;

  // Weights in codes and scales.
  struct Quantised {
    int64_t rows = 0;
    bool fp4 = false;
    // Rows of a scale.
    int64_t block_rows = 1;
    TensorView codes;
    TensorView scales;
  };

  absl::StatusOr<Quantised> Find(const TensorLoader::Part& part, int64_t k) {
    if (k % kScaleSize != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor '%s.weight': %d columns of quantised weights, wanted a "
          "multiple of %d",
          part.name, k, kScaleSize));
    }
    TORPOR_ASSIGN_OR_RETURN(const std::string dtype,
                            loader_.DTypeNamed(part.name + ".weight"));
    Quantised q;
    q.rows = part.rows;
    q.fp4 = dtype == "U8" || dtype == "I8";
    TORPOR_ASSIGN_OR_RETURN(q.codes, loader_.Get(part.name + ".weight",
                                                 {part.rows, q.fp4 ? k / 2 : k},
                                                 {"F8_E4M3", "U8", "I8"}));
    // FP4 has a scale per row and 32 columns; FP8 one per 32x32 or 1x32.
    TORPOR_ASSIGN_OR_RETURN(const std::vector<int64_t> shape,
                            loader_.ShapeNamed(part.name + ".scale"));
    const bool per_row = q.fp4 || (!shape.empty() && shape[0] == part.rows &&
                                   part.rows != Blocks(part.rows));
    q.block_rows = per_row ? 1 : kScaleSize;
    TORPOR_ASSIGN_OR_RETURN(
        q.scales,
        loader_.Get(part.name + ".scale",
                    {per_row ? part.rows : Blocks(part.rows), Blocks(k)},
                    {"F8_E8M0"}));
    return q;
  }

  // Gives the rows of quantised weights band by band.
  void Decode(const Quantised& q, int64_t k, const BandSink& sink) {
    const int64_t codes_stride = q.fp4 ? k / 2 : k;
    std::vector<float> band(static_cast<size_t>(kScaleSize * k));
    for (int64_t row = 0; row < q.rows; row += kScaleSize) {
      const int64_t n = std::min(kScaleSize, q.rows - row);
      host_.DecodeWeights(
          {.format = q.fp4 ? kernels::WeightFormat::kFp4
                           : kernels::WeightFormat::kFp8,
           .codes = q.codes.bytes.data() + row * codes_stride,
           .codes_stride = codes_stride,
           .scales = q.scales.bytes.data() + row / q.block_rows * Blocks(k),
           .scales_stride = Blocks(k),
           .block_rows = q.block_rows,
           .block_columns = kScaleSize,
           .n_rows = n,
           .dim = k,
           .out = band.data(),
           .out_stride = k});
      sink(row, band.data(), n);
    }
  }

  TensorLoader& loader_;
  const DType compute_;
  kernels::CpuOps& host_;
  kernels::Ops& ops_;
};

absl::StatusOr<HyperWeights> LoadHyper(const Config& c, const std::string& name,
                                       LinearLoader* loader) {
  const int64_t width = c.n_streams * (2 + c.n_streams);
  HyperWeights w(loader->ops());
  // hc_attn_fn has no ".weight".
  TORPOR_ASSIGN_OR_RETURN(
      const TensorView fn,
      loader->tensors().Get(name + "_fn",
                            {width, c.n_streams * c.hidden_size}));
  PackedMatrix matrix =
      PackedMatrix::Empty(width, c.n_streams * c.hidden_size, DType::kF32);
  CopyRows(fn, 0, &matrix);
  w.fn.w = loader->ops()->Place(std::move(matrix));
  TORPOR_ASSIGN_OR_RETURN(w.base, loader->Vector(name + "_base", width));
  TORPOR_ASSIGN_OR_RETURN(w.scale, loader->Vector(name + "_scale", 3));
  return w;
}

absl::StatusOr<AttentionWeights> LoadAttention(const Config& c,
                                               const std::string& at,
                                               LinearLoader* loader) {
  AttentionWeights w(loader->ops());
  const std::string in = at + "attn.";
  TORPOR_ASSIGN_OR_RETURN(
      w.norm, loader->Vector(at + "attn_norm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.wq_a,
                          loader->Load(in + "wq_a", c.q_rank, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.q_norm,
                          loader->Vector(in + "q_norm.weight", c.q_rank));
  TORPOR_ASSIGN_OR_RETURN(
      w.wq_b, loader->Load(in + "wq_b", c.n_heads * c.head_dim, c.q_rank));
  TORPOR_ASSIGN_OR_RETURN(w.wkv,
                          loader->Load(in + "wkv", c.head_dim, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.kv_norm,
                          loader->Vector(in + "kv_norm.weight", c.head_dim));
  // The release's converter turns wo_a into BF16: its input is not rounded.
  TORPOR_ASSIGN_OR_RETURN(w.wo_a,
                          loader->Groups(in + "wo_a", c.o_groups, c.o_rank,
                                         c.n_heads * c.head_dim / c.o_groups));
  TORPOR_ASSIGN_OR_RETURN(
      w.wo_b, loader->Load(in + "wo_b", c.hidden_size, c.o_groups * c.o_rank));
  TORPOR_ASSIGN_OR_RETURN(w.sinks, loader->Vector(in + "attn_sink", c.n_heads));
  return w;
}

absl::StatusOr<CompressorWeights> LoadCompressor(const Config& c,
                                                 const std::string& at,
                                                 int64_t ratio,
                                                 LinearLoader* loader) {
  CompressorWeights w(loader->ops());
  const std::string in = at + "attn.compressor.";
  const std::string index = at + "attn.indexer.";
  // F32 in the release where entries are pooled, BF16 where they are not.
  TORPOR_ASSIGN_OR_RETURN(
      w.wkv, loader->Load(in + "wkv", c.head_dim, c.hidden_size, ratio > 1));
  if (ratio > 1) {
    TORPOR_ASSIGN_OR_RETURN(
        w.gate, loader->Load(in + "wgate", c.head_dim, c.hidden_size, true));
  }
  TORPOR_ASSIGN_OR_RETURN(w.norm,
                          loader->Vector(in + "norm.weight", c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(w.wk,
                          loader->Load(index + "wk", c.index_dim, c.head_dim));
  TORPOR_ASSIGN_OR_RETURN(w.k_norm,
                          loader->Vector(index + "k_norm.weight", c.index_dim));
  return w;
}

absl::StatusOr<IndexerWeights> LoadIndexer(const Config& c,
                                           const std::string& at,
                                           LinearLoader* loader) {
  IndexerWeights w;
  const std::string in = at + "attn.indexer.";
  TORPOR_ASSIGN_OR_RETURN(
      w.wq_b, loader->Load(in + "wq_b", c.index_heads * c.index_dim, c.q_rank));
  TORPOR_ASSIGN_OR_RETURN(
      w.weights_proj,
      loader->Load(in + "weights_proj", c.index_heads, c.hidden_size));
  return w;
}

absl::StatusOr<ExpertWeights> LoadExpert(const Config& c, const std::string& in,
                                         int64_t dim, LinearLoader* loader) {
  ExpertWeights w;
  TORPOR_ASSIGN_OR_RETURN(
      w.gate_up,
      loader->Stack({{in + "w1", dim}, {in + "w3", dim}}, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.down, loader->Load(in + "w2", c.hidden_size, dim));
  return w;
}

absl::StatusOr<FfnWeights> LoadFfn(const Config& c, const std::string& at,
                                   LinearLoader* loader) {
  FfnWeights w(loader->ops());
  TORPOR_ASSIGN_OR_RETURN(
      w.norm, loader->Vector(at + "ffn_norm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(w.router, loader->Load(at + "ffn.gate", c.n_experts,
                                                 c.hidden_size, true));
  TORPOR_ASSIGN_OR_RETURN(w.bias,
                          loader->Vector(at + "ffn.gate.bias", c.n_experts));
  for (int64_t e = 0; e < c.n_experts; ++e) {
    TORPOR_ASSIGN_OR_RETURN(
        ExpertWeights expert,
        LoadExpert(c, absl::StrFormat("%sffn.experts.%d.", at, e), c.expert_dim,
                   loader));
    // They meet their rows in one GEMM.
    if (e > 0 &&
        (expert.gate_up.quantised_input !=
             w.experts[0].gate_up.quantised_input ||
         expert.down.quantised_input != w.experts[0].down.quantised_input)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensors '%sffn.experts.%d': quantised otherwise than those of "
          "expert 0, wanted all experts alike",
          at, e));
    }
    w.experts.push_back(std::move(expert));
  }
  if (c.n_shared > 0) {
    TORPOR_ASSIGN_OR_RETURN(w.shared,
                            LoadExpert(c, at + "ffn.shared_experts.",
                                       c.n_shared * c.expert_dim, loader));
  }
  return w;
}

absl::StatusOr<EngramWeights> LoadEngram(const Config& c, const std::string& at,
                                         int64_t n_rows, LinearLoader* loader) {
  EngramWeights w(loader->ops());
  TensorLoader& tensors = loader->tensors();
  const std::string in = at + "engram.";
  TORPOR_ASSIGN_OR_RETURN(
      w.table, tensors.Get(in + "embed.weight", {n_rows, c.engram.head_dim},
                           {"F8_E4M3", "BF16", "F32"}));
  if (w.table.dtype == "F8_E4M3") {
    TORPOR_ASSIGN_OR_RETURN(
        w.scale, tensors.Get(in + "embed.scale",
                             {n_rows, Blocks(c.engram.head_dim)}, {"F8_E8M0"}));
  }
  TORPOR_ASSIGN_OR_RETURN(
      w.wkv, loader->Load(in + "wkv", (c.n_streams + 1) * c.hidden_size,
                          c.engram.n_rows() * c.engram.head_dim));
  TORPOR_ASSIGN_OR_RETURN(
      std::vector<float> qk,
      tensors.Table(in + "q_weight", c.n_streams, c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      const std::vector<float> k,
      tensors.Table(in + "k_weight", c.n_streams, c.hidden_size));
  for (size_t i = 0; i < k.size(); ++i) qk[i] *= k[i];
  w.qk = Floats(loader->ops(), qk);
  return w;
}

absl::StatusOr<LayerWeights> LoadLayer(const Config& c, int64_t l,
                                       LinearLoader* loader) {
  const std::string at = absl::StrFormat("layers.%d.", l);
  const LayerConfig& layer = c.layers[static_cast<size_t>(l)];
  LayerWeights w(loader->ops());
  if (layer.engram >= 0) {
    TORPOR_ASSIGN_OR_RETURN(
        w.engram,
        LoadEngram(c, at, c.engram_rows[static_cast<size_t>(layer.engram)],
                   loader));
  }
  TORPOR_ASSIGN_OR_RETURN(w.attn_hc, LoadHyper(c, at + "hc_attn", loader));
  TORPOR_ASSIGN_OR_RETURN(w.attn, LoadAttention(c, at, loader));
  if (layer.is_kv_source) {
    TORPOR_ASSIGN_OR_RETURN(w.compressor,
                            LoadCompressor(c, at, layer.ratio, loader));
  }
  if (layer.is_index_source) {
    TORPOR_ASSIGN_OR_RETURN(w.indexer, LoadIndexer(c, at, loader));
  }
  TORPOR_ASSIGN_OR_RETURN(w.ffn_hc, LoadHyper(c, at + "hc_ffn", loader));
  TORPOR_ASSIGN_OR_RETURN(w.ffn, LoadFfn(c, at, loader));
  return w;
}

}  // namespace

absl::StatusOr<DType> StoredDType(const ModelTensors& tensors) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, kPrefixes, kEmbedding));
  return DTypeOf(tensors, prefix + kEmbedding);
}

absl::StatusOr<Weights> LoadWeights(const Config& c,
                                    const ModelTensors& tensors,
                                    std::string_view engram_json, DType compute,
                                    kernels::CpuOps* host, kernels::Ops* ops) {
  TORPOR_ASSIGN_OR_RETURN(const std::string prefix,
                          FindPrefix(tensors, kPrefixes, kEmbedding));
  TensorLoader names(tensors, prefix);
  if (!names.Has(kHead)) {
    // transformers keeps the head beside the model, under a name of its own.
    names.Rename(kHead, tensors.Has(kHead) ? kHead : "lm_head.weight");
  }
  LinearLoader loader(&names, compute, host, ops);
  Weights w(ops);
  w.dtype = compute;
  TORPOR_ASSIGN_OR_RETURN(const TensorView embedding,
                          names.Get(kEmbedding, {c.vocab_size, c.hidden_size}));
  w.embedding = ops->Place(embedding.bytes);
  w.embedding_dtype = embedding.dtype == "BF16" ? DType::kBf16 : DType::kF32;
  for (int64_t l = 0; l < c.n_layers; ++l) {
    TORPOR_ASSIGN_OR_RETURN(LayerWeights layer, LoadLayer(c, l, &loader));
    w.layers.push_back(std::move(layer));
  }
  TORPOR_ASSIGN_OR_RETURN(w.norm, loader.Vector("norm.weight", c.hidden_size));
  TORPOR_ASSIGN_OR_RETURN(
      w.head, loader.Load("head", c.vocab_size, c.hidden_size, true));
  TORPOR_RETURN_IF_ERROR(ops->Finish());
  w.digest = names.Digest();
  if (!engram_json.empty()) {
    WeightsDigest digest;
    digest.Update(w.digest);
    digest.Update(engram_json);
    w.digest = digest.Finish();
  }
  return w;
}

}  // namespace torpor::replay::deepseek_v41
