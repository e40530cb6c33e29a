// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/dependency_tracer.h"

#include <algorithm>
#include <sstream>

namespace torpor::replay {
namespace {

bool Contains(const TwoWaySpan& span, uint64_t row) {
  return span.begin <= row && row < span.end;
}

bool IsReplayed(const Slot& slot) {
  return slot.come_back == ComeBack::kReplay;
}

// The first row of the span that `row` is in; else the row.
uint64_t SpanBegin(const std::vector<TwoWaySpan>& spans, uint64_t row) {
  for (const TwoWaySpan& span : spans) {
    if (Contains(span, row)) return span.begin;
  }
  return row;
}

// A row of an open-group slot that the cut still needs.
bool IsOpen(const Slot& slot, uint64_t cut, uint64_t row) {
  // The group that the cut leaves incomplete is that of the next token.
  const uint64_t open_group = cut / slot.tokens_per_row;
  if (row / slot.tokens_per_row == open_group) return true;
  // Its pooling also reads the tokens before the group.
  const uint64_t first_of_group = open_group * slot.tokens_per_row;
  return row < first_of_group && row + slot.overlap_tokens >= first_of_group;
}

struct Node {
  enum class Kind { kInput, kSlotRow };
  Kind kind;
  // Of the layer whose input it is (n_layers: the output of the last), or of
  // the slot.
  uint32_t index;
  uint64_t row;
};

class Search {
 public:
  Search(const ModelLayout& layout, const TraceRequest& request)
      : layout_(layout),
        request_(request),
        inputs_(layout.n_layers + 1, RowSet(request.cut)),
        writes_(layout.slots.size(), RowSet(request.cut)) {
    for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
      reads_.push_back(ReplayedWindowsOf(layout, layer));
    }
  }

  void Need(Node node) {
    RowSet& seen = node.kind == Node::Kind::kInput ? inputs_[node.index]
                                                   : writes_[node.index];
    if (seen[node.row]) return;
    seen[node.row] = true;
    pending_.push_back(node);
    if (node.kind == Node::Kind::kSlotRow || node.index == layout_.n_layers) {
      return;
    }
    for (const TwoWaySpan& span : request_.spans) {
      if (!Contains(span, node.row)) continue;
      for (uint64_t row = span.begin; row < span.end; ++row) {
        Need({Node::Kind::kInput, node.index, row});
      }
    }
  }

  Trace Run() {
    while (!pending_.empty()) {
      const Node node = pending_.back();
      pending_.pop_back();
      if (node.kind == Node::Kind::kSlotRow) {
        Need({Node::Kind::kInput, layout_.slots[node.index].owner_layer,
              node.row});
      } else if (node.index > 0) {
        NeedOutput(node.index - 1, node.row);
      }
    }
    Trace trace;
    trace.inputs.assign(inputs_.begin(), inputs_.end() - 1);
    trace.runs.assign(inputs_.begin() + 1, inputs_.end());
    trace.writes = writes_;
    return trace;
  }

 private:
  // What `layer` reads to put out `row`.
  void NeedOutput(uint32_t layer, uint64_t row) {
    Need({Node::Kind::kInput, layer, row});
    for (const uint32_t s : reads_[layer]) {
      for (uint64_t read = 0; read < request_.cut; ++read) {
        if (Attends(layout_.slots[s], request_.spans, row, read) &&
            !IsHidden(request_.floors, layer, row, read)) {
          Need({Node::Kind::kSlotRow, s, read});
        }
      }
    }
  }

  const ModelLayout& layout_;
  const TraceRequest& request_;
  // By layer.
  std::vector<std::vector<uint32_t>> reads_;
  // Rows needed. An output of a layer is the input of the next.
  std::vector<RowSet> inputs_;
  std::vector<RowSet> writes_;
  std::vector<Node> pending_;
};

}  // namespace

bool Attends(const Slot& slot, const std::vector<TwoWaySpan>& spans,
             uint64_t reader_row, uint64_t row) {
  for (const TwoWaySpan& span : spans) {
    if (Contains(span, reader_row) && Contains(span, row)) return true;
  }
  if (row > reader_row) return false;
  if (slot.kind == SlotKind::kSliding) return reader_row - row < slot.window;
  return reader_row / slot.chunk == row / slot.chunk;
}

