// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/layout_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace torpor::replay {
namespace {

constexpr uint32_t kHidden = 8;

// A weight of [-1, 1), the same for the same numbers.
float Weight(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t h = 0x9e3779b97f4a7c15u;
  for (const uint64_t v : {a, b, c, d}) {
    h = (h ^ (v + 1)) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
  }
  return static_cast<float>(h >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

using Row = std::vector<float>;

class MapSequence final : public Sequence {
 public:
  MapSequence(const ModelLayout& layout, uint64_t max_rows)
      : layout_(layout), max_rows_(max_rows), slots_(layout.slots.size()) {}

  absl::Status ImportRows(uint32_t slot, uint64_t row_begin,
                          std::span<const uint8_t> bytes) override {
    if (slot >= slots_.size() ||
        bytes.size() % layout_.slots[slot].row_bytes != 0) {
      return absl::InvalidArgumentError("import rows: slot or size");
    }
    const size_t row_bytes = layout_.slots[slot].row_bytes;
    const uint64_t n = bytes.size() / row_bytes;
    if (n > Room(layout_.slots[slot])) {
      return absl::OutOfRangeError("import rows: more than the window holds");
    }
    for (uint64_t i = 0; i < n; ++i) {
      Row row(row_bytes / 4);
      std::memcpy(row.data(), bytes.data() + i * row_bytes, row_bytes);
      Put(slot, row_begin + i, std::move(row));
    }
    return absl::OkStatus();
  }

  absl::Status ExportRows(uint32_t slot, Rows rows,
                          std::span<uint8_t> out) const override {
    if (slot >= slots_.size()) {
      return absl::InvalidArgumentError("export rows: slot");
    }
    if (rows.begin > rows.end) return absl::OutOfRangeError("export rows");
    for (uint64_t i = rows.begin; i < rows.end; ++i) {
      if (Find(slot, i) == nullptr) {
        return absl::OutOfRangeError(
            absl::StrFormat("export rows: row %d of slot %d", i, slot));
      }
    }
    const size_t row_bytes = layout_.slots[slot].row_bytes;
    if (out.size() != rows.size() * row_bytes) {
      return absl::InvalidArgumentError("export rows: size");
    }
    for (uint64_t i = rows.begin; i < rows.end; ++i) {
      std::memcpy(out.data() + (i - rows.begin) * row_bytes,
                  Find(slot, i)->data(), row_bytes);
    }
    return absl::OkStatus();
  }

  uint64_t bytes() const override {
    uint64_t bytes = 0;
    for (size_t i = 0; i < slots_.size(); ++i) {
      bytes += slots_[i].size() * layout_.slots[i].row_bytes;
    }
    return bytes;
  }

  // Rows of the slot that stand beside each other.
  [[nodiscard]] uint64_t Room(const Slot& slot) const {
    if (slot.is_window()) return slot.reach() - 1 + max_rows_;
    if (slot.kind == SlotKind::kOpenGroup) {
      return slot.tokens_per_row + slot.overlap_tokens;
    }
    return UINT64_MAX;
  }

  void Put(uint32_t slot, uint64_t at, Row row) {
    std::map<uint64_t, Row>& rows = slots_[slot];
    rows[at] = std::move(row);
    const uint64_t room = Room(layout_.slots[slot]);
    while (rows.rbegin()->first - rows.begin()->first >= room) {
      rows.erase(rows.begin());
    }
  }

  [[nodiscard]] const Row* Find(uint32_t slot, uint64_t at) const {
    const auto found = slots_[slot].find(at);
    return found == slots_[slot].end() ? nullptr : &found->second;
  }

 private:
  const ModelLayout& layout_;
  const uint64_t max_rows_;
  std::vector<std::map<uint64_t, Row>> slots_;
};

class LayoutModel final : public Model {
 public:
  explicit LayoutModel(LayoutModelOptions options) : o_(std::move(options)) {}

  const ModelLayout& layout() const override { return o_.layout; }
  const Fingerprint& fingerprint() const override { return fingerprint_; }
  const std::string& numerics_id() const override { return numerics_id_; }
  uint32_t vocab_size() const override { return o_.layout.vocab_size; }
  uint32_t hidden_size() const override { return kHidden; }
  uint64_t max_rows() const override { return o_.max_rows; }
  uint64_t SequenceBytes(uint64_t n_tokens) const override {
    const MapSequence empty(o_.layout, o_.max_rows);
    uint64_t bytes = 0;
    for (const Slot& slot : o_.layout.slots) {
      const uint64_t rows = slot.come_back == ComeBack::kPersist
                                ? n_tokens / slot.tokens_per_row
                                : empty.Room(slot);
      bytes += rows * slot.row_bytes;
    }
    return bytes;
  }
  uint64_t WorkBytes() const override { return o_.max_rows * kHidden * 8; }
  std::unique_ptr<Sequence> NewSequence() override {
    return std::make_unique<MapSequence>(o_.layout, o_.max_rows);
  }

  absl::Status Forward(std::span<const Segment> segments,
                       const ForwardOptions& options,
                       std::vector<std::vector<float>>* logits) override {
    std::vector<std::vector<float>> x;
    TORPOR_RETURN_IF_ERROR(Embed(segments, &x));
    for (uint32_t l = 0; l < o_.layout.n_layers; ++l) {
      if (options.cancelled && options.cancelled()) {
        return absl::CancelledError("forward: cancelled");
      }
      if (options.before_layer) {
        TORPOR_RETURN_IF_ERROR(options.before_layer(l));
      }
      for (size_t s = 0; s < segments.size(); ++s) {
        const uint64_t first = InputBegin(segments[s], l);
        const uint64_t skip = (first - segments[s].begin) * kHidden;
        if (options.on_layer_input) {
          options.on_layer_input(l, s, first, std::span(x[s]).subspan(skip));
        }
        if (l == 1) LookUp(segments[s], first, &x[s]);
        Write(segments[s], l, first, x[s]);
        Run(segments[s], l, &x[s]);
      }
    }
    Head(segments, x, logits);
    return absl::OkStatus();
  }

 private:
  static uint64_t End(const Segment& segment) {
    return segment.begin + segment.ids.size();
  }
  static uint64_t InputBegin(const Segment& segment, uint32_t l) {
    if (segment.plan == nullptr) return segment.begin;
    return std::clamp(segment.plan->layers[l].input_begin, segment.begin,
                      End(segment));
  }
  uint64_t RunBegin(const Segment& segment, uint32_t l) const {
    if (segment.plan == nullptr) {
      return l + 1 == o_.layout.n_layers ? segment.logits_begin : segment.begin;
    }
    return std::clamp(segment.plan->layers[l].run_begin, segment.begin,
                      End(segment));
  }

  absl::Status Embed(std::span<const Segment> segments,
                     std::vector<std::vector<float>>* x) const {
    uint64_t n_rows = 0;
    for (const Segment& segment : segments) {
      if (segment.ids.empty() || segment.inputs != nullptr) {
        return absl::InvalidArgumentError("segment: no rows, or with inputs");
      }
      n_rows += segment.ids.size();
      std::vector<float>& rows = x->emplace_back();
      for (size_t i = 0; i < segment.ids.size(); ++i) {
        if (segment.ids[i] >= vocab_size()) {
          return absl::InvalidArgumentError(
              absl::StrFormat("token at position %d: got id %d",
                              segment.begin + i, segment.ids[i]));
        }
        for (uint32_t j = 0; j < kHidden; ++j) {
          rows.push_back(Weight(0, segment.ids[i], j, 0));
        }
      }
    }
    if (n_rows == 0 || n_rows > o_.max_rows) {
      return absl::InvalidArgumentError("forward: number of rows");
    }
    return absl::OkStatus();
  }

  void LookUp(const Segment& segment, uint64_t first,
              std::vector<float>* x) const {
    for (uint64_t pos = first; pos < End(segment); ++pos) {
      const auto id = [&](uint64_t at) {
        return at >= segment.begin ? segment.ids[at - segment.begin]
                                   : segment.history[segment.history.size() -
                                                     (segment.begin - at)];
      };
      for (uint64_t back = 0; back <= std::min(o_.id_lookback, pos); ++back) {
        if (o_.id_lookback == 0) break;
        for (uint32_t j = 0; j < kHidden; ++j) {
          (*x)[(pos - segment.begin) * kHidden + j] +=
              Weight(1, id(pos - back), j, back);
        }
      }
    }
  }

  // Row of a slot, from the input of its owner.
  Row Project(uint32_t index, const float* x) const {
    Row row(o_.layout.slots[index].row_bytes / 4);
    for (size_t j = 0; j < row.size(); ++j) {
      float sum = 0;
      for (uint32_t i = 0; i < kHidden; ++i) {
        sum += Weight(2, index, j, i) * x[i];
      }
      row[j] = std::tanh(sum);
    }
    return row;
  }

  // Rows of every slot that the layer owns; groups that close.
  void Write(const Segment& segment, uint32_t l, uint64_t first,
             const std::vector<float>& x) const {
    auto* sequence = static_cast<MapSequence*>(segment.sequence);
    for (uint64_t pos = first; pos < End(segment); ++pos) {
      const float* row = x.data() + (pos - segment.begin) * kHidden;
      for (uint32_t i = 0; i < o_.layout.slots.size(); ++i) {
        const Slot& slot = o_.layout.slots[i];
        if (slot.owner_layer != l || slot.kind == SlotKind::kPooled) continue;
        if (segment.plan != nullptr && (slot.come_back == ComeBack::kPersist ||
                                        pos < segment.plan->write_begin[i])) {
          continue;
        }
        sequence->Put(i, pos, Project(i, row));
      }
      if (segment.plan == nullptr) ClosePools(sequence, l, pos, row);
    }
  }

  void ClosePools(MapSequence* sequence, uint32_t l, uint64_t pos,
                  const float* x) const {
    for (uint32_t i = 0; i < o_.layout.slots.size(); ++i) {
      const Slot& slot = o_.layout.slots[i];
      const uint64_t r = slot.tokens_per_row;
      if (slot.owner_layer != l || slot.kind != SlotKind::kPooled ||
          (pos + 1) % r != 0) {
        continue;
      }
      Row row = Project(i, x);
      for (uint32_t o = 0; r > 1 && o < o_.layout.slots.size(); ++o) {
        const Slot& open = o_.layout.slots[o];
        if (open.kind != SlotKind::kOpenGroup || open.owner_layer != l ||
            open.tokens_per_row != r) {
          continue;
        }
        const uint64_t reach = r + open.overlap_tokens;
        for (uint64_t p = pos + 1 < reach ? 0 : pos + 1 - reach; p <= pos;
             ++p) {
          const float weight = Weight(3, i, pos - p, 0);
          for (size_t j = 0; j < row.size(); ++j) {
            row[j] += weight * At(*sequence, o, p, j);
          }
        }
      }
      sequence->Put(i, pos / r, std::move(row));
    }
  }

  static float At(const MapSequence& sequence, uint32_t slot, uint64_t at,
                  size_t j) {
    const Row* row = sequence.Find(slot, at);
    return row == nullptr ? std::nanf("") : (*row)[j % row->size()];
  }

  // The rows of a slot that row `pos` of layer `l` may see.
  static Rows Visible(const Segment& segment, const Slot& slot, uint32_t l,
                      uint64_t pos) {
    if (!slot.is_window()) return {0, (pos + 1) / slot.tokens_per_row};
    uint64_t begin =
        slot.kind == SlotKind::kChunked
            ? pos / slot.chunk * slot.chunk
            : std::max<uint64_t>(pos + 1, slot.window) - slot.window;
    if (segment.plan != nullptr) {
      for (const FloorRange& floor : segment.plan->floors) {
        if (l >= floor.layer_begin && floor.row_begin <= pos &&
            pos < floor.row_end) {
          begin = std::max(begin, floor.floor);
        }
      }
    }
    return {begin, pos + 1};
  }

  static bool Reads(const Slot& slot, uint32_t l) {
    return std::count(slot.reader_layers.begin(), slot.reader_layers.end(), l) >
           0;
  }
  static bool IsIndex(const Slot& slot) {
    return slot.kind == SlotKind::kPooled && slot.name.rfind("index", 0) == 0;
  }

  float Score(const MapSequence& sequence, uint32_t slot, uint64_t at,
              uint32_t l, const float* x) const {
    float score = 0;
    for (uint32_t i = 0; i < kHidden; ++i) {
      score += Weight(4, slot, l, i) * x[i] * At(sequence, slot, at, i);
    }
    return score;
  }

  // Rows of a pooled slot that the layer attends to, ascending.
  std::vector<uint64_t> Picks(const MapSequence& sequence, const Slot& slot,
                              Rows visible, uint32_t l, const float* x) const {
    std::vector<uint64_t> rows;
    for (uint64_t i = visible.begin; i < visible.end; ++i) rows.push_back(i);
    for (uint32_t i = 0; i < o_.layout.slots.size(); ++i) {
      const Slot& index = o_.layout.slots[i];
      if (slot.kind != SlotKind::kPooled || !IsIndex(index) ||
          index.owner_layer != slot.owner_layer || !Reads(index, l) ||
          rows.size() <= o_.n_picks) {
        continue;
      }
      std::vector<std::pair<float, uint64_t>> scored;
      for (const uint64_t row : rows) {
        const float score = Score(sequence, i, row, l, x);
        scored.emplace_back(std::isnan(score) ? 0 : -score, row);
      }
      std::sort(scored.begin(), scored.end());
      rows.clear();
      for (uint64_t n = 0; n < o_.n_picks; ++n)
        rows.push_back(scored[n].second);
      std::sort(rows.begin(), rows.end());
    }
    return rows;
  }

  void Run(const Segment& segment, uint32_t l, std::vector<float>* x) const {
    const auto& sequence = *static_cast<const MapSequence*>(segment.sequence);
    for (uint64_t pos = RunBegin(segment, l); pos < End(segment); ++pos) {
      float* row = x->data() + (pos - segment.begin) * kHidden;
      float sum[kHidden] = {};
      for (uint32_t i = 0; i < o_.layout.slots.size(); ++i) {
        const Slot& slot = o_.layout.slots[i];
        if (!Reads(slot, l) || IsIndex(slot) ||
            slot.kind == SlotKind::kOpenGroup) {
          continue;
        }
        const std::vector<uint64_t> picks =
            Picks(sequence, slot, Visible(segment, slot, l, pos), l, row);
        // A mean, so that nothing saturates.
        const auto n = static_cast<float>(picks.size());
        for (const uint64_t at : picks) {
          const float weight = std::tanh(Score(sequence, i, at, l, row)) / n;
          for (uint32_t j = 0; j < kHidden; ++j) {
            sum[j] += weight * At(sequence, i, at, j);
          }
        }
      }
      for (uint32_t j = 0; j < kHidden; ++j) {
        row[j] = 0.5f * row[j] + std::tanh(sum[j] + 0.1f * row[j]);
      }
    }
  }

  void Head(std::span<const Segment> segments,
            const std::vector<std::vector<float>>& x,
            std::vector<std::vector<float>>* logits) const {
    logits->assign(segments.size(), {});
    for (size_t s = 0; s < segments.size(); ++s) {
      for (uint64_t pos = segments[s].logits_begin; pos < End(segments[s]);
           ++pos) {
        for (uint32_t id = 0; id < vocab_size(); ++id) {
          float sum = 0;
          for (uint32_t j = 0; j < kHidden; ++j) {
            sum += Weight(5, id, j, 0) *
                   x[s][(pos - segments[s].begin) * kHidden + j];
          }
          (*logits)[s].push_back(sum);
        }
      }
    }
  }

  const LayoutModelOptions o_;
  const Fingerprint fingerprint_;
  const std::string numerics_id_ = "layout-model";
};

}  // namespace

std::unique_ptr<Model> MakeLayoutModel(const LayoutModelOptions& options) {
  return std::make_unique<LayoutModel>(options);
}

}  // namespace torpor::replay
