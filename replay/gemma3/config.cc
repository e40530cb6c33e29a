// SPDX-License-Identifier: Apache-2.0

#include "replay/gemma3/config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/config_json.h"

namespace torpor::replay::gemma3 {
namespace {

using nlohmann::json;

constexpr int64_t kMany = int64_t{1} << 31;

// The dtype under its old or new key, in the text config or around it.
std::string DtypeName(const json& outer, const json& text) {
  for (const json* object : {&text, &outer}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto it = object->find(key);
      if (it == object->end() || !it->is_string()) continue;
      const auto name = it->get<std::string>();
      if (name == "bfloat16") return "bf16";
      if (name == "float32") return "f32";
      return name;
    }
  }
  return "";
}

absl::StatusOr<std::vector<bool>> LayerTypes(ConfigReader* reader,
                                             int64_t n_layers) {
  std::vector<bool> is_sliding;
  if (reader->Has("layer_types")) {
    const json& types = reader->at("layer_types");
    if (!types.is_array() || types.size() != static_cast<size_t>(n_layers)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config key 'layer_types': got %d entries, wanted one for each of "
          "%d layers",
          types.size(), n_layers));
    }
    for (const json& type : types) {
      if (type != "sliding_attention" && type != "full_attention") {
        return absl::InvalidArgumentError(absl::StrFormat(
            "config key 'layer_types': got %s, wanted sliding_attention or "
            "full_attention",
            type.dump()));
      }
      is_sliding.push_back(type == "sliding_attention");
    }
    return is_sliding;
  }
  const int64_t pattern = reader->Int("sliding_window_pattern", 6, 1, kMany);
  for (int64_t l = 0; l < n_layers; ++l) {
    is_sliding.push_back((l + 1) % pattern != 0);
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
    rope.linear_factor = reader.Number("factor", 1.0);
  } else if (type != "default") {
    return absl::UnimplementedError(absl::StrFormat(
        "config key '%s': rope type '%s', wanted default or linear", where,
        type));
  }
  TORPOR_RETURN_IF_ERROR(reader.status());
  if (rope.theta <= 0 || rope.linear_factor <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config key '%s': theta %g and factor %g, wanted both above 0", where,
        rope.theta, rope.linear_factor));
  }
  return rope;
}

