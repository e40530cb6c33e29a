// SPDX-License-Identifier: Apache-2.0

#include "replay/layouts/deepseek_records.h"

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/layouts/attention_stack.h"
#include "replay/layouts/config_keys.h"

namespace torpor::replay::layouts {
namespace {

constexpr int64_t kV4Scale = 64;
constexpr int64_t kWindowScale = 32;
constexpr int64_t kMainScale = 16;
constexpr int64_t kIndexScale = 32;

absl::StatusOr<DeepSeekRecords> PlainRecords(const DeepSeekShape& shape,
                                             const std::string& kv_dtype) {
  TORPOR_ASSIGN_OR_RETURN(const KvFormat format, KvFormatOf(kv_dtype, ""));
  const RowRecord row = {format.name, shape.head_dim * format.bytes};
  return DeepSeekRecords{
      row, row, {format.name, shape.index_dim * format.bytes}};
}

RowRecord IndexRecord(const DeepSeekShape& shape) {
  return {"e2m1+ue8m0x32", shape.index_dim / 2 + shape.index_dim / kIndexScale};
}

absl::Status WantMultiple(const char* key, int64_t got, int64_t of) {
  if (got % of == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "config key '%s': got %d, wanted a multiple of %d, the elements of a "
      "scale, or a plain --kv-dtype",
      key, got, of));
}

// The families' own records have whole scales alone.
absl::Status CheckScales(const DeepSeekShape& shape) {
  TORPOR_RETURN_IF_ERROR(WantMultiple("head_dim", shape.head_dim, kV4Scale));
  return WantMultiple("index_head_dim", shape.index_dim, kIndexScale);
}

Slot SlotOf(const char* part, int64_t layer, const RowRecord& record) {
  Slot slot;
  slot.name = absl::StrFormat("layer.%d.%s", layer, part);
  slot.owner_layer = static_cast<uint32_t>(layer);
  slot.reader_layers = {slot.owner_layer};
  slot.row_bytes = static_cast<uint32_t>(record.bytes);
  slot.format = record.format;
  return slot;
}

}  // namespace

DeepSeekShape ReadDeepSeekShape(ConfigReader* reader,
                                const DeepSeekShape& defaults) {
  // Five slots a layer stay below what a layout holds.
  constexpr int64_t kMostLayers = 2048;
  DeepSeekShape shape;
  shape.vocab_size = reader->Int("vocab_size", defaults.vocab_size, 1, kMany);
  shape.n_layers =
      reader->Int("num_hidden_layers", defaults.n_layers, 1, kMostLayers);
  shape.head_dim = reader->Int("head_dim", defaults.head_dim, 1, kMaxDim / 2);
  shape.rope_dim =
      reader->Int("qk_rope_head_dim", defaults.rope_dim, 0, kMaxDim);
  shape.index_dim =
      reader->Int("index_head_dim", defaults.index_dim, 1, kMaxDim / 2);
  shape.max_positions = reader->Int("max_position_embeddings",
                                    defaults.max_positions, 1, kMaxPositions);
  shape.window = reader->Int("sliding_window", defaults.window, 1, kMaxReach);
  // One latent for all heads is what both families are built on.
  reader->Int("num_key_value_heads", 1, 1, 1);
  if (shape.rope_dim > shape.head_dim) {
    reader->Fail(absl::InvalidArgumentError(absl::StrFormat(
        "config key 'qk_rope_head_dim': got %d, wanted at most head_dim, %d",
        shape.rope_dim, shape.head_dim)));
  }
  return shape;
}

absl::StatusOr<DeepSeekRecords> V4Records(const DeepSeekShape& shape,
                                          const std::string& kv_dtype) {
  if (kv_dtype != "native") return PlainRecords(shape, kv_dtype);
  TORPOR_RETURN_IF_ERROR(CheckScales(shape));
  constexpr int64_t kAlignment = 8;
  const int64_t quantised = shape.head_dim - shape.rope_dim;
  const int64_t bytes =
      quantised + 2 * shape.rope_dim + (quantised + kV4Scale - 1) / kV4Scale;
  const RowRecord row = {"e4m3+ue8m0x64+bf16",
                         (bytes + kAlignment - 1) / kAlignment * kAlignment};
  return DeepSeekRecords{row, row, IndexRecord(shape)};
}

absl::StatusOr<DeepSeekRecords> V41Records(const DeepSeekShape& shape,
                                           const std::string& kv_dtype) {
  if (kv_dtype != "native") return PlainRecords(shape, kv_dtype);
  TORPOR_RETURN_IF_ERROR(CheckScales(shape));
  return DeepSeekRecords{
      {"e4m3+ue8m0x32", shape.head_dim + shape.head_dim / kWindowScale},
      {"e2m1+e4m3x16", shape.head_dim / 2 + shape.head_dim / kMainScale},
      IndexRecord(shape)};
}

Slot WindowSlot(const DeepSeekShape& shape, int64_t layer,
                const RowRecord& record) {
  Slot slot = SlotOf("window", layer, record);
  slot.kind = SlotKind::kSliding;
  slot.window = static_cast<uint32_t>(shape.window);
  slot.come_back = shape.window < shape.max_positions ? ComeBack::kReplay
                                                      : ComeBack::kPersist;
  return slot;
}

Slot PooledSlot(const char* part, int64_t layer, int64_t ratio,
                const RowRecord& record) {
  Slot slot = SlotOf(part, layer, record);
  slot.kind = SlotKind::kPooled;
  slot.tokens_per_row = static_cast<uint32_t>(ratio);
  slot.come_back = ComeBack::kPersist;
  return slot;
}

Slot OpenSlot(const char* part, int64_t layer, int64_t ratio, int64_t overlap,
              int64_t n_floats) {
  constexpr int64_t kFloatBytes = 4;
  Slot slot = SlotOf(part, layer, {"f32", n_floats * kFloatBytes});
  slot.kind = SlotKind::kOpenGroup;
  slot.tokens_per_row = static_cast<uint32_t>(ratio);
  slot.overlap_tokens = static_cast<uint32_t>(overlap);
  slot.come_back = ComeBack::kReplay;
  return slot;
}

}  // namespace torpor::replay::layouts
