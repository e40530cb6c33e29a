// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/session_simulator.h"

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

#include "tests/replay/dependency_tracer.h"

namespace torpor::replay {
namespace {

Value Mixed(Value a, Value b) {
  Value x = a * 0x9e3779b97f4a7c15 + b + 0x7f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

bool IsWindow(const Slot& slot) {
  return slot.kind == SlotKind::kSliding || slot.kind == SlotKind::kChunked;
}

bool Persists(const Slot& slot) { return slot.come_back == ComeBack::kPersist; }

bool Reads(const Slot& slot, uint32_t layer) {
  return std::find(slot.reader_layers.begin(), slot.reader_layers.end(),
                   layer) != slot.reader_layers.end();
}

// Rows of a slot that `n_tokens` tokens fill.
uint64_t RowCount(const Slot& slot, uint64_t n_tokens) {
  return slot.kind == SlotKind::kPooled ? n_tokens / slot.tokens_per_row
                                        : n_tokens;
}

KvRows NoRows(const ModelLayout& layout, uint64_t n_tokens) {
  KvRows kv(layout.slots.size());
  for (size_t s = 0; s < kv.size(); ++s) {
    kv[s].resize(RowCount(layout.slots[s], n_tokens));
  }
  return kv;
}

// `row` of `slot` is not to be read by `reader` in `layer`.
using Hides =
    std::function<bool(uint32_t layer, uint64_t reader, uint64_t row)>;

enum class Absent { kIsError, kIsSkipped };

class Model {
 public:
  Model(const ModelLayout& layout, const Timeline& timeline, KvRows& kv,
        Absent absent, Hides hides)
      : layout_(layout),
        timeline_(timeline),
        kv_(kv),
        absent_(absent),
        hides_(std::move(hides)) {}

  [[nodiscard]] Value Embedding(uint64_t row) const {
    return Mixed(timeline_.tokens[row], row);
  }

  static Value Projection(uint32_t s, Value input) {
    return Mixed(input, 1000 + s);
  }

  Value Output(uint32_t layer, uint64_t row, Value input) {
    Value out = Mixed(input, layer);
    for (uint32_t s = 0; s < layout_.slots.size(); ++s) {
      const Slot& slot = layout_.slots[s];
      if (!Reads(slot, layer) || slot.kind == SlotKind::kOpenGroup) continue;
      for (uint64_t read = 0; read < kv_[s].size(); ++read) {
        if (!Sees(slot, layer, row, read)) continue;
        if (!kv_[s][read].has_value()) {
          if (absent_ == Absent::kIsError || Persists(slot)) {
            Error(layer, row, slot, read);
          }
          continue;
        }
        out = Mixed(Mixed(out, *kv_[s][read]), read);
      }
    }
    return out;
  }

  // The pooled rows that close with a token of [begin, end).
  void CloseGroups(uint32_t s, uint64_t begin, uint64_t end,
                   const std::vector<std::optional<Value>>& inputs) {
    const Slot& slot = layout_.slots[s];
    const uint32_t open = OpenGroupOf(slot);
    const uint64_t ratio = slot.tokens_per_row;
    for (uint64_t last = begin; last < end; ++last) {
      if ((last + 1) % ratio != 0) continue;
      const uint64_t overlap =
          open == s ? 0 : layout_.slots[open].overlap_tokens;
      const uint64_t first = last + 1 - ratio;
      Value pooled = Mixed(s, *inputs[last]);
      for (uint64_t row = first - std::min(first, overlap); row <= last;
           ++row) {
        if (open == s) continue;
        if (!kv_[open][row].has_value()) {
          Error(slot.owner_layer, last, layout_.slots[open], row);
          continue;
        }
        pooled = Mixed(pooled, *kv_[open][row]);
      }
      kv_[s][last / ratio] = pooled;
    }
  }

  [[nodiscard]] std::vector<std::string> TakeErrors() {
    return std::move(errors_);
  }

 private:
  [[nodiscard]] bool Sees(const Slot& slot, uint32_t layer, uint64_t row,
                          uint64_t read) const {
    if (IsWindow(slot)) {
      return Attends(slot, timeline_.spans, row, read) &&
             (Persists(slot) || !hides_(layer, row, read));
    }
    // A pooled row is there once its last token is.
    const uint64_t last = (read + 1) * slot.tokens_per_row - 1;
    if (last <= row) return true;
    if (slot.kind != SlotKind::kFull) return false;
    return std::any_of(timeline_.spans.begin(), timeline_.spans.end(),
                       [&](const TwoWaySpan& span) {
                         return span.begin <= row && row < span.end &&
                                span.begin <= read && read < span.end;
                       });
  }

  // The slot whose rows the pooled slot pools; itself when it has none.
  [[nodiscard]] uint32_t OpenGroupOf(const Slot& pooled) const {
    for (uint32_t s = 0; s < layout_.slots.size(); ++s) {
      if (layout_.slots[s].name == pooled.name + ".open") return s;
    }
    return static_cast<uint32_t>(&pooled - layout_.slots.data());
  }

  void Error(uint32_t layer, uint64_t row, const Slot& slot, uint64_t read) {
    std::ostringstream out;
    out << "row " << row << " of layer " << layer << " reads row " << read
        << " of " << slot.name << ", which is not there";
    errors_.push_back(out.str());
  }

  const ModelLayout& layout_;
  const Timeline& timeline_;
  KvRows& kv_;
  const Absent absent_;
  const Hides hides_;
  std::vector<std::string> errors_;
};

using Column = std::vector<std::optional<Value>>;

}  // namespace

KvRows StoredRows(const ModelLayout& layout, const KvRows& kv, uint64_t cut,
                  bool with_open_groups) {
  KvRows stored = NoRows(layout, cut);
  const std::vector<RowSet> owed =
      OwedRows(layout, {.cut = cut, .open_groups_stored = false});
  for (size_t s = 0; s < stored.size(); ++s) {
    const Slot& slot = layout.slots[s];
    const bool open = slot.kind == SlotKind::kOpenGroup && with_open_groups;
    for (size_t row = 0; row < stored[s].size(); ++row) {
      if (Persists(slot) || (open && owed[s][row])) stored[s][row] = kv[s][row];
    }
  }
  return stored;
}

Rebuilt RunPlan(const ModelLayout& layout, const Timeline& timeline,
                const ReplayPlan& plan, KvRows stored) {
  Rebuilt out;
  out.rows = std::move(stored);
  const uint64_t cut = plan.resume_at;
  Model model(layout, timeline, out.rows, Absent::kIsError,
              [&](uint32_t layer, uint64_t reader, uint64_t row) {
                for (const FloorRange& range : plan.floors) {
                  if (layer >= range.layer_begin && row < range.floor &&
                      range.row_begin <= reader && reader < range.row_end) {
                    return true;
                  }
                }
                return false;
              });
  Column inputs(cut);
  for (uint64_t row = plan.replay_start; row < cut; ++row) {
    inputs[row] = model.Embedding(row);
  }
  const auto need = [&](uint32_t layer, uint64_t row) {
    if (inputs[row].has_value()) return *inputs[row];
    out.errors.push_back("row " + std::to_string(row) +
                         " does not enter layer " + std::to_string(layer));
    return Value{0};
  };
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    const LayerRows& rows = plan.layers[layer];
    for (uint64_t row = 0; row < rows.input_begin; ++row) inputs[row].reset();
    for (uint32_t s = 0; s < layout.slots.size(); ++s) {
      const Slot& slot = layout.slots[s];
      if (slot.owner_layer != layer) continue;
      if (Persists(slot) && plan.write_begin[s] < cut) {
        out.errors.push_back(slot.name + " persists and is written");
      }
      for (uint64_t row = plan.write_begin[s]; row < cut; ++row) {
        out.rows[s][row] = Model::Projection(s, need(layer, row));
      }
    }
    Column outputs(cut);
    for (uint64_t row = rows.run_begin; row < cut; ++row) {
      outputs[row] = model.Output(layer, row, need(layer, row));
    }
    inputs = std::move(outputs);
  }
  if (cut > 0) out.logits = inputs[cut - 1];
  for (std::string& error : model.TakeErrors()) {
    out.errors.push_back(std::move(error));
  }
  return out;
}

Rebuilt RunRectangle(const ModelLayout& layout, const Timeline& timeline,
                     uint64_t start, uint64_t cut,
                     const std::vector<Floor>& log, KvRows stored) {
  Rebuilt out;
  out.rows = std::move(stored);
  Model model(layout, timeline, out.rows, Absent::kIsSkipped,
              [&](uint32_t layer, uint64_t reader, uint64_t row) {
                return IsHidden(log, layer, reader, row);
              });
  Column inputs(cut);
  for (uint64_t row = start; row < cut; ++row) {
    inputs[row] = model.Embedding(row);
  }
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    for (uint32_t s = 0; s < layout.slots.size(); ++s) {
      const Slot& slot = layout.slots[s];
      if (slot.owner_layer != layer || Persists(slot)) continue;
      for (uint64_t row = start; row < cut; ++row) {
        // Stored open groups stay.
        if (slot.kind == SlotKind::kOpenGroup && out.rows[s][row].has_value()) {
          continue;
        }
        out.rows[s][row] = Model::Projection(s, *inputs[row]);
      }
    }
    for (uint64_t row = start; row < cut; ++row) {
      inputs[row] = model.Output(layer, row, *inputs[row]);
    }
  }
  if (cut > start) out.logits = inputs[cut - 1];
  out.errors = model.TakeErrors();
  return out;
}

