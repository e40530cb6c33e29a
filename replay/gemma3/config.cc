// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/config_json.h"
#include "replay/layouts/config_keys.h"

namespace torpor::replay::gemma3 {
namespace {

using nlohmann::json;

using layouts::kMany;
using layouts::LayerKind;

// Elements of a K or V row, so that its bytes fit the layout's 32 bits. The
// largest in use have 8,192.
constexpr int64_t kMaxRow = int64_t{1} << 20;

// A number of at least, or above, 0.
double NumberFromZero(ConfigReader* reader, const char* key, double fallback,
                      bool zero_too) {
  const double value = reader->Number(key, fallback);
  if (value < 0 || (value == 0 && !zero_too)) {
    reader->Fail(absl::InvalidArgumentError(
        absl::StrFormat("config key '%s': got %g, wanted a number %s 0", key,
                        value, zero_too ? "of at least" : "above")));
  }
  return value;
}

std::vector<bool> LayerTypes(ConfigReader* reader, int64_t n_layers) {
  const int64_t pattern =
      reader->Int("sliding_window_pattern", 6, 1, layouts::kMany);
  std::vector<bool> is_sliding;
  for (const LayerKind kind :
       layouts::ReadLayerTypes(reader, n_layers, layouts::FullEvery(pattern))) {
    if (kind == LayerKind::kChunked) {
      reader->WrongType("layer_types",
                        "sliding_attention and full_attention alone");
    }
    is_sliding.push_back(kind == LayerKind::kSliding);
  }
  return is_sliding;
}

absl::StatusOr<Rope> ReadRope(const json& object, const char* where,
                              double fallback_theta) {
  ConfigReader reader(object);
  Rope rope;
  rope.theta = reader.Number("rope_theta", fallback_theta);
  // The type has an old key too.
  const std::string type = reader.String(
      "rope_type", reader.Has("type") ? reader.String("type", "default")
                                      : std::string("default"));
  if (type == "linear") {
    if (!reader.Has("factor")) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config key '%s': rope type 'linear' without a 'factor'", where));
    }
    rope.linear_factor = reader.Number("factor", 1.0);
  } else if (type != "default") {
    return absl::UnimplementedError(absl::StrFormat(
        "config key '%s': rope type '%s', wanted default or linear", where,
        type));
  }
  TORPOR_RETURN_IF_ERROR(reader.status());
  if (rope.theta <= 0 || rope.linear_factor <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': rope_theta %g, factor %g, wanted both above 0", where,
        rope.theta, rope.linear_factor));
  }
  return rope;
}

// New configs carry a dictionary per kind of layer, which wins; old ones a
// theta for each kind and a scaling for the full layers alone.
absl::Status ReadRopes(ConfigReader* reader, Config* config) {
  const double full_theta =
      NumberFromZero(reader, "rope_theta", 1'000'000.0, false);
  const double sliding_theta =
      NumberFromZero(reader, "rope_local_base_freq", 10'000.0, false);
  TORPOR_RETURN_IF_ERROR(reader->status());
  json full = json::object();
  json sliding = json::object();
  if (reader->Has("rope_parameters")) {
    const json& parameters = reader->at("rope_parameters");
    if (!parameters.is_object()) {
      return absl::InvalidArgumentError(
          "config key 'rope_parameters': wanted an object");
    }
    ConfigReader kinds(parameters);
    for (const auto& [kind, out] : {std::pair{"full_attention", &full},
                                    std::pair{"sliding_attention", &sliding}}) {
      if (!kinds.Has(kind)) {
        // One set of parameters for all layers, which would go unread.
        for (const char* key : {"rope_type", "type", "rope_theta", "factor"}) {
          if (!kinds.Has(key)) continue;
          return absl::InvalidArgumentError(absl::StrFormat(
              "config key 'rope_parameters': has '%s' and no '%s', wanted a "
              "set of them for each kind of layer",
              key, kind));
        }
        continue;
      }
      *out = kinds.at(kind);
      if (!out->is_object()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "config key 'rope_parameters.%s': wanted an object", kind));
      }
    }
  }
  if (reader->Has("rope_scaling")) {
    if (!reader->at("rope_scaling").is_object()) {
      return absl::InvalidArgumentError(
          "config key 'rope_scaling': wanted an object");
    }
    full.update(reader->at("rope_scaling"));
  }
  TORPOR_ASSIGN_OR_RETURN(
      config->full_rope,
      ReadRope(full, "rope_parameters.full_attention", full_theta));
  TORPOR_ASSIGN_OR_RETURN(
      config->sliding_rope,
      ReadRope(sliding, "rope_parameters.sliding_attention", sliding_theta));
  return absl::OkStatus();
}

