// SPDX-License-Identifier: Apache-2.0
//
// Families whose windows use_sliding_window switches on, and that carry window
// keys when it is off.

#include <functional>
#include <vector>

#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
namespace {

using Pattern = std::function<LayerKind(int64_t)>;

// With the switch off every layer is full, whatever layer_types says.
AttentionStack Switched(ConfigReader* reader, const Shape& shape,
                        int64_t window_default, const Pattern& pattern) {
  AttentionStack stack = StackOf(shape);
  const bool use = reader->Bool("use_sliding_window", false);
  const int64_t window = ReadWindow(reader, window_default);
  const Pattern full = [](int64_t) { return LayerKind::kFull; };
  std::vector<LayerKind> kinds = ReadLayerTypes(
      reader, shape.n_layers, use && window > 0 ? pattern : full);
  if (!use) kinds.assign(kinds.size(), LayerKind::kFull);
  SetKinds(reader, kinds, window, 0, &stack);
  return stack;
}

// Layers from max_window_layers on slide.
Pattern FromMaxWindowLayers(ConfigReader* reader, int64_t fallback) {
  const int64_t first = reader->Int("max_window_layers", fallback, 0, kMany);
  return [first](int64_t layer) {
    return layer >= first ? LayerKind::kSliding : LayerKind::kFull;
  };
}

// SmolLM3 slides where it has no rotary embedding: no_rope_layers has a 0 for
// such a layer, or every no_rope_layer_interval-th is one.
Pattern WithoutRope(ConfigReader* reader, int64_t n_layers) {
  const int64_t interval = reader->Int("no_rope_layer_interval", 4, 1, kMany);
  const std::vector<bool> has_rope =
      ReadFlags(reader, "no_rope_layers", AllButEvery(n_layers, interval));
  return [has_rope](int64_t layer) {
    return has_rope[static_cast<size_t>(layer)] ? LayerKind::kFull
                                                : LayerKind::kSliding;
  };
}

}  // namespace

AttentionStack Qwen2(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 151'936,
                                         .hidden_size = 4096,
                                         .n_layers = 32,
                                         .n_heads = 32,
                                         .n_kv_heads = 32,
                                         .max_positions = 32'768});
  return Switched(reader, shape, 4096, FromMaxWindowLayers(reader, 28));
}

AttentionStack Qwen3(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 151'936,
                                         .hidden_size = 4096,
                                         .n_layers = 32,
                                         .n_heads = 32,
                                         .n_kv_heads = 32,
                                         .head_dim = 128,
                                         .max_positions = 32'768});
  return Switched(reader, shape, 4096, FromMaxWindowLayers(reader, 28));
}

// The experts' model has one window for all layers or none.
AttentionStack Qwen3Moe(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 151'936,
                                         .hidden_size = 2048,
                                         .n_layers = 24,
                                         .n_heads = 32,
                                         .n_kv_heads = 4,
                                         .max_positions = 32'768});
  return Switched(reader, shape, 4096,
                  [](int64_t) { return LayerKind::kSliding; });
}

AttentionStack Qwen25Vl(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 152'064,
                                         .hidden_size = 8192,
                                         .n_layers = 80,
                                         .n_heads = 64,
                                         .n_kv_heads = 8,
                                         .max_positions = 32'768});
  return Switched(reader, shape, 4096, FromMaxWindowLayers(reader, 80));
}

AttentionStack SmolLm3(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 128'256,
                                         .hidden_size = 2048,
                                         .n_layers = 36,
                                         .n_heads = 16,
                                         .n_kv_heads = 4,
                                         .max_positions = 32'768});
  return Switched(reader, shape, 0, WithoutRope(reader, shape.n_layers));
}

}  // namespace torpor::replay::layouts
