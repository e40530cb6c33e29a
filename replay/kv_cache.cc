// SPDX-License-Identifier: Apache-2.0

#include "replay/kv_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {
namespace {

constexpr uint64_t kPageTokens = kernels::kPageTokens;

// Pages of a ring in which a window and `max_rows` rows after it never share a
// slot, wherever they begin inside a page.
uint64_t RingPages(uint64_t window, uint64_t max_rows) {
  return (window - 1 + max_rows + kPageTokens - 1) / kPageTokens + 1;
}

}  // namespace

KvCache::KvCache(kernels::Ops* ops, std::vector<KvLayerSpec> layers,
                 uint64_t max_rows)
    : ops_(*ops) {
  for (uint32_t l = 0; l < layers.size(); ++l) {
    const KvLayerSpec& spec = layers[l];
    places_.resize(std::max<size_t>(
        places_.size(), std::max(spec.k_slot, spec.v_slot) + size_t{1}));
    places_[spec.k_slot] = {l, true, true};
    places_[spec.v_slot] = {l, false, true};
    layers_.push_back({.spec = spec});
    if (spec.window == 0) continue;
    Layer& layer = layers_.back();
    for (uint64_t i = 0; i < RingPages(spec.window, max_rows); ++i) {
      layer.pages.push_back(ops_.NewPage(spec.shape));
    }
  }
}

KvCache::~KvCache() {
  for (const Layer& layer : layers_) {
    for (uint8_t* page : layer.pages) ops_.Free(page);
  }
}

uint64_t KvCache::BytesFor(const kernels::Ops& ops,
                           std::span<const KvLayerSpec> layers,
                           uint64_t max_rows, uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const KvLayerSpec& spec : layers) {
    const uint64_t pages = spec.window == 0
                               ? (n_tokens + kPageTokens - 1) / kPageTokens
                               : RingPages(spec.window, max_rows);
    bytes += pages * ops.PageBytes(spec.shape);
  }
  return bytes;
}

uint64_t KvCache::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.pages.size() * ops_.PageBytes(layer.spec.shape);
  }
  return bytes;
}

void KvCache::Reserve(uint32_t l, uint64_t end) {
  Layer& layer = layers_[l];
  if (layer.spec.window != 0) return;
  while (layer.pages.size() * kPageTokens < end) {
    layer.pages.push_back(ops_.NewPage(layer.spec.shape));
  }
}

void KvCache::PutRows(uint32_t l, uint64_t pos, uint64_t n, KvRows rows) {
  Layer& layer = layers_[l];
  Reserve(l, pos + n);
  ops_.PutKv({.shape = layer.spec.shape,
              .pages = layer.pages.data(),
              .n_pages = static_cast<int64_t>(layer.pages.size()),
              .position = static_cast<int64_t>(pos),
              .n_rows = static_cast<int64_t>(n),
              .k = rows.k,
              .k_stride = rows.k_stride,
              .v = rows.v,
              .v_stride = rows.v_stride});
  layer.end = std::max(layer.end, pos + n);
}

kernels::KvView KvCache::View(uint32_t l) const {
  const Layer& layer = layers_[l];
  return {layer.pages.data(), static_cast<int64_t>(layer.pages.size())};
}

KvCache::SlotPlace KvCache::Place(uint32_t slot) const {
  return slot < places_.size() ? places_[slot] : SlotPlace{};
}

kernels::KvRowBytes KvCache::RowBytes(const SlotPlace& place, Rows rows) const {
  const Layer& layer = layers_[place.layer];
  return {.shape = layer.spec.shape,
          .pages = layer.pages.data(),
          .n_pages = static_cast<int64_t>(layer.pages.size()),
          .position = static_cast<int64_t>(rows.begin),
          .n_rows = static_cast<int64_t>(rows.size()),
          .is_k = place.is_k};
}

absl::Status KvCache::ImportRows(uint32_t slot, uint64_t row_begin,
                                 std::span<const uint8_t> bytes) {
  const SlotPlace place = Place(slot);
  if (!place.known) {
    return absl::InvalidArgumentError(
        absl::StrFormat("import rows: the sequence has no slot %d", slot));
  }
  Layer& layer = layers_[place.layer];
  const size_t row_bytes = layer.spec.shape.row_bytes();
  if (bytes.size() % row_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "import rows of slot %d: got %d bytes, wanted rows of %d", slot,
        bytes.size(), row_bytes));
  }
  const uint64_t n = bytes.size() / row_bytes;
  if (layer.spec.window != 0 && n > layer.pages.size() * kPageTokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("import rows of slot %d: %d rows into a ring of %d",
                        slot, n, layer.pages.size() * kPageTokens));
  }
  Reserve(place.layer, row_begin + n);
  TORPOR_RETURN_IF_ERROR(
      ops_.ImportKv(RowBytes(place, {row_begin, row_begin + n}), bytes));
  layer.end = std::max(layer.end, row_begin + n);
  return absl::OkStatus();
}

absl::Status KvCache::ExportRows(uint32_t slot, Rows rows,
                                 std::span<uint8_t> out) const {
  const SlotPlace place = Place(slot);
  if (!place.known) {
    return absl::InvalidArgumentError(
        absl::StrFormat("export rows: the sequence has no slot %d", slot));
  }
  const Layer& layer = layers_[place.layer];
  const size_t row_bytes = layer.spec.shape.row_bytes();
  const uint64_t capacity = layer.pages.size() * kPageTokens;
  const uint64_t oldest =
      layer.spec.window == 0 || layer.end < capacity ? 0 : layer.end - capacity;
  if (rows.begin > rows.end || rows.end > layer.end || rows.begin < oldest) {
    return absl::OutOfRangeError(
        absl::StrFormat("export rows [%d, %d) of slot %d: [%d, %d) are held",
                        rows.begin, rows.end, slot, oldest, layer.end));
  }
  if (out.size() != rows.size() * row_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "export rows [%d, %d) of slot %d: got a buffer of %d bytes, wanted %d",
        rows.begin, rows.end, slot, out.size(), rows.size() * row_bytes));
  }
  return ops_.ExportKv(RowBytes(place, rows), out);
}

}  // namespace torpor::replay
