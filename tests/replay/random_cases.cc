// SPDX-License-Identifier: Apache-2.0

#include "tests/replay/random_cases.h"

#include <algorithm>
#include <sstream>

#include "tests/replay/layout_builder.h"

namespace torpor::replay {
namespace {

using testing::Random;

// What the layers of a layout are drawn from, in percent.
struct Mix {
  uint64_t window = 50;
  uint64_t full = 30;
  uint64_t pooled = 25;
  uint64_t shared = 30;
};

Mix RandomMix(Random& random) {
  switch (random.Between(0, 7)) {
    case 0:
      // Windows only.
      return {.window = 100, .full = 0, .pooled = 0, .shared = 20};
    case 1:
      // Nothing to replay.
      return {.window = 0, .full = 80, .pooled = 0, .shared = 20};
    case 2:
      // Compressed layers, as of DeepSeek.
      return {.window = 90, .full = 0, .pooled = 70, .shared = 20};
    default:
      return {};
  }
}

uint32_t RowBytes(Random& random) {
  return static_cast<uint32_t>(2 * random.Between(1, 32));
}

void AddWindow(Random& random, uint32_t layer, const std::string& suffix,
               ModelLayout& layout) {
  const auto reach = static_cast<uint32_t>(random.Between(1, 6));
  Slot slot = random.OneIn(4) ? ChunkedSlot(layer, reach, RowBytes(random))
                              : SlidingSlot(layer, reach, RowBytes(random));
  slot.name += suffix;
  // As long as the model, say: then its rows persist.
  if (random.OneIn(20)) slot.come_back = ComeBack::kPersist;
  layout.slots.push_back(slot);
}

void AddPooled(Random& random, uint32_t layer, ModelLayout& layout) {
  const std::string name = "layer" + std::to_string(layer) + ".pooled";
  const auto ratio = static_cast<uint32_t>(random.Between(1, 4));
  layout.slots.push_back(PooledSlot(name, layer, ratio, RowBytes(random)));
  const auto overlap =
      static_cast<uint32_t>(random.OneIn(2) ? 0 : random.Between(1, 4));
  if ((ratio > 1 || overlap > 0) && !random.OneIn(4)) {
    layout.slots.push_back(
        OpenGroupSlot(name + ".open", layer, ratio, overlap, RowBytes(random)));
  }
}

void Share(Random& random, uint32_t layer, ModelLayout& layout) {
  if (layout.slots.empty()) return;
  Slot& slot = layout.slots[random.Between(0, layout.slots.size() - 1)];
  if (slot.kind == SlotKind::kOpenGroup || slot.reader_layers.back() == layer) {
    return;
  }
  slot.reader_layers.push_back(layer);
}

bool Cuts(const std::vector<TwoWaySpan>& spans, uint64_t row) {
  return std::any_of(spans.begin(), spans.end(), [&](const TwoWaySpan& span) {
    return span.begin < row && row < span.end;
  });
}

}  // namespace

ModelLayout RandomLayout(Random& random, uint32_t max_layers) {
  ModelLayout layout;
  layout.family = "random";
  layout.vocab_size = 100;
  layout.n_layers = static_cast<uint32_t>(random.Between(1, max_layers));
  const Mix mix = RandomMix(random);
  const auto percent = [&](uint64_t p) { return random.Between(1, 100) <= p; };
  const auto first_trailing = static_cast<uint32_t>(
      random.OneIn(6) ? random.Between(0, layout.n_layers) : layout.n_layers);
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    const size_t n_before = layout.slots.size();
    // Sharing first, so that it finds slots of lower layers.
    const bool shares = percent(mix.shared);
    if (shares) Share(random, layer, layout);
    if (shares && random.OneIn(3)) Share(random, layer, layout);
    if (layer < first_trailing) {
      if (percent(mix.window)) AddWindow(random, layer, "", layout);
      if (random.OneIn(12)) AddWindow(random, layer, ".2", layout);
      if (percent(mix.pooled)) AddPooled(random, layer, layout);
    }
    if (percent(mix.full) || (!shares && layout.slots.size() == n_before)) {
      layout.slots.push_back(FullSlot(layer, RowBytes(random)));
    }
  }
  if (layout.slots.empty()) layout.slots.push_back(FullSlot(0, 2));
  if (random.OneIn(8)) {
    AddWindow(random, layout.n_layers - 1, ".draft", layout);
    layout.slots.back().reader_layers.clear();
  }
  // Some owners only project.
  for (Slot& slot : layout.slots) {
    if (slot.reader_layers.size() > 1 && random.OneIn(5)) {
      slot.reader_layers.erase(slot.reader_layers.begin());
    }
  }
  return layout;
}

