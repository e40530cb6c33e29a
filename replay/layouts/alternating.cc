// SPDX-License-Identifier: Apache-2.0
//
// Families in which every so many layers one is full and the others slide.

#include <functional>
#include <string>

#include "absl/strings/str_format.h"
#include "replay/layouts/config_keys.h"
#include "replay/layouts/families.h"

namespace torpor::replay::layouts {
namespace {

AttentionStack Alternating(ConfigReader* reader, const ShapeDefaults& defaults,
                           int64_t window_default,
                           const std::function<LayerKind(int64_t)>& pattern) {
  const Shape shape = ReadShape(reader, defaults);
  AttentionStack stack = StackOf(shape);
  const int64_t window = ReadWindow(reader, window_default);
  SetKinds(reader, ReadLayerTypes(reader, shape.n_layers, pattern), window, 0,
           &stack);
  return stack;
}

// sliding_window_pattern of EXAONE 4: every so-manieth layer is full, or a word
// of L (local) and G (global) that repeats, after which the last layer is
// global.
std::function<LayerKind(int64_t)> ExaonePattern(ConfigReader* reader,
                                                int64_t n_layers) {
  constexpr const char* kKey = "sliding_window_pattern";
  const auto all_full = [](int64_t) { return LayerKind::kFull; };
  // Without a window nothing slides; null says the same of the pattern.
  if (reader->IsNull("sliding_window") || reader->IsNull(kKey)) return all_full;
  if (!reader->Has(kKey) || !reader->at(kKey).is_string()) {
    return FullEvery(reader->Int(kKey, 4, 1, kMany));
  }
  const std::string word = reader->String(kKey, "");
  if (word.empty() || word.find_first_not_of("LG") != std::string::npos) {
    reader->WrongType(kKey, "an integer or a word of L and G");
    return all_full;
  }
  return [word, n_layers](int64_t layer) {
    const char letter = word[static_cast<size_t>(layer) % word.size()];
    return letter == 'G' || layer == n_layers - 1 ? LayerKind::kFull
                                                  : LayerKind::kSliding;
  };
}

}  // namespace

AttentionStack Gemma2(ConfigReader* reader) {
  return Alternating(reader,
                     {.vocab_size = 256'000,
                      .hidden_size = 2304,
                      .n_layers = 26,
                      .n_heads = 8,
                      .n_kv_heads = 4,
                      .head_dim = 256,
                      .max_positions = 8192},
                     4096, FullEvery(2));
}

AttentionStack Cohere2(ConfigReader* reader) {
  return Alternating(
      reader,
      {.vocab_size = 256'000,
       .hidden_size = 8192,
       .n_layers = 40,
       .n_heads = 64,
       .max_positions = 8192},
      4096, FullEvery(reader->Int("sliding_window_pattern", 4, 1, kMany)));
}

AttentionStack Olmo3(ConfigReader* reader) {
  return Alternating(reader,
                     {.vocab_size = 50'304,
                      .hidden_size = 4096,
                      .n_layers = 32,
                      .n_heads = 32,
                      .max_positions = 2048},
                     4096, FullEvery(4));
}

AttentionStack GptOss(ConfigReader* reader) {
  return Alternating(reader,
                     {.vocab_size = 201'088,
                      .hidden_size = 2880,
                      .n_layers = 36,
                      .n_heads = 64,
                      .n_kv_heads = 8,
                      .head_dim = 64,
                      .max_positions = 131'072},
                     128, FullEvery(2));
}

AttentionStack Exaone4(ConfigReader* reader) {
  constexpr int64_t kLayers = 32;
  return Alternating(
      reader,
      {.vocab_size = 102'400,
       .hidden_size = 4096,
       .n_layers = kLayers,
       .n_heads = 32,
       .n_kv_heads = 32,
       .max_positions = 2048},
      4096,
      ExaonePattern(reader,
                    reader->Int("num_hidden_layers", kLayers, 1, kMaxLayers)));
}

}  // namespace torpor::replay::layouts
