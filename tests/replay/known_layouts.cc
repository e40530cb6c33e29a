// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/known_layouts.h"

#include <algorithm>
#include <string>

#include "tests/replay/layout_builder.h"

namespace torpor::replay {
namespace {

std::string Name(uint32_t layer, const std::string& what) {
  return "layer" + std::to_string(layer) + "." + what;
}

ModelLayout Windows(uint32_t n_layers, uint32_t row_bytes) {
  return LayoutOf(Times(n_layers, "s"), 128, row_bytes, 1);
}

}  // namespace

ModelLayout Gemma3With270M() {
  return LayoutOf(Times(3, "sssssf"), 512, 1024, 1024);
}

ModelLayout GptOssWith20B() {
  return LayoutOf(Times(12, "sf"), 128, 2048, 2048);
}

ModelLayout Nano() { return LayoutOf(Times(2, "sssssssf"), 128, 256, 256); }

ModelLayout Llama4Scout() {
  return LayoutOf(Times(12, "cccf"), 8192, 4096, 4096);
}

ModelLayout Mistral7B() { return LayoutOf(Times(32, "s"), 4096, 4096, 4096); }

ModelLayout Gemma3nE4B() {
  ModelLayout layout = LayoutOf(Times(4, "ssssf"), 512, 2048, 2048);
  layout.n_layers = 35;
  for (uint32_t layer = 20; layer < 35; ++layer) {
    layout.slots[layer % 5 == 4 ? 19 : 18].reader_layers.push_back(layer);
  }
  return layout;
}

ModelLayout DeepSeekV41Flash(const DeepSeekBytes& bytes) {
  ModelLayout layout = Windows(40, bytes.window_row);
  for (const uint32_t source : {2, 8, 14, 20}) {
    const uint32_t ratio = source == 20 ? 1 : 2;
    const uint32_t last = source == 20 ? 39 : source + 5;
    Slot main = PooledSlot(Name(source, "main"), source, ratio, bytes.main_row);
    for (uint32_t layer = source + 1; layer <= last; ++layer) {
      main.reader_layers.push_back(layer);
    }
    Slot index = main;
    index.name = Name(source, "index");
    index.row_bytes = bytes.index_row;
    layout.slots.push_back(main);
    layout.slots.push_back(index);
    if (ratio == 1) continue;
    layout.slots.push_back(
        OpenGroupSlot(Name(source, "open"), source, ratio, 0, 4096));
  }
  return layout;
}

ModelLayout DeepSeekV4Flash(const DeepSeekBytes& bytes) {
  ModelLayout layout = Windows(43, bytes.window_row);
  for (uint32_t layer = 2; layer < 43; ++layer) {
    const bool indexed = layer % 2 == 0;
    const uint32_t ratio = indexed ? 4 : 128;
    layout.slots.push_back(
        PooledSlot(Name(layer, "main"), layer, ratio, bytes.main_row));
    if (indexed) {
      layout.slots.push_back(
          PooledSlot(Name(layer, "index"), layer, ratio, bytes.index_row));
    }
    layout.slots.push_back(OpenGroupSlot(Name(layer, "open"), layer, ratio,
                                         indexed ? 4 : 0, 4096));
  }
  return layout;
}

}  // namespace torpor::replay
