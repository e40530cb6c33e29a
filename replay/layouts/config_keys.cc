// SPDX-License-Identifier: Apache-2.0

#include "replay/layouts/config_keys.h"

#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay::layouts {
namespace {

using nlohmann::json;

void Invalid(ConfigReader* reader, const std::string& message) {
  reader->Fail(absl::InvalidArgumentError(message));
}

int64_t ReadKvHeads(ConfigReader* reader, const ShapeDefaults& defaults,
                    int64_t n_heads, const char* key) {
  int64_t n_kv_heads = n_heads;
  if (reader->Has(key)) {
    n_kv_heads = reader->Int(key, 1, 1, kMaxHeads);
  } else if (!reader->IsNull(key) && defaults.n_kv_heads != 0 &&
             n_heads % defaults.n_kv_heads == 0) {
    n_kv_heads = defaults.n_kv_heads;
  }
  if (n_heads % n_kv_heads != 0) {
    Invalid(reader,
            absl::StrFormat("config keys 'num_attention_heads' and '%s': got "
                            "%d and %d, wanted a multiple",
                            key, n_heads, n_kv_heads));
    return n_heads;
  }
  return n_kv_heads;
}

int64_t ReadHeadDim(ConfigReader* reader, const ShapeDefaults& defaults,
                    int64_t n_heads) {
  if (reader->Has("head_dim")) return reader->Int("head_dim", 1, 1, kMaxDim);
  if (!reader->IsNull("head_dim") && defaults.head_dim != 0) {
    return defaults.head_dim;
  }
  const int64_t hidden =
      reader->Int("hidden_size", defaults.hidden_size, 1, kMany);
  if (hidden % n_heads != 0 || hidden / n_heads > kMaxDim) {
    Invalid(reader, absl::StrFormat(
                        "config keys 'hidden_size' and 'num_attention_heads': "
                        "got %d and %d, wanted a multiple of at most %d times, "
                        "or 'head_dim'",
                        hidden, n_heads, kMaxDim));
    return 1;
  }
  return hidden / n_heads;
}

const std::map<std::string, LayerKind>& KindNames() {
  static const auto* const names = new std::map<std::string, LayerKind>{
      {"full_attention", LayerKind::kFull},
      // As transformers 4 wrote it for some families.
      {"attention", LayerKind::kFull},
      {"sliding_attention", LayerKind::kSliding},
      {"chunked_attention", LayerKind::kChunked}};
  return *names;
}

void ApplyToLayer(ConfigReader* reader, LayerSpec* spec) {
  if (reader->Has("head_dim")) {
    const int64_t dim = reader->Int("head_dim", 1, 1, kMaxDim);
    if (spec->v_dim == spec->k_dim) spec->v_dim = dim;
    spec->k_dim = dim;
  }
  spec->n_kv_heads =
      reader->Int("num_key_value_heads", spec->n_kv_heads, 1, kMaxHeads);
  if (spec->kind == LayerKind::kSliding) {
    spec->reach = reader->Int("sliding_window", spec->reach, 1, kMaxReach);
  }
}

}  // namespace

absl::StatusOr<std::string> DtypeName(const json& outer, const json& text) {
  for (const json* object : {&outer, &text}) {
    ConfigReader reader(*object);
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (!reader.Has(key)) continue;
      const std::string name = reader.String(key, "");
      TORPOR_RETURN_IF_ERROR(reader.status());
      if (name == "bfloat16") return "bf16";
      if (name == "float16") return "f16";
      if (name == "float32") return "f32";
      return name;
    }
  }
  return "";
}

Shape ReadShape(ConfigReader* reader, const ShapeDefaults& defaults,
                const char* kv_heads_key) {
  Shape shape;
  shape.vocab_size = reader->Int("vocab_size", defaults.vocab_size, 1, kMany);
  shape.n_layers =
      reader->Int("num_hidden_layers", defaults.n_layers, 1, kMaxLayers);
  shape.max_positions = reader->Int("max_position_embeddings",
                                    defaults.max_positions, 1, kMaxPositions);
  shape.n_heads =
      reader->Int("num_attention_heads", defaults.n_heads, 1, kMaxHeads);
  shape.n_kv_heads = ReadKvHeads(reader, defaults, shape.n_heads, kv_heads_key);
  shape.head_dim = ReadHeadDim(reader, defaults, shape.n_heads);
  return shape;
}

AttentionStack StackOf(const Shape& shape) {
  AttentionStack stack;
  stack.vocab_size = shape.vocab_size;
  stack.max_positions = shape.max_positions;
  stack.layers.assign(static_cast<size_t>(shape.n_layers),
                      {.n_kv_heads = shape.n_kv_heads,
                       .k_dim = shape.head_dim,
                       .v_dim = shape.head_dim});
  return stack;
}

int64_t ReadWindow(ConfigReader* reader, int64_t fallback) {
  if (reader->IsNull("sliding_window")) return 0;
  const char* const key =
      !reader->Has("sliding_window") && reader->Has("sliding_window_size")
          ? "sliding_window_size"
          : "sliding_window";
  return reader->Int(key, fallback, 1, kMaxReach);
}

