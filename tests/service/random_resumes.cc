// SPDX-License-Identifier: Apache-2.0

#include "tests/service/random_resumes.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_format.h"
#include "tests/replay/layout_builder.h"

namespace torpor::service {
namespace {

using replay::ModelLayout;
using replay::Slot;
using testing::Random;

uint64_t Minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

uint32_t RandomWindow(Random& random) {
  constexpr uint32_t kWindows[] = {1,   2,   3,   5,    16,   33,   64,
                                   128, 257, 512, 1024, 1025, 4096, 8192};
  return kWindows[random.Between(0, std::size(kWindows) - 1)];
}

uint32_t SmallRow(Random& random) {
  return static_cast<uint32_t>(random.Between(1, 8));
}

void AddPooled(Random& random, uint32_t layer, ModelLayout* layout) {
  constexpr uint32_t kRatios[] = {1, 2, 3, 4, 8, 128};
  const uint32_t ratio = kRatios[random.Between(0, std::size(kRatios) - 1)];
  const std::string name = absl::StrFormat("layer%d.pooled", layer);
  layout->slots.push_back(
      replay::PooledSlot(name, layer, ratio, SmallRow(random)));
  const uint32_t overlap = random.OneIn(2) ? 0 : ratio;
  if (ratio > 1 || overlap > 0) {
    layout->slots.push_back(
        replay::OpenGroupSlot(name + ".open", layer, ratio, overlap, 2));
  }
}

// One of 1 to `max`, most often at an edge of a block, a window or the exact
// length, or next to it.
uint64_t EdgeLength(Random& random, const RegisteredModel& model,
                    uint64_t max) {
  uint64_t n = random.Between(1, max);
  const uint64_t edge = random.Between(0, 5);
  if (edge == 0) {
    n = model.block_size * random.Between(1, 3);
  } else if (edge == 1) {
    n = n / model.block_size * model.block_size;
  } else if (edge == 2 && !model.layout.slots.empty()) {
    n = model.layout.slots[random.Between(0, model.layout.slots.size() - 1)]
            .reach();
  } else if (edge == 3) {
    n = 0;
    for (const Slot& slot : model.layout.slots) {
      if (slot.come_back == replay::ComeBack::kReplay) {
        n += Minus(slot.reach(), 1);
      }
    }
  } else if (edge == 4) {
    n = random.Between(1, 40);
  }
  n += random.Between(0, 2);
  return std::clamp<uint64_t>(Minus(n, 1), 1, max);
}

}  // namespace

ModelLayout UniformLayout(Random& random) {
  std::string layers = "f";
  for (uint64_t i = random.Between(1, 7); i > 0; --i) {
    layers += random.OneIn(3) ? 'f' : 's';
  }
  std::shuffle(layers.begin(), layers.end(), random.engine());
  return replay::LayoutOf(layers, RandomWindow(random), 2, SmallRow(random));
}

ModelLayout MixedLayout(Random& random) {
  ModelLayout layout;
  layout.family = "random";
  layout.vocab_size = 100;
  layout.n_layers = static_cast<uint32_t>(random.Between(1, 8));
  const auto chunk = static_cast<uint32_t>(random.Between(1, 40));
  const uint32_t windows[] = {RandomWindow(random), RandomWindow(random)};
  for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
    const uint64_t kind = random.Between(0, 9);
    if (kind < 3) {
      layout.slots.push_back(replay::FullSlot(layer, SmallRow(random)));
    } else if (kind < 7) {
      layout.slots.push_back(
          replay::SlidingSlot(layer, windows[random.Between(0, 1)], 2));
    } else if (kind < 8) {
      layout.slots.push_back(replay::ChunkedSlot(layer, chunk, 2));
    } else if (layout.slots.empty() || kind < 9) {
      AddPooled(random, layer, &layout);
    } else {
      // Reads what a lower layer owns.
      Slot& slot = layout.slots[random.Between(0, layout.slots.size() - 1)];
      if (slot.reader_layers.back() != layer &&
          slot.kind != replay::SlotKind::kOpenGroup) {
        slot.reader_layers.push_back(layer);
      }
    }
    if (random.OneIn(6)) AddPooled(random, layer, &layout);
    if (random.OneIn(6) && layout.slots.back().is_window()) {
      // As long as the model, say: then its rows persist.
      layout.slots.back().come_back = replay::ComeBack::kPersist;
    }
    for (size_t i = 0; i < layout.slots.size(); ++i) {
      layout.slots[i].name = absl::StrFormat("slot %d", i);
    }
  }
  if (random.OneIn(6)) {
    // A draft's window: no layer reads it.
    layout.slots.push_back(
        replay::SlidingSlot(layout.n_layers - 1, windows[0], 2));
    layout.slots.back().name = "draft";
    layout.slots.back().reader_layers.clear();
  }
  return layout;
}

uint32_t RandomBlock(Random& random, const ModelLayout& layout) {
  uint64_t unit = 1;
  for (const uint32_t s : layout.CompactSlots()) {
    unit = std::lcm(unit, uint64_t{layout.slots[s].tokens_per_row});
  }
  constexpr uint64_t kBlocks[] = {16, 17, 24, 64, 128, 250, 512, 1024, 4096};
  const uint64_t about = kBlocks[random.Between(0, std::size(kBlocks) - 1)];
  return static_cast<uint32_t>((about + unit - 1) / unit * unit);
}

