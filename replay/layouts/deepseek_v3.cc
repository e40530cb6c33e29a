// SPDX-License-Identifier: Apache-2.0
//
// DeepSeek V2 and V3: multi-head latent attention. A token keeps one latent and
// one rotated key for all heads, however many the config names.

#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {

namespace {

AttentionStack Latent(ConfigReader* reader, const ShapeDefaults& defaults) {
  AttentionStack stack;
  stack.vocab_size = reader->Int("vocab_size", defaults.vocab_size, 1, kMany);
  stack.max_positions = reader->Int("max_position_embeddings",
                                    defaults.max_positions, 1, kMaxPositions);
  const int64_t n_layers =
      reader->Int("num_hidden_layers", defaults.n_layers, 1, kMaxLayers);
  const int64_t latent = reader->Int("kv_lora_rank", 512, 1, kMaxDim);
  const int64_t rope = reader->Int("qk_rope_head_dim", 64, 1, kMaxDim);
  stack.n_draft_layers = ReadDraftLayers(reader);
  stack.layers.assign(static_cast<size_t>(n_layers),
                      {.n_kv_heads = 1, .k_dim = latent + rope});
  stack.row_keys = "'kv_lora_rank' and 'qk_rope_head_dim'";
  return stack;
}

}  // namespace

AttentionStack DeepSeekV2(ConfigReader* reader) {
  return Latent(reader,
                {.vocab_size = 102'400, .n_layers = 32, .max_positions = 2048});
}

AttentionStack DeepSeekV3(ConfigReader* reader) {
  return Latent(reader,
                {.vocab_size = 129'280, .n_layers = 61, .max_positions = 4096});
}

}  // namespace torpor::replay::layouts
