// SPDX-License-Identifier: Apache-2.0

#include "tests/gpu_check/made_up_model.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/bf16.h"
#include "replay/safetensors.h"

namespace torpor::gpu_check {
namespace {

using kernels::Bf16;
using nlohmann::json;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
};

int64_t Elements(const Tensor& tensor) {
  int64_t n = 1;
  for (const int64_t size : tensor.shape) n *= size;
  return n;
}

std::vector<Tensor> TensorsOf(const MadeUpShape& s) {
  const int64_t q = s.n_heads * s.head_dim;
  const int64_t kv = s.n_kv_heads * s.head_dim;
  std::vector<Tensor> tensors = {
      {"model.embed_tokens.weight", {s.vocab, s.hidden}},
      {"model.norm.weight", {s.hidden}}};
  for (int64_t layer = 0; layer < s.n_layers; ++layer) {
    const std::string at = absl::StrFormat("model.layers.%d.", layer);
    for (const char* norm :
         {"input_layernorm", "post_attention_layernorm",
          "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
      tensors.push_back({at + norm + ".weight", {s.hidden}});
    }
    for (const Tensor& t :
         std::vector<Tensor>{{"self_attn.q_norm", {s.head_dim}},
                             {"self_attn.k_norm", {s.head_dim}},
                             {"self_attn.q_proj", {q, s.hidden}},
                             {"self_attn.k_proj", {kv, s.hidden}},
                             {"self_attn.v_proj", {kv, s.hidden}},
                             {"self_attn.o_proj", {s.hidden, q}},
                             {"mlp.gate_proj", {s.mlp, s.hidden}},
                             {"mlp.up_proj", {s.mlp, s.hidden}},
                             {"mlp.down_proj", {s.hidden, s.mlp}}}) {
      tensors.push_back({at + t.name + ".weight", t.shape});
    }
  }
  return tensors;
}

json ConfigOf(const MadeUpShape& s) {
  json layer_types = json::array();
  for (int64_t layer = 1; layer <= s.n_layers; ++layer) {
    layer_types.push_back(layer % s.full_every == 0 ? "full_attention"
                                                    : "sliding_attention");
  }
  return {{"model_type", "gemma3_text"},
          {"torch_dtype", "bfloat16"},
          {"attention_bias", false},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"head_dim", s.head_dim},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.mlp},
          {"layer_types", layer_types},
          {"max_position_embeddings", 32'768},
          {"num_attention_heads", s.n_heads},
          {"num_hidden_layers", s.n_layers},
          {"num_key_value_heads", s.n_kv_heads},
          {"query_pre_attn_scalar", s.head_dim},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1e6},
          {"rope_local_base_freq", 1e4},
          {"sliding_window", s.window},
          {"tie_word_embeddings", true},
          {"vocab_size", s.vocab}};
}

// Even steps of a generator (SplitMix64), as wide as a normal distribution
// would be.
class Weights {
 public:
  Bf16 Next(float deviation) {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    const auto unit = static_cast<float>((z ^ (z >> 31)) >> 40) * 0x1p-24f;
    return kernels::ToBf16((unit - 0.5f) * deviation * std::sqrt(12.0f));
  }

 private:
  uint64_t state_ = 0;
};

}  // namespace

MadeUpShape Gemma270M() { return {18, 6, 640, 2048, 4, 1, 256, 512, 32'768}; }
MadeUpShape TinyGemma() { return {3, 3, 32, 48, 2, 1, 16, 5, 64}; }

absl::Status WriteMadeUpModel(const MadeUpShape& shape,
                              const std::string& directory) {
  std::ofstream config(directory + "/config.json");
  config << ConfigOf(shape).dump();
  if (!config.flush()) {
    return absl::UnavailableError(
        absl::StrFormat("%s/config.json: not written", directory));
  }
  const std::vector<Tensor> tensors = TensorsOf(shape);
  Weights weights;
  std::vector<std::vector<Bf16>> values;
  std::vector<replay::TensorToWrite> written;
  for (const Tensor& tensor : tensors) {
    // A row's product keeps the size of its inputs; norms stay near 1.
    const float deviation =
        tensor.shape.size() == 1
            ? 0.1f
            : 1.0f / std::sqrt(static_cast<float>(tensor.shape.back()));
    std::vector<Bf16>& of = values.emplace_back(Elements(tensor));
    for (Bf16& value : of) value = weights.Next(deviation);
    written.push_back({tensor.name,
                       "BF16",
                       tensor.shape,
                       {reinterpret_cast<const uint8_t*>(of.data()),
                        of.size() * sizeof(Bf16)}});
  }
  return replay::WriteSafetensors(directory + "/model.safetensors", written,
                                  {});
}

}  // namespace torpor::gpu_check
