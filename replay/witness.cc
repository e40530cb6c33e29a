// SPDX-License-Identifier: Apache-2.0

#include "replay/witness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/bf16.h"

namespace torpor::replay {
namespace {

// Window slots of each layer that has some, in layout order.
std::map<uint32_t, std::vector<const SlotRows*>> ByLayer(
    const ModelLayout& layout, const WindowState& window) {
  std::map<uint32_t, std::vector<const SlotRows*>> layers;
  for (const SlotRows& rows : window.slots) {
    const Slot& slot = layout.slots[rows.slot];
    if (slot.is_window()) layers[slot.owner_layer].push_back(&rows);
  }
  return layers;
}

std::vector<uint8_t> RowAt(const ModelLayout& layout,
                           const std::vector<const SlotRows*>& slots,
                           uint64_t position) {
  std::vector<uint8_t> row;
  for (const SlotRows* rows : slots) {
    const uint64_t row_bytes = layout.slots[rows->slot].row_bytes;
    const auto from =
        rows->bytes.begin() +
        static_cast<ptrdiff_t>((position - rows->first) * row_bytes);
    row.insert(row.end(), from, from + static_cast<ptrdiff_t>(row_bytes));
  }
  return row;
}

Digest128 DigestOf(const ModelLayout& layout,
                   const std::vector<const SlotRows*>& slots) {
  std::vector<uint8_t> hashes;
  for (uint64_t pos = slots.front()->first; pos < slots.front()->end; ++pos) {
    const uint64_t hash = Xxh3(RowAt(layout, slots, pos));
    for (int i = 0; i < 8; ++i) {
      hashes.push_back(static_cast<uint8_t>(hash >> (8 * i)));
    }
  }
  return Xxh3Digest128(hashes);
}

// Elements of a row as floats, or its bytes where the format is not known.
std::vector<float> Values(const std::string& format,
                          std::span<const uint8_t> row) {
  std::vector<float> out;
  if (format == "bf16") {
    for (size_t i = 0; i + 1 < row.size(); i += 2) {
      out.push_back(
          kernels::ToFloat({static_cast<uint16_t>(row[i] | row[i + 1] << 8)}));
    }
  } else if (format == "f32") {
    for (size_t i = 0; i + 3 < row.size(); i += 4) {
      float v = 0;
      std::memcpy(&v, row.data() + i, 4);
      out.push_back(v);
    }
  } else {
    out.assign(row.begin(), row.end());
  }
  return out;
}

class ErrorSum {
 public:
  void Add(std::span<const float> got, std::span<const float> wanted) {
    for (size_t i = 0; i < wanted.size() && i < got.size(); ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - wanted[i]);
      // A NaN that is not in the witness is the largest error there is.
      max_ = std::isnan(error) ? INFINITY : std::max(max_, error);
      sum_ += std::isnan(error) ? INFINITY : error;
      largest_ = std::max(largest_, std::abs(static_cast<double>(wanted[i])));
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
  for (const auto& [layer, slots] : ByLayer(layout, window)) {
    LayerWitness one;
    one.layer = layer;
    one.digest = DigestOf(layout, slots);
    const Slot& slot = layout.slots[slots.front()->slot];
    const uint64_t w = slot.reach();
    std::set<uint64_t> positions;
    for (const uint64_t back : {uint64_t{1}, w / 4, w / 2, 3 * w / 4, w - 1}) {
      if (back == 0 || back > window.resume_at) continue;
      const uint64_t pos = window.resume_at - back;
      if (pos >= slots.front()->first && pos < slots.front()->end) {
        positions.insert(pos);
      }
    }
    for (const uint64_t pos : positions) {
      one.rows.push_back({pos, RowAt(layout, slots, pos)});
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
  for (const LayerWitness& wanted : witness.layers) {
    const auto found = layers.find(wanted.layer);
    if (found == layers.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "witness: of layer %d, which has no window", wanted.layer));
    }
    const std::vector<const SlotRows*>& slots = found->second;
    LayerError error;
    error.layer = wanted.layer;
    error.digest_equal = DigestOf(layout, slots) == wanted.digest;
    ErrorSum sum;
    for (const WitnessRow& row : wanted.rows) {
      if (row.position < slots.front()->first ||
          row.position >= slots.front()->end) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d lies outside the window", row.position,
            wanted.layer));
      }
      const std::vector<uint8_t> got = RowAt(layout, slots, row.position);
      if (got.size() != row.bytes.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "witness: row %d of layer %d has %d bytes, wanted %d", row.position,
            wanted.layer, row.bytes.size(), got.size()));
      }
      const std::string& format = layout.slots[slots.front()->slot].format;
      sum.Add(Values(format, got), Values(format, row.bytes));
    }
    error.max_relative = sum.max_relative();
    error.mean_relative = sum.mean_relative();
    if (!error.digest_equal) report.verdict = Verdict::kMeasured;
    report.layers.push_back(error);
  }
  return report;
}

}  // namespace torpor::replay