std::vector<TwoWaySpan> RandomSpans(Random& random, uint64_t end,
                                    const std::vector<uint64_t>& cuts) {
  std::vector<TwoWaySpan> spans;
  uint64_t at = 0;
  for (uint64_t i = random.Between(1, 3); i > 0; --i) {
    if (at >= end) break;
    const uint64_t begin = random.Between(at, end - 1);
    const uint64_t size = random.Between(1, 6);
    const TwoWaySpan span = {begin, std::min(begin + size, end)};
    at = span.end;
    if (std::none_of(cuts.begin(), cuts.end(),
                     [&](uint64_t row) { return Cuts({span}, row); })) {
      spans.push_back(span);
    }
  }
  return spans;
}

PlanRequest RandomRequest(Random& random, const ModelLayout& layout,
                          uint64_t max_tokens) {
  PlanRequest request;
  request.resume_at =
      random.Between(random.OneIn(2) ? 0 : max_tokens / 2, max_tokens);
  const uint64_t cut = request.resume_at;
  if (random.OneIn(3)) {
    request.spans = RandomSpans(random, cut + 6, {cut});
  }
  if (random.OneIn(2)) {
    for (uint64_t i = random.Between(1, 4); i > 0; --i) {
      Floor floor;
      floor.resume_at = random.Between(1, cut + 4);
      // A wake re-runs at least the largest window, if there are as many.
      const uint64_t n_rows =
          std::max<uint64_t>(layout.LargestWindow(), 1) + random.Between(0, 8);
      if (n_rows > floor.resume_at) continue;
      floor.replay_start = floor.resume_at - n_rows;
      if (random.OneIn(3)) {
        floor.layer_begin =
            static_cast<uint32_t>(random.Between(0, layout.n_layers - 1));
      }
      // No replay stops or starts inside a span.
      if (Cuts(request.spans, floor.resume_at) ||
          Cuts(request.spans, floor.replay_start)) {
        continue;
      }
      request.floors.push_back(floor);
    }
  }
  request.want_logits = random.OneIn(3);
  request.open_groups_stored = random.OneIn(3);
  if (random.OneIn(2)) {
    request.mode = ReplayMode::kBounded;
    const uint64_t least = layout.LargestWindow();
    request.replay_tokens =
        random.OneIn(4) ? 0
                        : least + random.Between(0, 1) * random.Between(0, 24);
  }
  return request;
}

Floor RandomShortFloor(Random& random, const ModelLayout& layout,
                       uint64_t max_tokens) {
  Floor floor;
  floor.resume_at = random.Between(1, std::max<uint64_t>(max_tokens, 1));
  const uint64_t n_rows = std::min(
      floor.resume_at,
      random.Between(1, std::max<uint64_t>(layout.LargestWindow(), 1)));
  floor.replay_start = floor.resume_at - n_rows;
  return floor;
}

std::string LayoutString(const ModelLayout& layout) {
  std::ostringstream out;
  out << layout.n_layers << " layers\n";
  for (const Slot& slot : layout.slots) {
    out << "  " << slot.name << ": " << SlotKindName(slot.kind) << ", "
        << ComeBackName(slot.come_back) << ", owner " << slot.owner_layer
        << ", readers";
    for (const uint32_t reader : slot.reader_layers) out << " " << reader;
    if (slot.reader_layers.empty()) out << " none";
    if (slot.window > 0) out << ", window " << slot.window;
    if (slot.chunk > 0) out << ", chunk " << slot.chunk;
    if (slot.tokens_per_row != 1) {
      out << ", " << slot.tokens_per_row << " tokens a row";
    }
    if (slot.overlap_tokens > 0) out << ", overlap " << slot.overlap_tokens;
    out << "\n";
  }
  return out.str();
}

std::string RequestString(const PlanRequest& request) {
  std::ostringstream out;
  out << "cut " << request.resume_at << ", " << ReplayModeName(request.mode);
  if (request.mode == ReplayMode::kBounded) {
    out << " " << request.replay_tokens;
  }
  if (request.want_logits) out << ", logits";
  if (request.open_groups_stored) out << ", open groups stored";
  for (const Floor& floor : request.floors) {
    out << ", floor (" << floor.resume_at << ", " << floor.replay_start
        << ", layers >= " << floor.layer_begin << ")";
  }
  for (const TwoWaySpan& span : request.spans) {
    out << ", span [" << span.begin << ", " << span.end << ")";
  }
  return out.str();
}

}  // namespace torpor::replay
