// SPDX-License-Identifier: Apache-2.0
//
// Families whose layers are all alike: full, or all with one window.

#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
namespace {

// One window for all layers, 0 = none; layer_types, where a config has it,
// tells layers apart all the same.
AttentionStack OneWindow(ConfigReader* reader, const ShapeDefaults& defaults,
                         int64_t window_default) {
  const Shape shape = ReadShape(reader, defaults);
  AttentionStack stack = StackOf(shape);
  const int64_t window = ReadWindow(reader, window_default);
  const LayerKind all = window > 0 ? LayerKind::kSliding : LayerKind::kFull;
  SetKinds(
      reader,
      ReadLayerTypes(reader, shape.n_layers, [all](int64_t) { return all; }),
      window, 0, &stack);
  return stack;
}

}  // namespace

// Llama attends to every token, whatever window keys a config may carry.
AttentionStack Llama(ConfigReader* reader) {
  return StackOf(ReadShape(reader, {.vocab_size = 32'000,
                                    .hidden_size = 4096,
                                    .n_layers = 32,
                                    .n_heads = 32,
                                    .max_positions = 2048}));
}

AttentionStack Mistral(ConfigReader* reader) {
  return OneWindow(reader,
                   {.vocab_size = 32'000,
                    .hidden_size = 4096,
                    .n_layers = 32,
                    .n_heads = 32,
                    .n_kv_heads = 8,
                    .max_positions = 131'072},
                   4096);
}

AttentionStack Mixtral(ConfigReader* reader) {
  return OneWindow(reader,
                   {.vocab_size = 32'000,
                    .hidden_size = 4096,
                    .n_layers = 32,
                    .n_heads = 32,
                    .n_kv_heads = 8,
                    .max_positions = 131'072},
                   0);
}

AttentionStack Ministral(ConfigReader* reader) { return Mistral(reader); }

AttentionStack Ministral3(ConfigReader* reader) {
  return OneWindow(reader,
                   {.vocab_size = 131'072,
                    .hidden_size = 4096,
                    .n_layers = 34,
                    .n_heads = 32,
                    .n_kv_heads = 8,
                    .head_dim = 128,
                    .max_positions = 262'144},
                   0);
}

AttentionStack Phi3(ConfigReader* reader) {
  return OneWindow(reader,
                   {.vocab_size = 32'064,
                    .hidden_size = 3072,
                    .n_layers = 32,
                    .n_heads = 32,
                    .max_positions = 4096},
                   0);
}

AttentionStack Starcoder2(ConfigReader* reader) {
  return OneWindow(reader,
                   {.vocab_size = 49'152,
                    .hidden_size = 3072,
                    .n_layers = 30,
                    .n_heads = 24,
                    .n_kv_heads = 2,
                    .max_positions = 4096},
                   0);
}

}  // namespace torpor::replay::layouts
