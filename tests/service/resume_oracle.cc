// SPDX-License-Identifier: Apache-2.0

#include "tests/service/resume_oracle.h"

#include <algorithm>
#include <string>

namespace torpor::service {
namespace {

using replay::ComeBack;
using replay::Floor;
using replay::ModelLayout;
using replay::PlanRequest;
using replay::Slot;
using replay::SlotKind;

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint64_t SpanStart(const PlanRequest& request, uint64_t row) {
  for (const replay::TwoWaySpan& span : request.spans) {
    if (span.begin < row && row < span.end) return span.begin;
  }
  return row;
}

// The first row of a window slot that `row` of `layer` attends to.
uint64_t Attends(const Slot& slot, uint32_t layer, uint64_t row,
                 const PlanRequest& request, const std::vector<Floor>& floors) {
  uint64_t first = slot.kind == SlotKind::kSliding ? Minus(row + 1, slot.window)
                                                   : row - row % slot.chunk;
  first = std::min(first, SpanStart(request, row));
  for (const Floor& floor : floors) {
    if (floor.layer_begin <= layer && floor.replay_start <= row &&
        row < floor.resume_at) {
      first = std::max(first, floor.replay_start);
    }
  }
  return first;
}

// What tokens from `cut` on will read of a slot that is not stored.
uint64_t Owed(const Slot& slot, uint64_t cut) {
  if (slot.kind == SlotKind::kSliding) return Minus(cut + 1, slot.window);
  if (slot.kind == SlotKind::kChunked) return cut - cut % slot.chunk;
  return Minus(cut - cut % slot.tokens_per_row, slot.overlap_tokens);
}

ExpectedPlan Reach(const ModelLayout& layout, const PlanRequest& request,
                   const std::vector<Floor>& floors) {
  const uint64_t cut = request.resume_at;
  ExpectedPlan plan;
  plan.layers.resize(layout.n_layers);
  std::vector<uint64_t> need(layout.slots.size(), cut);
  for (size_t s = 0; s < need.size(); ++s) {
    if (layout.slots[s].come_back == ComeBack::kReplay) {
      need[s] = Owed(layout.slots[s], cut);
    }
  }
  uint64_t wanted = request.want_logits ? cut - 1 : cut;
  for (uint32_t layer = layout.n_layers; layer-- > 0;) {
    plan.layers[layer].run_begin = wanted;
    plan.token_layers += cut - wanted;
    uint64_t input = wanted;
    for (size_t s = 0; s < need.size(); ++s) {
      const Slot& slot = layout.slots[s];
      if (slot.come_back != ComeBack::kReplay) continue;
      const auto& readers = slot.reader_layers;
      if (slot.is_window() &&
          std::find(readers.begin(), readers.end(), layer) != readers.end()) {
        // Rows further on than its reach see nothing below `wanted`.
        const uint64_t end = std::min(cut, wanted + slot.reach());
        for (uint64_t row = wanted; row < end; ++row) {
          need[s] =
              std::min(need[s], Attends(slot, layer, row, request, floors));
        }
      }
      if (slot.owner_layer == layer) input = std::min(input, need[s]);
    }
    wanted = plan.layers[layer].input_begin = SpanStart(request, input);
  }
  plan.replay_start = wanted;
  return plan;
}

// A token's identity: a two-way one means what all of its span means.
std::vector<std::string> KeysOf(const store::TokenRun& run) {
  std::vector<std::string> keys(run.ids.size());
  for (const store::ExtraKeySpan& span : run.spans) {
    for (uint64_t i = span.begin; i < span.end && i < keys.size(); ++i) {
      keys[i] = "key " + span.key;
      if (span.bidirectional) {
        keys[i] += " of " + std::to_string(span.begin) + " to " +
                   std::to_string(span.end);
      }
    }
  }
  return keys;
}

}  // namespace

ExpectedPlan ExpectPlan(const ModelLayout& layout, const PlanRequest& request) {
  const uint64_t cut = request.resume_at;
  std::vector<Floor> floors;
  for (const Floor& floor : request.floors) {
    if (floor.resume_at < cut) floors.push_back(floor);
  }
  ExpectedPlan exact = Reach(layout, request, floors);
  if (request.mode == replay::ReplayMode::kExact) return exact;
  uint64_t n = request.replay_tokens;
  for (const Slot& slot : layout.slots) {
    if (request.replay_tokens == 0 && slot.come_back == ComeBack::kReplay) {
      n = std::max(n, slot.reach());
    }
  }
  uint64_t start = Minus(cut, n);
  if (request.want_logits) start = std::min(start, cut - 1);
  for (const Slot& slot : layout.slots) {
    if (slot.kind == SlotKind::kOpenGroup) {
      start = std::min(start, Owed(slot, cut));
    }
  }
  start = SpanStart(request, start);
  if (start <= exact.replay_start) return exact;
  floors.push_back({cut, start, 0});
  ExpectedPlan bounded = Reach(layout, request, floors);
  bounded.exact = false;
  // Something reached below it and was cut there; nothing less was run.
  bounded.replay_start = start;
  return bounded;
}

uint64_t ExpectCommon(const store::TokenRun& stored,
                      const store::TokenRun& prompt) {
  const std::vector<std::string> a = KeysOf(stored);
  const std::vector<std::string> b = KeysOf(prompt);
  uint64_t n = 0;
  while (n < a.size() && n < b.size() && stored.ids[n] == prompt.ids[n] &&
         a[n] == b[n]) {
    ++n;
  }
  return n;
}

uint64_t LegalCut(const store::TokenRun& tokens, uint64_t at) {
  for (const store::ExtraKeySpan& span : tokens.spans) {
    if (span.bidirectional && span.begin < at && at < span.end) {
      return span.begin;
    }
  }
  return at;
}

}  // namespace torpor::service