std::string Difference(const ModelLayout& layout, const Held& want,
                       const Rebuilt& got) {
  std::ostringstream out;
  for (const std::string& error : got.errors) out << error << "\n";
  for (size_t s = 0; s < want.rows.size(); ++s) {
    for (size_t row = 0; row < want.rows[s].size(); ++row) {
      if (!want.rows[s][row].has_value()) continue;
      const bool there = row < got.rows[s].size() && got.rows[s][row];
      if (there && *got.rows[s][row] == *want.rows[s][row]) continue;
      out << layout.slots[s].name << " row " << row
          << (there ? " differs\n" : " is not rebuilt\n");
    }
  }
  if (want.logits.has_value() && got.logits.has_value() &&
      *want.logits != *got.logits) {
    out << "logits differ\n";
  }
  return out.str();
}

Held HeldOf(const ModelLayout& layout, const Timeline& timeline, uint64_t cut,
            const Rebuilt& rebuilt, bool open_groups) {
  const std::vector<RowSet> owed =
      OwedRows(layout, {.cut = cut,
                        .spans = timeline.spans,
                        .open_groups_stored = !open_groups});
  Held held;
  held.rows = NoRows(layout, cut);
  for (size_t s = 0; s < owed.size(); ++s) {
    for (uint64_t row = 0; row < cut; ++row) {
      if (owed[s][row]) held.rows[s][row] = rebuilt.rows[s][row];
    }
  }
  held.logits = rebuilt.logits;
  return held;
}