absl::Status CheckShapes(const Config& c) {
  if (c.n_heads % c.n_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config keys: num_attention_heads %d, num_key_value_heads %d, wanted a "
        "multiple",
        c.n_heads, c.n_kv_heads));
  }
  if (c.n_kv_heads * c.head_dim > kMaxRow) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config keys: num_key_value_heads %d times head_dim %d, wanted at most "
        "%d",
        c.n_kv_heads, c.head_dim, kMaxRow));
  }
  if (c.head_dim % 2 != 0 || c.hidden_size % 2 != 0 ||
      c.intermediate_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("config keys: head_dim %d, hidden_size %d, "
                        "intermediate_size %d, wanted "
                        "even numbers",
                        c.head_dim, c.hidden_size, c.intermediate_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const json& outer) {
  Config c;
  const json* text = &outer;
  if (const auto it = outer.find("text_config");
      it != outer.end() && !it->is_null()) {
    if (!it->is_object()) {
      return absl::InvalidArgumentError(
          "config key 'text_config': wanted an object");
    }
    text = &*it;
    c.nested = true;
  }
  ConfigReader r(*text);
  const std::string type = r.String("model_type", "gemma3_text");
  if (c.nested && r.status().ok() && type != "gemma3_text") {
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'text_config.model_type': got '%s', wanted gemma3_text",
        type));
  }
  c.vocab_size = r.Int("vocab_size", 262'208, 1, kMany);
  c.hidden_size = r.Int("hidden_size", 2304, 1, kMany);
  c.intermediate_size = r.Int("intermediate_size", 9216, 1, kMany);
  c.n_layers = r.Int("num_hidden_layers", 26, 1, 4096);
  c.n_heads = r.Int("num_attention_heads", 8, 1, 65'536);
  c.n_kv_heads = r.Int("num_key_value_heads", 4, 1, 65'536);
  c.head_dim = r.Int("head_dim", 256, 1, 65'536);
  c.sliding_window = r.Int("sliding_window", 4096, 1, layouts::kMaxReach);
  c.max_positions = r.Int("max_position_embeddings", 131'072, 1, kMany * 1024);
  c.query_pre_attn_scalar =
      NumberFromZero(&r, "query_pre_attn_scalar", 256.0, false);
  c.rms_norm_eps = NumberFromZero(&r, "rms_norm_eps", 1e-6, true);
  c.attention_bias = r.Bool("attention_bias", false);
  c.tied_embeddings = r.Bool("tie_word_embeddings", true);
  // transformers applies the final softcap in the text model alone, and the
  // attention softcap nowhere.
  if (!c.nested) {
    c.final_softcap = NumberFromZero(&r, "final_logit_softcapping", 0.0, true);
  }
  const std::string activation =
      r.String("hidden_activation", "gelu_pytorch_tanh");
  const bool bidirectional = r.Bool("use_bidirectional_attention", false);
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_ASSIGN_OR_RETURN(c.dtype, layouts::DtypeName(outer, *text));
  if (bidirectional) {
    return absl::FailedPreconditionError(
        "config key 'use_bidirectional_attention': true; a model whose tokens "
        "see what follows has no KV that a session could sleep with");
  }
  if (activation != "gelu_pytorch_tanh") {
    return absl::UnimplementedError(absl::StrFormat(
        "config key 'hidden_activation': got '%s', wanted gelu_pytorch_tanh",
        activation));
  }
  c.is_sliding = LayerTypes(&r, c.n_layers);
  if (r.IsNull("sliding_window") &&
      std::find(c.is_sliding.begin(), c.is_sliding.end(), true) !=
          c.is_sliding.end()) {
    r.WrongType("sliding_window", "tokens, since layers slide");
  }
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_RETURN_IF_ERROR(ReadRopes(&r, &c));
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_RETURN_IF_ERROR(CheckShapes(c));
  return c;
}

layouts::AttentionStack StackOf(const Config& c) {
  layouts::AttentionStack stack;
  stack.vocab_size = c.vocab_size;
  stack.max_positions = c.max_positions;
  for (const bool slides : c.is_sliding) {
    stack.layers.push_back(
        {.kind = slides ? LayerKind::kSliding : LayerKind::kFull,
         .reach = slides ? c.sliding_window : 0,
         .n_kv_heads = c.n_kv_heads,
         .k_dim = c.head_dim,
         .v_dim = c.head_dim});
  }
  return stack;
}

ModelLayout LayoutOf(const Config& c, kernels::DType kv_dtype) {
  return layouts::BuildLayout(
      StackOf(c), "gemma3_text",
      {kv_dtype == kernels::DType::kBf16 ? "bf16" : "f32",
       static_cast<int64_t>(kernels::DTypeBytes(kv_dtype))});
}

std::string RopeName(const Config& c) {
  // Every digit, since the fingerprint tells models apart by it.
  return absl::StrFormat("split-half theta %.17g/%.17g linear %.17g/%.17g",
                         c.full_rope.theta, c.sliding_rope.theta,
                         c.full_rope.linear_factor,
                         c.sliding_rope.linear_factor);
}

}  // namespace torpor::replay::gemma3