std::vector<LayerKind> ReadLayerTypes(
    ConfigReader* reader, int64_t n_layers,
    const std::function<LayerKind(int64_t layer)>& fallback, int64_t n_extra) {
  std::vector<LayerKind> kinds;
  for (int64_t l = 0; l < n_layers; ++l) kinds.push_back(fallback(l));
  if (!reader->Has("layer_types")) return kinds;
  const json& types = reader->at("layer_types");
  const auto n = static_cast<size_t>(n_layers);
  if (!types.is_array()) {
    reader->WrongType("layer_types", "a list of strings");
    return kinds;
  }
  if (types.size() != n && types.size() != n + static_cast<size_t>(n_extra)) {
    Invalid(reader, absl::StrFormat("config key 'layer_types': got %d entries, "
                                    "wanted one for each of %d layers",
                                    types.size(), n_layers));
    return kinds;
  }
  for (size_t l = 0; l < n; ++l) {
    const json& type = types[l];
    const auto it = type.is_string() ? KindNames().find(type.get<std::string>())
                                     : KindNames().end();
    if (it == KindNames().end()) {
      Invalid(reader,
              absl::StrFormat("config key 'layer_types': got %s, wanted "
                              "full_attention, sliding_attention or "
                              "chunked_attention",
                              type.dump()));
      return kinds;
    }
    kinds[l] = it->second;
  }
  return kinds;
}

std::vector<bool> ReadFlags(ConfigReader* reader, const char* key,
                            std::vector<bool> fallback) {
  if (!reader->Has(key)) return fallback;
  const json& list = reader->at(key);
  bool fits = list.is_array() && list.size() >= fallback.size();
  for (size_t l = 0; fits && l < fallback.size(); ++l) {
    fits = list[l] == 0 || list[l] == 1;
    fallback[l] = list[l] == 1;
  }
  if (!fits) reader->WrongType(key, "a list of 0 and 1, one for each layer");
  return fallback;
}

std::vector<bool> AllButEvery(int64_t n_layers, int64_t period) {
  std::vector<bool> flags;
  for (int64_t l = 0; l < n_layers; ++l) flags.push_back((l + 1) % period != 0);
  return flags;
}

int64_t ReadDraftLayers(ConfigReader* reader) {
  return reader->Int(reader->Has("num_mtp_layers") ? "num_mtp_layers"
                                                   : "num_nextn_predict_layers",
                     0, 0, kMaxLayers);
}

std::function<LayerKind(int64_t layer)> FullEvery(int64_t period) {
  return [period](int64_t layer) {
    return (layer + 1) % period == 0 ? LayerKind::kFull : LayerKind::kSliding;
  };
}

void SetKinds(ConfigReader* reader, const std::vector<LayerKind>& kinds,
              int64_t window, int64_t chunk, AttentionStack* stack) {
  for (size_t l = 0; l < stack->layers.size(); ++l) {
    LayerSpec& spec = stack->layers[l];
    spec.kind = kinds[l];
    if (spec.kind == LayerKind::kFull) continue;
    const bool slides = spec.kind == LayerKind::kSliding;
    spec.reach = slides ? window : chunk;
    if (spec.reach > 0) continue;
    Invalid(reader, absl::StrFormat(
                        "config key '%s': absent or null, wanted tokens, since "
                        "'layer_types' makes layer %d %s",
                        slides ? "sliding_window" : "attention_chunk_size", l,
                        slides ? "sliding_attention" : "chunked_attention"));
    spec.kind = LayerKind::kFull;
  }
}

void ShareLastLayers(ConfigReader* reader, int64_t n_shared,
                     AttentionStack* stack) {
  const auto n_layers = static_cast<int64_t>(stack->layers.size());
  if (n_shared >= n_layers) {
    Invalid(reader,
            absl::StrFormat("config key 'num_kv_shared_layers': got %d, wanted "
                            "fewer than the %d layers",
                            n_shared, n_layers));
    return;
  }
  const int64_t first = n_layers - n_shared;
  std::map<LayerKind, int64_t> last;
  for (int64_t l = 0; l < n_layers; ++l) {
    LayerSpec& spec = stack->layers[static_cast<size_t>(l)];
    if (l < first) {
      last[spec.kind] = l;
      continue;
    }
    const auto it = last.find(spec.kind);
    if (it == last.end()) {
      Invalid(reader, absl::StrFormat(
                          "config key 'num_kv_shared_layers': got %d, but no "
                          "layer below %d is of the kind of layer %d, whose "
                          "rows it could read",
                          n_shared, first, l));
      return;
    }
    spec.owner = it->second;
  }
}

void ApplyPerLayerConfig(ConfigReader* reader, AttentionStack* stack) {
  if (!reader->Has("per_layer_config")) return;
  const json& layers = reader->at("per_layer_config");
  if (!layers.is_object()) {
    reader->WrongType("per_layer_config", "an object");
    return;
  }
  for (const auto& [name, value] : layers.items()) {
    // Layer numbers have leading zeros.
    int64_t layer = -1;
    const bool known = absl::SimpleAtoi(name, &layer) && layer >= 0 &&
                       static_cast<size_t>(layer) < stack->layers.size();
    if (!known || !value.is_object()) {
      Invalid(reader,
              absl::StrFormat("config key 'per_layer_config': got %s for '%s', "
                              "wanted objects for layers 0 to %d",
                              value.dump(), name, stack->layers.size() - 1));
      return;
    }
    ConfigReader own(value);
    ApplyToLayer(&own, &stack->layers[static_cast<size_t>(layer)]);
    if (!own.status().ok()) {
      Invalid(reader, absl::StrFormat("config key 'per_layer_config.%s': %s",
                                      name, own.status().message()));
      return;
    }
  }
}

}  // namespace torpor::replay::layouts
