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
  if (window.resume_at != witness.resume_at ||
      layers.size() != witness.layers.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "witness: of a cut at %d with %d layers, the window is of %d with %d",
        witness.resume_at, witness.layers.size(), window.resume_at,
        layers.size()));
  }
  WitnessReport report;
  report.verdict = Verdict::kExact;
  std::set<uint32_t> seen;
  for (const LayerWitness& wanted : witness.layers) {
    const auto found = layers.find(wanted.layer);
    if (found == layers.end() || !seen.insert(wanted.layer).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "witness: of layer %d, which %s", wanted.layer,
          found == layers.end() ? "has no window" : "stands in it twice"));
    }
    const LayerWindow& layer = found->second;
    LayerError error;
    error.layer = wanted.layer;
    error.digest_equal = DigestOf(layout, layer) == wanted.digest;
    ErrorSum sum;
    for (const WitnessRow& row : wanted.rows) {
      if (!layer.Has(row.position)) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d lies outside the window", row.position,
            wanted.layer));
      }
      const uint64_t row_bytes = RowAt(layout, layer, row.position).size();
      if (row_bytes != row.bytes.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d has %d bytes, wanted %d", row.position,
            wanted.layer, row.bytes.size(), row_bytes));
      }
      std::span<const uint8_t> rest = row.bytes;
      for (const SlotRows* rows : layer.slots) {
        const std::string& format = layout.slots[rows->slot].format;
        const std::span<const uint8_t> got = RowOf(layout, *rows, row.position);
        sum.Add(Values(format, got), Values(format, rest.first(got.size())));
        rest = rest.subspan(got.size());
      }
    }
    error.max_relative = sum.max_relative();
    error.mean_relative = sum.mean_relative();
    if (!error.digest_equal) report.verdict = Verdict::kMeasured;
    report.layers.push_back(error);
  }
  return report;
}

}  // namespace torpor::replay
