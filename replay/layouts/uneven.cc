// SPDX-License-Identifier: Apache-2.0
//
// Llama 4 (chunks), MiMo-V2-Flash (K wider than V, other heads in sliding
// layers) and Step 3.5 (a second set of attention shapes).

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
AttentionStack Llama4(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 202'048,
                                         .hidden_size = 5120,
                                         .n_layers = 48,
                                         .n_heads = 40,
                                         .n_kv_heads = 8,
                                         .head_dim = 128,
                                         .max_positions = 131'072});
  AttentionStack stack = StackOf(shape);
  // Layers with a rotary embedding are chunked, those without are full.
  const int64_t interval = reader->Int("no_rope_layer_interval", 4, 1, kMany);
  std::vector<bool> chunked = AllButEvery(shape.n_layers, interval);
  // An empty list is no list.
  if (reader->Has("no_rope_layers") &&
      reader->at("no_rope_layers") != nlohmann::json::array()) {
    chunked = ReadFlags(reader, "no_rope_layers", std::move(chunked));
  }
  const int64_t chunk =
      reader->IsNull("attention_chunk_size")
          ? 0
          : reader->Int("attention_chunk_size", 8192, 1, kMaxReach);
  const auto kind = [&](int64_t layer) {
    return chunk > 0 && chunked[static_cast<size_t>(layer)]
               ? LayerKind::kChunked
               : LayerKind::kFull;
  };
  const int64_t window = ReadWindow(reader, 0);
  SetKinds(reader, ReadLayerTypes(reader, shape.n_layers, kind), window, chunk,
           &stack);
  return stack;
}

// The released config says the window in sliding_window, itself included, and
// in sliding_window_size; transformers 5.24 takes the second for one less and
// so has 129 where the first says 128. The first counts here.
AttentionStack MiMoV2Flash(ConfigReader* reader) {
  const Shape shape = ReadShape(reader, {.vocab_size = 152'576,
                                         .hidden_size = 4096,
                                         .n_layers = 48,
                                         .n_heads = 64,
                                         .n_kv_heads = 4,
                                         .head_dim = 192,
                                         .max_positions = 131'072});
  AttentionStack stack = StackOf(shape);
  std::vector<bool> slides;
  for (int64_t l = 0; l < shape.n_layers; ++l) {
    slides.push_back(l != 0 && (l + 1) % 6 != 0);
  }
  slides = ReadFlags(reader, "hybrid_layer_pattern", std::move(slides));
  const auto kind = [&](int64_t layer) {
    return slides[static_cast<size_t>(layer)] ? LayerKind::kSliding
                                              : LayerKind::kFull;
  };
  const int64_t window = ReadWindow(reader, 129);
  SetKinds(reader, ReadLayerTypes(reader, shape.n_layers, kind), window, 0,
           &stack);
  const int64_t v_dim = reader->Int("v_head_dim", 128, 1, kMaxDim);
  const LayerSpec sliding = {
      .n_kv_heads = reader->Int("swa_num_key_value_heads", 2 * shape.n_kv_heads,
                                1, kMaxHeads),
      .k_dim = reader->Int("swa_head_dim", shape.head_dim, 1, kMaxDim),
      .v_dim = reader->Int("swa_v_head_dim", v_dim, 1, kMaxDim)};
  for (LayerSpec& spec : stack.layers) {
    spec.v_dim = v_dim;
    if (spec.kind != LayerKind::kSliding) continue;
    spec.n_kv_heads = sliding.n_kv_heads;
    spec.k_dim = sliding.k_dim;
    spec.v_dim = sliding.v_dim;
  }
  stack.row_keys =
      "'num_key_value_heads', 'head_dim', 'v_head_dim' and their 'swa_' forms";
  return stack;
}

AttentionStack Step3p5(ConfigReader* reader) {
  // The released name, and that of transformers.
  const char* const heads_key = reader->Has("num_attention_groups")
                                    ? "num_attention_groups"
                                    : "num_key_value_heads";
  const Shape shape = ReadShape(reader,
                                {.vocab_size = 128'815,
                                 .hidden_size = 4096,
                                 .n_layers = 45,
                                 .n_heads = 64,
                                 .n_kv_heads = 8,
                                 .head_dim = 128,
                                 .max_positions = 128'000},
                                heads_key);
  AttentionStack stack = StackOf(shape);
  stack.n_draft_layers = ReadDraftLayers(reader);
  const int64_t window = ReadWindow(reader, 0);
  SetKinds(reader,
           ReadLayerTypes(
               reader, shape.n_layers, [](int64_t) { return LayerKind::kFull; },
               stack.n_draft_layers),
           window, 0, &stack);
  // Sliding layers may have shapes of their own.
  LayerSpec sliding = stack.layers.front();
  constexpr const char* kOther = "attention_other_setting";
  if (reader->Has(kOther) && !reader->at(kOther).is_object()) {
    reader->WrongType(kOther, "an object");
  } else if (reader->Has(kOther)) {
    ConfigReader other(reader->at(kOther));
    sliding.n_kv_heads =
        other.Int("num_attention_groups", shape.n_kv_heads, 1, kMaxHeads);
    sliding.k_dim = other.Int("head_dim", shape.head_dim, 1, kMaxDim);
    if (!other.status().ok()) reader->Fail(other.status());
  }
  for (LayerSpec& spec : stack.layers) {
    if (spec.kind != LayerKind::kSliding) continue;
    spec.n_kv_heads = sliding.n_kv_heads;
    spec.k_dim = spec.v_dim = sliding.k_dim;
  }
  stack.row_keys =
      "'num_attention_groups' and 'head_dim', also of "
      "'attention_other_setting',";
  return stack;
}

}  // namespace torpor::replay::layouts
