// SPDX-License-Identifier: Apache-2.0

#include "replay/witness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/row_values.h"

namespace torpor::replay {
namespace {

// The window of one layer: its slots in layout order. A layer may own windows
// of several lengths; its rows are those of the longest.
struct LayerWindow {
  std::vector<const SlotRows*> slots;
  uint64_t first = 0;
  uint64_t end = 0;
  uint64_t reach = 0;

  [[nodiscard]] bool Has(uint64_t position) const {
    return position >= first && position < end;
  }
};

std::map<uint32_t, LayerWindow> ByLayer(const ModelLayout& layout,
                                        const WindowState& window) {
  std::map<uint32_t, LayerWindow> layers;
  for (const SlotRows& rows : window.slots) {
    const Slot& slot = layout.slots[rows.slot];
    if (!slot.is_window()) continue;
    LayerWindow& layer = layers[slot.owner_layer];
    const bool is_first = layer.slots.empty();
    layer.first = is_first ? rows.first : std::min(layer.first, rows.first);
    layer.end = is_first ? rows.end : std::max(layer.end, rows.end);
    layer.reach = std::max(layer.reach, slot.reach());
    layer.slots.push_back(&rows);
  }
  return layers;
}

// A slot's row; empty where its window does not reach.
std::span<const uint8_t> RowOf(const ModelLayout& layout, const SlotRows& rows,
                               uint64_t position) {
  if (position < rows.first || position >= rows.end) return {};
  const uint64_t row_bytes = layout.slots[rows.slot].row_bytes;
  return std::span(rows.bytes)
      .subspan((position - rows.first) * row_bytes, row_bytes);
}

std::vector<uint8_t> RowAt(const ModelLayout& layout, const LayerWindow& layer,
                           uint64_t position) {
  std::vector<uint8_t> row;
  for (const SlotRows* rows : layer.slots) {
    const std::span<const uint8_t> part = RowOf(layout, *rows, position);
    row.insert(row.end(), part.begin(), part.end());
  }
  return row;
}

Digest128 DigestOf(const ModelLayout& layout, const LayerWindow& layer) {
  std::vector<uint8_t> hashes;
  for (uint64_t pos = layer.first; pos < layer.end; ++pos) {
    const uint64_t hash = Xxh3(RowAt(layout, layer, pos));
    for (int i = 0; i < 8; ++i) {
      hashes.push_back(static_cast<uint8_t>(hash >> (8 * i)));
    }
  }
  return Xxh3Digest128(hashes);
}

// Elements of a row as floats, or its bytes where the format is not known.
std::vector<float> Values(const std::string& format,
                          std::span<const uint8_t> row) {
  if (row.empty()) return {};
  if (auto values = RowValues(format, row.size(), row)) {
    return *std::move(values);
  }
  return {row.begin(), row.end()};
}

class ErrorSum {
 public:
  void Add(std::span<const float> got, std::span<const float> wanted) {
    for (size_t i = 0; i < wanted.size() && i < got.size(); ++i) {
      const bool same =
          got[i] == wanted[i] || (std::isnan(got[i]) && std::isnan(wanted[i]));
      const double error =
          same ? 0 : std::abs(static_cast<double>(got[i]) - wanted[i]);
      // What one side alone has as NaN or infinity is the largest error there
      // is, and neither is a scale that errors shrink against.
      max_ = std::isfinite(error) ? std::max(max_, error) : INFINITY;
      sum_ += std::isfinite(error) ? error : INFINITY;
      if (std::isfinite(wanted[i])) {
        largest_ = std::max(largest_, std::abs(static_cast<double>(wanted[i])));
      }
      ++n_;
    }
  }
  [[nodiscard]] double max_relative() const { return Over(max_); }
  [[nodiscard]] double mean_relative() const {
    return n_ == 0 ? 0 : Over(sum_ / static_cast<double>(n_));
  }

 private:
  [[nodiscard]] double Over(double error) const {
    if (error == 0) return 0;
    return largest_ == 0 ? INFINITY : error / largest_;
  }