std::vector<store::ExtraKeySpan> RandomSpans(Random& random, uint64_t begin,
                                             uint64_t end, uint64_t kv_len) {
  std::vector<store::ExtraKeySpan> spans;
  uint64_t at = begin;
  for (uint64_t i = random.Between(1, 4); i > 0 && at < end; --i) {
    store::ExtraKeySpan span;
    // Near the end as often as not: there a replay meets it.
    span.begin = random.Between(
        random.OneIn(2) ? at : std::max(at, Minus(end, 40)), end - 1);
    span.end = std::min(end, span.begin + random.Between(1, 30));
    span.key = absl::StrFormat("image %d", random.Between(0, 1'000'000));
    span.bidirectional = !random.OneIn(3);
    at = span.end;
    if (span.begin < kv_len && kv_len < span.end) continue;
    spans.push_back(span);
  }
  return spans;
}

StoredSession::Step RandomStep(Random& random, const StoredSession& session,
                               uint64_t max) {
  StoredSession::Step step;
  step.whole_pieces = random.OneIn(3);
  const uint64_t n = session.n_tokens();
  // Most often all stay; else the tail, or all but a few, is written anew.
  step.tokens_kept = n;
  if (n > 0 && random.OneIn(3)) {
    step.tokens_kept = random.OneIn(2)
                           ? random.Between(0, n)
                           : Minus(n, random.Between(1, 2 * kMaxLookahead));
  }
  step.tokens_kept = LegalCut(session.tokens(), step.tokens_kept);
  const uint64_t target = EdgeLength(random, session.model(), max);
  step.n_new = target > step.tokens_kept
                   ? target - step.tokens_kept
                   : random.Between(0, 2 * session.model().block_size);
  step.n_new =
      std::min(step.n_new, max + 100 - std::min(max, step.tokens_kept));
  const uint64_t lookahead =
      random.OneIn(2) ? 0 : random.Between(0, kMaxLookahead);
  if (step.tokens_kept + step.n_new == 0) step.n_new = 1;
  const uint64_t total = step.tokens_kept + step.n_new;
  // Of the tokens that stay, none of a span's is left without rows alone.
  step.kv_len = Minus(total, lookahead);
  if (step.kv_len < step.tokens_kept) {
    step.kv_len = LegalCut(session.tokens(), step.kv_len);
  }
  return step;
}

Asked RandomQuestion(Random& random, const StoredSession& session) {
  Asked asked;
  v1::BeginResumeHeader& header = asked.header;
  const uint64_t n = session.n_tokens();
  const uint64_t how = random.Between(0, 3);
  if (how != 0) header.set_session(session.id());
  if (how != 0 && random.OneIn(2)) header.set_version(session.version());
  if (how == 0) header.set_model(session.model().name);
  if (how <= 1) {
    // As it is, shorter, longer, or parting somewhere.
    store::TokenRun& prompt = asked.prompt.emplace(session.tokens());
    const uint64_t change = random.Between(0, 4);
    const uint64_t at =
        random.OneIn(2)
            ? random.Between(0, n - 1)
            : std::min(n - 1, EdgeLength(random, session.model(), n));
    if (change == 0) {
      prompt.ids.resize(at + 1);
      std::erase_if(prompt.spans, [&](const store::ExtraKeySpan& span) {
        return span.begin > at;
      });
      for (auto& span : prompt.spans) span.end = std::min(span.end, at + 1);
    } else if (change <= 2) {
      prompt.ids[at] ^= 1;
    } else if (change == 3 && !prompt.spans.empty()) {
      prompt.spans[random.Between(0, prompt.spans.size() - 1)].key +=
          " of else";
    }
    if (random.OneIn(2)) {
      for (uint64_t i = random.Between(1, 20); i > 0; --i) {
        prompt.ids.push_back(static_cast<uint32_t>(i));
      }
    }
  }
  if (random.OneIn(2)) {
    const uint64_t cut = random.OneIn(2)
                             ? random.Between(1, n + (random.OneIn(9) ? 2 : 0))
                             : EdgeLength(random, session.model(), n);
    header.set_cut(random.OneIn(8) ? cut : LegalCut(session.tokens(), cut));
  }
  constexpr v1::ReplayMode kModes[] = {
      v1::REPLAY_MODE_BOUNDED, v1::REPLAY_MODE_BOUNDED, v1::REPLAY_MODE_EXACT,
      v1::REPLAY_MODE_EXACT,   v1::REPLAY_MODE_AUTO,    v1::REPLAY_MODE_AUTO};
  header.set_mode(random.OneIn(20) ? v1::REPLAY_MODE_COLD
                                   : kModes[random.Between(0, 5)]);
  header.set_engine_replays(true);
  header.set_want_logits(random.OneIn(4));
  v1::ResumeLimits& limits = *header.mutable_limits();
  limits.set_allow_cold(header.mode() == v1::REPLAY_MODE_COLD ||
                        random.OneIn(4));
  const uint64_t least = session.model().layout.LargestWindow();
  if (random.OneIn(2)) {
    limits.set_replay_tokens(least + random.Between(0, 1) *
                                         random.Between(0, 2 * least + 8));
  }
  if (random.OneIn(2)) {
    limits.set_max_replay_tokens(random.Between(1, 3 * least + 8));
  }
  if (random.OneIn(4)) limits.set_max_error(0.5);
  return asked;
}

Asked BoundedWake(Random& random, const StoredSession& session) {
  Asked asked;
  asked.header.set_session(session.id());
  asked.header.set_mode(v1::REPLAY_MODE_BOUNDED);
  asked.header.set_engine_replays(true);
  if (random.OneIn(3)) {
    asked.header.set_cut(LegalCut(
        session.tokens(), Minus(session.kv_len(), random.Between(0, 30))));
  }
  return asked;
}

}  // namespace torpor::service
