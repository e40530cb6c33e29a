// SPDX-License-Identifier: Apache-2.0

#include "replay/kv_cache.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_format.h"

namespace torpor::replay {
namespace {

constexpr std::align_val_t kAlign{64};
constexpr uint64_t kPageTokens = kernels::kPageTokens;

// Pages of a ring in which a window and `max_rows` rows after it never share a
// slot, wherever they begin inside a page.
uint64_t RingPages(uint64_t window, uint64_t max_rows) {
  return (window - 1 + max_rows + kPageTokens - 1) / kPageTokens + 1;
}

}  // namespace

KvCache::Page::Page(size_t n)
    : data(static_cast<uint8_t*>(operator new(n, kAlign))) {
  std::memset(data, 0, n);
}
KvCache::Page::~Page() { operator delete(data, kAlign); }
KvCache::Page::Page(Page&& other) noexcept
    : data(std::exchange(other.data, nullptr)) {}

KvCache::KvCache(std::vector<KvLayerSpec> layers, uint64_t max_rows) {
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
      layer.pages.emplace_back(spec.shape.page_bytes());
      layer.view.push_back(layer.pages.back().data);
    }
  }
}
KvCache::~KvCache() = default;

uint64_t KvCache::BytesFor(std::span<const KvLayerSpec> layers,
                           uint64_t max_rows, uint64_t n_tokens) {
  uint64_t bytes = 0;
  for (const KvLayerSpec& spec : layers) {
    const uint64_t pages = spec.window == 0
                               ? (n_tokens + kPageTokens - 1) / kPageTokens
                               : RingPages(spec.window, max_rows);
    bytes += pages * spec.shape.page_bytes();
  }
  return bytes;
}

uint64_t KvCache::bytes() const {
  uint64_t bytes = 0;
  for (const Layer& layer : layers_) {
    bytes += layer.pages.size() * layer.spec.shape.page_bytes();
  }
  return bytes;
}

void KvCache::Reserve(uint32_t l, uint64_t end) {
  Layer& layer = layers_[l];
  if (layer.spec.window != 0) return;
  while (layer.pages.size() * kPageTokens < end) {
    layer.pages.emplace_back(layer.spec.shape.page_bytes());
    layer.view.push_back(layer.pages.back().data);
  }
}

uint8_t* KvCache::PageOf(const Layer& layer, uint64_t pos) const {
  return layer.pages[(pos / kPageTokens) % layer.pages.size()].data;
}

void KvCache::PutRow(uint32_t l, uint64_t pos, const void* k, const void* v) {
  Layer& layer = layers_[l];
  uint8_t* page = PageOf(layer, pos);
  const auto token = static_cast<int64_t>(pos % kPageTokens);
  kernels::PutKRow(layer.spec.shape, page, token, k);
  kernels::PutVRow(layer.spec.shape, page, token, v);
  layer.end = std::max(layer.end, pos + 1);
}

kernels::KvView KvCache::View(uint32_t l) const {
  const Layer& layer = layers_[l];
  return {layer.view.data(), static_cast<int64_t>(layer.view.size())};
}

KvCache::SlotPlace KvCache::Place(uint32_t slot) const {
  return slot < places_.size() ? places_[slot] : SlotPlace{};
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
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t pos = row_begin + i;
    uint8_t* page = PageOf(layer, pos);
    const auto token = static_cast<int64_t>(pos % kPageTokens);
    const uint8_t* row = bytes.data() + i * row_bytes;
    place.is_k ? kernels::PutKRow(layer.spec.shape, page, token, row)
               : kernels::PutVRow(layer.spec.shape, page, token, row);
  }
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
  for (uint64_t pos = rows.begin; pos < rows.end; ++pos) {
    const uint8_t* page = PageOf(layer, pos);
    const auto token = static_cast<int64_t>(pos % kPageTokens);
    uint8_t* row = out.data() + (pos - rows.begin) * row_bytes;
    place.is_k ? kernels::GetKRow(layer.spec.shape, page, token, row)
               : kernels::GetVRow(layer.spec.shape, page, token, row);
  }
  return absl::OkStatus();
}

}  // namespace torpor::replay
