// SPDX-License-Identifier: Apache-2.0

#include "replay/layouts/attention_stack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace torpor::replay::layouts {
namespace {

// Bytes of the widest row of a layout.
constexpr int64_t kMaxRowBytes = int64_t{1} << 20;

int64_t OwnerOf(const AttentionStack& stack, size_t layer) {
  const int64_t owner = stack.layers[layer].owner;
  return owner < 0 ? static_cast<int64_t>(layer) : owner;
}

Slot RowSlot(const LayerSpec& spec, int64_t layer, const char* part,
             int64_t dim, const KvFormat& format) {
  Slot slot;
  slot.name = absl::StrFormat("layer.%d.%s", layer, part);
  slot.owner_layer = static_cast<uint32_t>(layer);
  slot.row_bytes = static_cast<uint32_t>(spec.n_kv_heads * dim * format.bytes);
  slot.format = format.name;
  // One latent serves all heads: every rank holds it whole.
  slot.shard_axis =
      spec.v_dim == 0 ? ShardAxis::kReplicated : ShardAxis::kHeads;
  slot.n_heads = static_cast<uint32_t>(spec.n_kv_heads);
  if (spec.kind == LayerKind::kSliding) {
    slot.kind = SlotKind::kSliding;
    slot.window = static_cast<uint32_t>(spec.reach);
  } else if (spec.kind == LayerKind::kChunked) {
    slot.kind = SlotKind::kChunked;
    slot.chunk = static_cast<uint32_t>(spec.reach);
  }
  return slot;
}

}  // namespace

absl::StatusOr<KvFormat> KvFormatOf(const std::string& asked,
                                    const std::string& native) {
  const bool is_native = asked == "native";
  const std::string& name =
      is_native ? (native.empty() ? "bf16" : native) : asked;
  if (name == "bf16" || name == "f16") return KvFormat{name, 2};
  if (name == "f32") return KvFormat{name, 4};
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: got '%s', wanted bf16, f16 or f32",
                      is_native ? "config key 'dtype'" : "kv dtype", name));
}

absl::Status CheckStack(const AttentionStack& stack, const KvFormat& format) {
  for (size_t l = 0; l < stack.layers.size(); ++l) {
    const LayerSpec& spec = stack.layers[l];
    const int64_t dim = std::max(spec.k_dim, spec.v_dim);
    // Neither factor of a family exceeds 2^20, so this cannot overflow.
    const int64_t bytes = spec.n_kv_heads * dim * format.bytes;
    if (bytes < 1 || bytes > kMaxRowBytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "config keys %s: layer %d has %d KV heads of %d elements, rows of "
          "%d bytes, wanted 1 to %d",
          stack.row_keys, l, spec.n_kv_heads, dim, bytes, kMaxRowBytes));
    }
  }
  return absl::OkStatus();
}

ModelLayout BuildLayout(const AttentionStack& stack, const std::string& family,
                        const KvFormat& format) {
  ModelLayout layout;
  layout.family = family;
  layout.n_layers = static_cast<uint32_t>(stack.layers.size());
  layout.vocab_size = static_cast<uint32_t>(stack.vocab_size);
  std::vector<std::vector<uint32_t>> readers(stack.layers.size());
  for (size_t l = 0; l < stack.layers.size(); ++l) {
    readers[static_cast<size_t>(OwnerOf(stack, l))].push_back(
        static_cast<uint32_t>(l));
  }
  for (size_t l = 0; l < stack.layers.size(); ++l) {
    const auto layer = static_cast<int64_t>(l);
    if (OwnerOf(stack, l) != layer) continue;
    const LayerSpec& spec = stack.layers[l];
    const bool is_window =
        spec.kind != LayerKind::kFull && spec.reach < stack.max_positions;
    const auto add = [&](const char* part, int64_t dim) {
      Slot slot = RowSlot(spec, layer, part, dim, format);
      slot.reader_layers = readers[l];
      slot.come_back = is_window ? ComeBack::kReplay : ComeBack::kPersist;
      layout.slots.push_back(std::move(slot));
    };
    if (spec.v_dim == 0) {
      add("latent", spec.k_dim);
      continue;
    }
    add("k", spec.k_dim);
    add("v", spec.v_dim);
  }
  return layout;
}

}  // namespace torpor::replay::layouts