SimulatedSession::SimulatedSession(const ModelLayout& layout,
                                   std::vector<TwoWaySpan> spans)
    : layout_(layout), kv_(NoRows(layout, 0)) {
  timeline_.spans = std::move(spans);
}

const Held* SimulatedSession::HeldAt(uint64_t cut) const {
  const auto found = held_.find(cut);
  return found == held_.end() ? nullptr : &found->second;
}

void SimulatedSession::Append(const std::vector<Value>& tokens) {
  const uint64_t begin = n_tokens();
  AppendWithTail(tokens, tokens.size(), layout_.n_layers);
  Record(begin, n_tokens());
}

void SimulatedSession::AppendWithTail(const std::vector<Value>& tokens,
                                      uint64_t n_tail, uint32_t layer_begin) {
  const uint64_t begin = n_tokens();
  const uint64_t end = begin + tokens.size();
  const std::vector<Floor> tail = {{end, end - n_tail, layer_begin}};
  timeline_.tokens.insert(timeline_.tokens.end(), tokens.begin(), tokens.end());
  for (size_t s = 0; s < kv_.size(); ++s) {
    kv_[s].resize(RowCount(layout_.slots[s], end));
  }
  Model model(layout_, timeline_, kv_, Absent::kIsError,
              [&](uint32_t layer, uint64_t reader, uint64_t row) {
                return IsHidden(tail, layer, reader, row);
              });
  Column inputs(end);
  for (uint64_t row = begin; row < end; ++row) {
    inputs[row] = model.Embedding(row);
  }
  for (uint32_t layer = 0; layer < layout_.n_layers; ++layer) {
    const uint64_t first = layer >= layer_begin ? end - n_tail : begin;
    for (uint32_t s = 0; s < layout_.slots.size(); ++s) {
      const Slot& slot = layout_.slots[s];
      if (slot.owner_layer != layer || slot.kind == SlotKind::kPooled) continue;
      for (uint64_t row = first; row < end; ++row) {
        kv_[s][row] = Model::Projection(s, *inputs[row]);
      }
    }
    for (uint32_t s = 0; s < layout_.slots.size(); ++s) {
      const Slot& slot = layout_.slots[s];
      if (slot.owner_layer == layer && slot.kind == SlotKind::kPooled) {
        model.CloseGroups(s, begin, end, inputs);
      }
    }
    for (uint64_t row = first; row < end; ++row) {
      inputs[row] = model.Output(layer, row, *inputs[row]);
    }
    for (uint64_t row = begin; row < first; ++row) inputs[row].reset();
  }
  outputs_.resize(begin);
  outputs_.insert(outputs_.end(), inputs.begin() + begin, inputs.end());
  for (std::string& error : model.TakeErrors()) {
    errors_.push_back(std::move(error));
  }
}

void SimulatedSession::Rewind(uint64_t cut) {
  timeline_.tokens.resize(cut);
  outputs_.resize(cut);
  held_.erase(held_.upper_bound(cut), held_.end());
  for (size_t s = 0; s < kv_.size(); ++s) {
    kv_[s].resize(RowCount(layout_.slots[s], cut));
  }
}

void SimulatedSession::Wake(const Rebuilt& rebuilt) {
  const Held held =
      HeldOf(layout_, timeline_, n_tokens(), rebuilt, /*open_groups=*/true);
  for (size_t s = 0; s < kv_.size(); ++s) {
    if (!Persists(layout_.slots[s])) kv_[s] = held.rows[s];
  }
}

void SimulatedSession::Record(uint64_t begin, uint64_t end) {
  for (uint64_t cut = begin + 1; cut <= end; ++cut) {
    const bool inside =
        std::any_of(timeline_.spans.begin(), timeline_.spans.end(),
                    [&](const TwoWaySpan& span) {
                      return span.begin < cut && cut < span.end;
                    });
    if (inside) continue;
    Rebuilt now;
    now.rows = kv_;
    now.logits = outputs_[cut - 1];
    held_[cut] = HeldOf(layout_, timeline_, cut, now, /*open_groups=*/true);
  }
}

}  // namespace torpor::replay