bool IsHidden(const std::vector<Floor>& floors, uint32_t layer,
              uint64_t reader_row, uint64_t row) {
  for (const Floor& floor : floors) {
    const bool rerun =
        floor.replay_start <= reader_row && reader_row < floor.resume_at;
    if (rerun && layer >= floor.layer_begin && row < floor.replay_start) {
      return true;
    }
  }
  return false;
}

std::vector<uint32_t> ReplayedWindowsOf(const ModelLayout& layout,
                                        uint32_t layer) {
  std::vector<uint32_t> out;
  for (uint32_t s = 0; s < layout.slots.size(); ++s) {
    const Slot& slot = layout.slots[s];
    const bool window =
        slot.kind == SlotKind::kSliding || slot.kind == SlotKind::kChunked;
    if (window && IsReplayed(slot) &&
        std::find(slot.reader_layers.begin(), slot.reader_layers.end(),
                  layer) != slot.reader_layers.end()) {
      out.push_back(s);
    }
  }
  return out;
}

std::vector<RowSet> OwedRows(const ModelLayout& layout,
                             const TraceRequest& request) {
  std::vector<RowSet> owed(layout.slots.size(), RowSet(request.cut));
  for (uint32_t s = 0; s < layout.slots.size(); ++s) {
    const Slot& slot = layout.slots[s];
    if (!IsReplayed(slot)) continue;
    if (slot.kind == SlotKind::kOpenGroup) {
      for (uint64_t row = 0; row < request.cut; ++row) {
        owed[s][row] =
            !request.open_groups_stored && IsOpen(slot, request.cut, row);
      }
      continue;
    }
    // A slot that no layer reads belongs to readers outside of them, as draft
    // layers are. No row from `end` on can look below the cut.
    const uint64_t end = request.cut + slot.window + slot.chunk;
    for (uint64_t reader = request.cut; reader < end; ++reader) {
      for (uint64_t row = 0; row < request.cut; ++row) {
        if (Attends(slot, request.spans, reader, row)) owed[s][row] = true;
      }
    }
  }
  return owed;
}

Trace TraceReplay(const ModelLayout& layout, const TraceRequest& request) {
  Search search(layout, request);
  const std::vector<RowSet> owed = OwedRows(layout, request);
  for (uint32_t s = 0; s < owed.size(); ++s) {
    for (uint64_t row = 0; row < request.cut; ++row) {
      if (owed[s][row]) search.Need({Node::Kind::kSlotRow, s, row});
    }
  }
  if (request.want_logits && request.cut > 0) {
    search.Need({Node::Kind::kInput, layout.n_layers, request.cut - 1});
  }
  return search.Run();
}

std::vector<Floor> BindingFloors(const std::vector<Floor>& log, uint64_t cut) {
  std::vector<Floor> out;
  for (const Floor& floor : log) {
    if (floor.resume_at < cut) out.push_back(floor);
  }
  return out;
}

uint64_t BoundByTokens(const TraceRequest& request, uint64_t replay_tokens) {
  return SpanBegin(request.spans, replay_tokens < request.cut
                                      ? request.cut - replay_tokens
                                      : 0);
}

uint64_t BoundedStart(const ModelLayout& layout, const TraceRequest& request,
                      uint64_t replay_tokens) {
  uint64_t start = BoundByTokens(request, replay_tokens);
  for (const RowSet& owed : OwedRows(layout, request)) {
    for (uint64_t row = 0; row < start; ++row) {
      if (owed[row]) start = row;
    }
  }
  if (request.want_logits && request.cut > 0 && start == request.cut) --start;
  return SpanBegin(request.spans, start);
}

std::string RowSetString(const RowSet& rows) {
  std::ostringstream out;
  for (uint64_t begin = 0; begin < rows.size(); ++begin) {
    if (!rows[begin]) continue;
    uint64_t end = begin;
    while (end < rows.size() && rows[end]) ++end;
    out << "[" << begin << ", " << end << ") ";
    begin = end;
  }
  return out.str().empty() ? "none" : out.str();
}

}  // namespace torpor::replay