  double max_ = 0;
  double sum_ = 0;
  double largest_ = 0;
  uint64_t n_ = 0;
};

const LayerWitness* LayerOf(const Witness& witness, uint32_t layer) {
  for (const LayerWitness& one : witness.layers) {
    if (one.layer == layer) return &one;
  }
  return nullptr;
}

const WitnessRow* RowOf(const LayerWitness& layer, uint64_t position) {
  for (const WitnessRow& row : layer.rows) {
    if (row.position == position) return &row;
  }
  return nullptr;
}

// `layers` has which rows each slot holds, `got` and `wanted` their bytes.
absl::StatusOr<WitnessReport> Compare(
    const ModelLayout& layout, const std::map<uint32_t, LayerWindow>& layers,
    const Witness& got, const Witness& wanted) {
  if (got.resume_at != wanted.resume_at ||
      layers.size() != wanted.layers.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "witness: of a cut at %d with %d layers, the window is of %d with %d",
        wanted.resume_at, wanted.layers.size(), got.resume_at, layers.size()));
  }
  WitnessReport report;
  report.verdict = Verdict::kExact;
  std::set<uint32_t> seen;
  for (const LayerWitness& layer : wanted.layers) {
    const auto window = layers.find(layer.layer);
    const LayerWitness* const rebuilt = LayerOf(got, layer.layer);
    if (window == layers.end() || rebuilt == nullptr ||
        !seen.insert(layer.layer).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "witness: of layer %d, which %s", layer.layer,
          seen.contains(layer.layer) ? "stands in it twice" : "has no window"));
    }
    LayerError error;
    error.layer = layer.layer;
    error.digest_equal = rebuilt->digest == layer.digest;
    ErrorSum sum;
    for (const WitnessRow& row : layer.rows) {
      const WitnessRow* const same = RowOf(*rebuilt, row.position);
      if (same == nullptr) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d lies outside the window", row.position,
            layer.layer));
      }
      std::vector<const Slot*> parts;
      size_t bytes = 0;
      for (const SlotRows* rows : window->second.slots) {
        if (row.position < rows->first || row.position >= rows->end) continue;
        parts.push_back(&layout.slots[rows->slot]);
        bytes += parts.back()->row_bytes;
      }
      for (const WitnessRow* const one : {same, &row}) {
        if (one->bytes.size() == bytes) continue;
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d has %d bytes, wanted %d", row.position,
            layer.layer, one->bytes.size(), bytes));
      }
      size_t at = 0;
      for (const Slot* const slot : parts) {
        const auto part = [&](const WitnessRow& of) {
          return Values(slot->format,
                        std::span(of.bytes).subspan(at, slot->row_bytes));
        };
        sum.Add(part(*same), part(row));
        at += slot->row_bytes;
      }
    }
    error.max_relative = sum.max_relative();
    error.mean_relative = sum.mean_relative();
    if (!error.digest_equal) report.verdict = Verdict::kMeasured;
    report.layers.push_back(error);
  }
  return report;
}

}  // namespace

Witness MakeWitness(const ModelLayout& layout, std::string_view numerics_id,
                    const WindowState& window) {
  Witness witness;
  witness.numerics_id = numerics_id;
  witness.resume_at = window.resume_at;
  for (const auto& [layer, rows] : ByLayer(layout, window)) {
    LayerWitness one;
    one.layer = layer;
    one.digest = DigestOf(layout, rows);
    const uint64_t w = rows.reach;
    std::set<uint64_t> positions;
    for (const uint64_t back : {uint64_t{1}, w / 4, w / 2, 3 * w / 4, w - 1}) {
      if (back == 0 || back > window.resume_at) continue;
      const uint64_t pos = window.resume_at - back;
      if (rows.Has(pos)) positions.insert(pos);
    }
    for (const uint64_t pos : positions) {
      one.rows.push_back({pos, RowAt(layout, rows, pos)});
    }
    witness.layers.push_back(std::move(one));
  }
  return witness;
}

double WitnessReport::max_error() const {
  double error = 0;
  for (const LayerError& layer : layers) {
    error = std::max(error, layer.max_relative);
  }
  return error;
}

absl::StatusOr<WitnessReport> CompareWithWitness(const ModelLayout& layout,
                                                 const WindowState& window,
                                                 const Witness& witness) {
  const auto layers = ByLayer(layout, window);
  Witness got;
  got.resume_at = window.resume_at;
  for (const auto& [layer, rows] : layers) {
    LayerWitness& one = got.layers.emplace_back();
    one.layer = layer;
    one.digest = DigestOf(layout, rows);
    const LayerWitness* const wanted = LayerOf(witness, layer);
    if (wanted == nullptr) continue;
    for (const WitnessRow& row : wanted->rows) {
      if (!rows.Has(row.position)) continue;
      one.rows.push_back({row.position, RowAt(layout, rows, row.position)});
    }
  }
  return Compare(layout, layers, got, witness);
}

absl::StatusOr<WitnessReport> CompareWitnesses(const ModelLayout& layout,
                                               const Witness& got,
                                               const Witness& wanted) {
  WindowState window;
  window.resume_at = got.resume_at;
  window.slots = WindowRowsAt(layout, got.resume_at);
  return Compare(layout, ByLayer(layout, window), got, wanted);
}

}  // namespace torpor::replay
