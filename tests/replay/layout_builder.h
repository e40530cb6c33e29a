// SPDX-License-Identifier: Apache-2.0
//
// Slots in one call each, for tests that spell a layout out.

#ifndef TORPOR_TESTS_REPLAY_LAYOUT_BUILDER_H_
#define TORPOR_TESTS_REPLAY_LAYOUT_BUILDER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "replay/model_layout.h"

namespace torpor::replay {

inline Slot MakeSlot(std::string name, SlotKind kind, uint32_t owner,
                     uint32_t row_bytes, ComeBack come_back) {
  Slot slot;
  slot.name = std::move(name);
  slot.kind = kind;
  slot.owner_layer = owner;
  slot.reader_layers = {owner};
  slot.row_bytes = row_bytes;
  slot.format = "bf16";
  slot.come_back = come_back;
  return slot;
}

inline Slot FullSlot(uint32_t owner, uint32_t row_bytes) {
  return MakeSlot("layer" + std::to_string(owner) + ".full", SlotKind::kFull,
                  owner, row_bytes, ComeBack::kPersist);
}

inline Slot SlidingSlot(uint32_t owner, uint32_t window, uint32_t row_bytes) {
  Slot slot = MakeSlot("layer" + std::to_string(owner) + ".window",
                       SlotKind::kSliding, owner, row_bytes, ComeBack::kReplay);
  slot.window = window;
  return slot;
}

inline Slot ChunkedSlot(uint32_t owner, uint32_t chunk, uint32_t row_bytes) {
  Slot slot = MakeSlot("layer" + std::to_string(owner) + ".chunk",
                       SlotKind::kChunked, owner, row_bytes, ComeBack::kReplay);
  slot.chunk = chunk;
  return slot;
}

inline Slot PooledSlot(const std::string& name, uint32_t owner, uint32_t ratio,
                       uint32_t row_bytes) {
  Slot slot =
      MakeSlot(name, SlotKind::kPooled, owner, row_bytes, ComeBack::kPersist);
  slot.tokens_per_row = ratio;
  return slot;
}

inline Slot OpenGroupSlot(const std::string& name, uint32_t owner,
                          uint32_t ratio, uint32_t overlap,
                          uint32_t row_bytes) {
  Slot slot =
      MakeSlot(name, SlotKind::kOpenGroup, owner, row_bytes, ComeBack::kReplay);
  slot.tokens_per_row = ratio;
  slot.overlap_tokens = overlap;
  return slot;
}

// Layers in order: 's' sliding, 'c' chunked, 'f' full.
inline ModelLayout LayoutOf(const std::string& layers, uint32_t reach,
                            uint32_t window_bytes, uint32_t full_bytes) {
  ModelLayout layout;
  layout.family = "test";
  layout.vocab_size = 1000;
  layout.n_layers = static_cast<uint32_t>(layers.size());
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    layout.slots.push_back(
        layers[layer] == 's'   ? SlidingSlot(layer, reach, window_bytes)
        : layers[layer] == 'c' ? ChunkedSlot(layer, reach, window_bytes)
                               : FullSlot(layer, full_bytes));
  }
  return layout;
}

// `pattern`, `n` times.
inline std::string Times(uint64_t n, const std::string& pattern) {
  std::string out;
  for (uint64_t i = 0; i < n; ++i) out += pattern;
  return out;
}

}  // namespace torpor::replay

#endif  // TORPOR_TESTS_REPLAY_LAYOUT_BUILDER_H_
