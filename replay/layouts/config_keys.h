// SPDX-License-Identifier: Apache-2.0
//
// The config keys that families share, with the meanings that transformers
// gives them. Faults stick to the reader, which names the key; every value that
// is returned is in range even then.

#ifndef TORPOR_REPLAY_LAYOUTS_CONFIG_KEYS_H_
#define TORPOR_REPLAY_LAYOUTS_CONFIG_KEYS_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/config_json.h"
#include "replay/layouts/attention_stack.h"

namespace torpor::replay::layouts {

// Most of any count or size in a config.
inline constexpr int64_t kMany = int64_t{1} << 31;
inline constexpr int64_t kMaxLayers = 4096;
// Heads of a layer, and elements of a head.
inline constexpr int64_t kMaxHeads = 65'536;
inline constexpr int64_t kMaxDim = 65'536;
// Tokens; the largest window or chunk of a layout.
inline constexpr int64_t kMaxReach = int64_t{1} << 24;
inline constexpr int64_t kMaxPositions = int64_t{1} << 41;

// The dtype under its new or old key, around the text config or, where none
// stands there, in it: "bf16", "f16", "f32", another name as it stands there,
// or empty. kInvalidArgument
// when the key holds no string.
absl::StatusOr<std::string> DtypeName(const nlohmann::json& outer,
                                      const nlohmann::json& text);

// Of a family's configuration class in transformers.
struct ShapeDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  // 0 = as many as query heads.
  int64_t n_kv_heads = 0;
  // 0 = hidden_size / num_attention_heads.
  int64_t head_dim = 0;
  int64_t max_positions = 0;
};

struct Shape {
  int64_t vocab_size = 0;
  int64_t n_layers = 1;
  int64_t n_heads = 1;
  int64_t n_kv_heads = 1;
  int64_t head_dim = 1;
  int64_t max_positions = 1;
};

// vocab_size, num_hidden_layers, max_position_embeddings, num_attention_heads,
// num_key_value_heads (null: as many as query heads) and head_dim (null:
// hidden_size / num_attention_heads).
Shape ReadShape(ConfigReader* reader, const ShapeDefaults& defaults,
                const char* kv_heads_key = "num_key_value_heads");

// A stack of full layers of that shape.
AttentionStack StackOf(const Shape& shape);

// Tokens of sliding_window, or of sliding_window_size where only that stands;
// 0 = none, which null says. `fallback` when absent.
int64_t ReadWindow(ConfigReader* reader, int64_t fallback);

// Kind of each layer: from `key` where it stands, else by `fallback`. A list of
// more than `n_layers` entries passes when they are `n_extra` more, as for
// draft layers behind the last one.
std::vector<LayerKind> ReadLayerTypes(
    ConfigReader* reader, int64_t n_layers,
    const std::function<LayerKind(int64_t layer)>& fallback,
    int64_t n_extra = 0);

// A list of 0 and 1 of at least one entry for each layer; `fallback`, which has
// one for each, where the key is absent.
std::vector<bool> ReadFlags(ConfigReader* reader, const char* key,
                            std::vector<bool> fallback);

// 1 for each layer but every `period`-th.
std::vector<bool> AllButEvery(int64_t n_layers, int64_t period);

// Multi-token-prediction layers that stand behind the last one, under either
// key; 0 when absent.
int64_t ReadDraftLayers(ConfigReader* reader);

// Every `period`-th layer is full, the others slide.
std::function<LayerKind(int64_t layer)> FullEvery(int64_t period);

// Gives the layers their kinds. Sliding ones get `window`, chunked ones
// `chunk`; where that is 0 the fault names the key.
void SetKinds(ConfigReader* reader, const std::vector<LayerKind>& kinds,
              int64_t window, int64_t chunk, AttentionStack* stack);

// The last `n_shared` layers read the rows of the last layer of their kind that
// stands before them.
void ShareLastLayers(ConfigReader* reader, int64_t n_shared,
                     AttentionStack* stack);

// per_layer_config, in which transformers 5 writes what single layers have for
// themselves: head_dim, num_key_value_heads and sliding_window are read.
void ApplyPerLayerConfig(ConfigReader* reader, AttentionStack* stack);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_CONFIG_KEYS_H_