// New configs carry a dictionary per kind of layer, which wins; old ones a
// theta for each kind and a scaling for the full layers alone.
absl::Status ReadRopes(ConfigReader* reader, Config* config) {
  const double full_theta = reader->Number("rope_theta", 1'000'000.0);
  const double sliding_theta = reader->Number("rope_local_base_freq", 10'000.0);
  json full = json::object();
  json sliding = json::object();
  if (reader->Has("rope_parameters")) {
    const json& parameters = reader->at("rope_parameters");
    if (!parameters.is_object()) {
      return absl::InvalidArgumentError(
          "config key 'rope_parameters': wanted an object");
    }
    if (parameters.contains("full_attention")) {
      full = parameters["full_attention"];
    }
    if (parameters.contains("sliding_attention")) {
      sliding = parameters["sliding_attention"];
    }
  }
  if (reader->Has("rope_scaling")) {
    if (!reader->at("rope_scaling").is_object() || !full.is_object()) {
      return absl::InvalidArgumentError(
          "config key 'rope_scaling': wanted an object");
    }
    full.update(reader->at("rope_scaling"));
  }
  TORPOR_ASSIGN_OR_RETURN(config->full_rope,
                          ReadRope(full, "rope_parameters", full_theta));
  TORPOR_ASSIGN_OR_RETURN(config->sliding_rope,
                          ReadRope(sliding, "rope_parameters", sliding_theta));
  return absl::OkStatus();
}

absl::Status CheckShapes(const Config& c) {
  if (c.n_heads % c.n_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config: %d attention heads over %d key-value heads, wanted a multiple",
        c.n_heads, c.n_kv_heads));
  }
  if (c.head_dim % 2 != 0 || c.hidden_size % 2 != 0 ||
      c.intermediate_size % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "config: head_dim %d, hidden_size %d, intermediate_size %d, wanted "
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
      it != outer.end() && it->is_object()) {
    text = &*it;
    c.nested = true;
  }
  ConfigReader r(*text);
  c.vocab_size = r.Int("vocab_size", 262'208, 1, kMany);
  c.hidden_size = r.Int("hidden_size", 2304, 1, kMany);
  c.intermediate_size = r.Int("intermediate_size", 9216, 1, kMany);
  c.n_layers = r.Int("num_hidden_layers", 26, 1, 4096);
  c.n_heads = r.Int("num_attention_heads", 8, 1, 65'536);
  c.n_kv_heads = r.Int("num_key_value_heads", 4, 1, 65'536);
  c.head_dim = r.Int("head_dim", 256, 1, 65'536);
  c.sliding_window = r.Int("sliding_window", 4096, 1, kMany);
  c.max_positions = r.Int("max_position_embeddings", 131'072, 1, kMany * 1024);
  c.query_pre_attn_scalar = r.Number("query_pre_attn_scalar", 256.0);
  c.rms_norm_eps = r.Number("rms_norm_eps", 1e-6);
  c.attention_bias = r.Bool("attention_bias", false);
  c.tied_embeddings = r.Bool("tie_word_embeddings", true);
  // transformers applies the final softcap in the text model alone, and the
  // attention softcap nowhere.
  if (!c.nested) c.final_softcap = r.Number("final_logit_softcapping", 0.0);
  const std::string activation =
      r.String("hidden_activation", "gelu_pytorch_tanh");
  const bool bidirectional = r.Bool("use_bidirectional_attention", false);
  c.dtype = DtypeName(outer, *text);
  TORPOR_RETURN_IF_ERROR(r.status());
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
  TORPOR_ASSIGN_OR_RETURN(c.is_sliding, LayerTypes(&r, c.n_layers));
  TORPOR_RETURN_IF_ERROR(ReadRopes(&r, &c));
  TORPOR_RETURN_IF_ERROR(r.status());
  TORPOR_RETURN_IF_ERROR(CheckShapes(c));
  return c;
}

ModelLayout LayoutOf(const Config& c, kernels::DType kv_dtype) {
  ModelLayout layout;
  layout.family = "gemma3_text";
  layout.n_layers = static_cast<uint32_t>(c.n_layers);
  layout.vocab_size = static_cast<uint32_t>(c.vocab_size);
  for (int64_t l = 0; l < c.n_layers; ++l) {
    for (const char* part : {"k", "v"}) {
      Slot slot;
      slot.name = absl::StrFormat("layer.%d.%s", l, part);
      slot.owner_layer = static_cast<uint32_t>(l);
      slot.reader_layers = {slot.owner_layer};
      slot.row_bytes = static_cast<uint32_t>(
          c.n_kv_heads * c.head_dim *
          static_cast<int64_t>(kernels::DTypeBytes(kv_dtype)));
      slot.format = kv_dtype == kernels::DType::kBf16 ? "bf16" : "f32";
      slot.shard_axis = ShardAxis::kHeads;
      slot.n_heads = static_cast<uint32_t>(c.n_kv_heads);
      if (c.is_sliding[static_cast<size_t>(l)]) {
        slot.kind = SlotKind::kSliding;
        slot.window = static_cast<uint32_t>(c.sliding_window);
      }
      slot.come_back = c.persists(l) ? ComeBack::kPersist : ComeBack::kReplay;
      layout.slots.push_back(std::move(slot));
    }
  }
  return layout;
}

std::string RopeName(const Config& c) {
  return absl::StrFormat("split-half theta %g/%g linear %g/%g",
                         c.full_rope.theta, c.sliding_rope.theta,
                         c.full_rope.linear_factor,
                         c.sliding_rope.linear_factor);
}

}  // namespace torpor::replay::gemma3
