// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3n and Gemma 4: the last layers own no rows and read those of the last
// layer of their kind below them.

#include <vector>

#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {

AttentionStack Gemma3n(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 262'400,
                                         .hidden_size = 2048,
                                         .n_layers = 35,
                                         .n_heads = 8,
                                         .n_kv_heads = 2,
                                         .head_dim = 256,
                                         .max_positions = 32'768});
  AttentionStack stack = StackOf(shape);
  const int64_t window = ReadWindow(reader, 512);
  SetKinds(reader, ReadLayerTypes(reader, shape.n_layers, FullEvery(5)), window,
           0, &stack);
  ShareLastLayers(
      reader, reader->Int("num_kv_shared_layers", 15, 0, kMaxLayers), &stack);
  return stack;
}

AttentionStack Gemma4(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 262'144,
                                         .hidden_size = 2304,
                                         .n_layers = 30,
                                         .n_heads = 8,
                                         .n_kv_heads = 4,
                                         .head_dim = 256,
                                         .max_positions = 131'072});
  AttentionStack stack = StackOf(shape);
  const int64_t window = ReadWindow(reader, 512);
  std::vector<LayerKind> kinds =
      ReadLayerTypes(reader, shape.n_layers, FullEvery(6));
  // The model makes its last layer full, whatever the list says.
  kinds.back() = LayerKind::kFull;
  SetKinds(reader, kinds, window, 0, &stack);
  const int64_t global_dim = reader->Int("global_head_dim", 512, 1, kMaxDim);
  // Full layers have KV heads of their own only where K and V share their
  // projection.
  const bool own_heads = reader->Bool("attention_k_eq_v", false);
  const int64_t global_heads =
      reader->Int("num_global_key_value_heads", shape.n_kv_heads, 1, kMaxHeads);
  // Newer configs say the same for each layer in per_layer_config.
  for (LayerSpec& spec : stack.layers) {
    if (spec.kind != LayerKind::kFull || reader->Has("per_layer_config")) {
      continue;
    }
    spec.k_dim = spec.v_dim = global_dim;
    if (own_heads) spec.n_kv_heads = global_heads;
  }
  ShareLastLayers(reader, reader->Int("num_kv_shared_layers", 0, 0, kMaxLayers),
                  &stack);
  stack.row_keys =
      "'num_key_value_heads', 'head_dim', 'num_global_key_value_heads' and "
      "'global_head_dim'";
  return stack;
}

}  // namespace torpor::replay::layouts
