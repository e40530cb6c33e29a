// SPDX-License-Identifier: Apache-2.0

#include "replay/model_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "replay/planner.h"

namespace torpor::replay {
namespace {

constexpr uint32_t kMaxLayers = 4096;
constexpr size_t kMaxSlots = 16'384;
constexpr uint32_t kMaxRowBytes = uint32_t{1} << 20;
constexpr uint32_t kMinBlockSize = 16;
constexpr size_t kMaxReaders = size_t{1} << 20;
constexpr uint32_t kMaxReach = uint32_t{1} << 24;
// Tokens; also of the least common multiple of all groups.
constexpr uint64_t kMaxGroup = 65'536;

bool IsKnown(SlotKind kind) {
  return kind >= SlotKind::kFull && kind <= SlotKind::kRecurrent;
}
bool IsKnown(ComeBack come_back) {
  return come_back >= ComeBack::kPersist && come_back <= ComeBack::kSnapshot;
}
bool IsKnown(ShardAxis axis) {
  return axis >= ShardAxis::kReplicated && axis <= ShardAxis::kLayers;
}

absl::Status Bad(const Slot& slot, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrFormat("slot '%s': %s", slot.name, what));
}

absl::Status ValidateComeBack(const Slot& slot) {
  switch (slot.kind) {
    case SlotKind::kFull:
    case SlotKind::kPooled:
      if (slot.come_back == ComeBack::kReplay) {
        return Bad(slot,
                   "every token reads it: a replay of it would be a prefill");
      }
      break;
    case SlotKind::kRecurrent:
      if (slot.come_back != ComeBack::kSnapshot) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "slot '%s' of layer %d: a recurrent state cannot be replayed from "
            "the last tokens; declare it as a snapshot",
            slot.name, slot.owner_layer));
      }
      break;
    case SlotKind::kOpenGroup:
      if (slot.come_back == ComeBack::kPersist) {
        return Bad(slot, "an open group has no rows that persist");
      }
      break;
    case SlotKind::kSliding:
    case SlotKind::kChunked:
      break;
  }
  return absl::OkStatus();
}

absl::Status ValidateSlot(const ModelLayout& layout, const Slot& slot) {
  if (!IsKnown(slot.kind) || !IsKnown(slot.come_back) ||
      !IsKnown(slot.shard_axis)) {
    return Bad(
        slot, absl::StrFormat(
                  "kind %d, come back %d, shard axis %d: one of them "
                  "is not known",
                  static_cast<int>(slot.kind), static_cast<int>(slot.come_back),
                  static_cast<int>(slot.shard_axis)));
  }
  if (slot.owner_layer >= layout.n_layers) {
    return Bad(slot, absl::StrFormat("owner layer %d, the model has %d",
                                     slot.owner_layer, layout.n_layers));
  }
  for (size_t i = 0; i < slot.reader_layers.size(); ++i) {
    const uint32_t reader = slot.reader_layers[i];
    if (reader >= layout.n_layers || reader < slot.owner_layer) {
      return Bad(slot,
                 absl::StrFormat("reader layer %d, wanted one of [%d, %d)",
                                 reader, slot.owner_layer, layout.n_layers));
    }
    if (i > 0 && reader <= slot.reader_layers[i - 1]) {
      return Bad(slot,
                 absl::StrFormat("reader layers: got %d behind %d, wanted "
                                 "them ascending",
                                 reader, slot.reader_layers[i - 1]));
    }
  }
  if (slot.row_bytes == 0 || slot.row_bytes > kMaxRowBytes) {
    return Bad(slot, absl::StrFormat("rows of %d bytes, wanted 1 to %d",
                                     slot.row_bytes, kMaxRowBytes));
  }
  if ((slot.kind == SlotKind::kSliding) != (slot.window > 0)) {
    return Bad(slot, absl::StrFormat("window %d: wanted above 0 for sliding "
                                     "slots, 0 for others",
                                     slot.window));
  }
  if ((slot.kind == SlotKind::kChunked) != (slot.chunk > 0)) {
    return Bad(slot, absl::StrFormat("chunk %d: wanted above 0 for chunked "
                                     "slots, 0 for others",
                                     slot.chunk));
  }
  if (slot.reach() > kMaxReach) {
    return Bad(slot, absl::StrFormat("window or chunk of %d tokens, wanted at "
                                     "most %d",
                                     slot.reach(), kMaxReach));
  }
  const bool grouped =
      slot.kind == SlotKind::kPooled || slot.kind == SlotKind::kOpenGroup;
  if (slot.tokens_per_row == 0 || (!grouped && slot.tokens_per_row != 1)) {
    return Bad(slot, absl::StrFormat("%d tokens a row, wanted 1 except for "
                                     "pooled groups",
                                     slot.tokens_per_row));
  }
  if (slot.tokens_per_row > kMaxGroup || slot.overlap_tokens > kMaxGroup) {
    return Bad(slot, absl::StrFormat(
                         "groups of %d tokens, overlap of %d, wanted at "
                         "most %d",
                         slot.tokens_per_row, slot.overlap_tokens, kMaxGroup));
  }
  if (slot.overlap_tokens != 0 && slot.kind != SlotKind::kOpenGroup) {
    return Bad(slot, "overlap tokens belong to open groups");
  }
  if (slot.n_heads == 0 || slot.row_bytes % slot.n_heads != 0) {
    return Bad(slot, absl::StrFormat("%d heads do not divide rows of %d bytes",
                                     slot.n_heads, slot.row_bytes));
  }
  return ValidateComeBack(slot);
}

// Rows below the cut run through every layer below a replayed slot's owner. A
// layer among them whose state comes back as of the cut cannot run them.
absl::Status ValidateReplay(const ModelLayout& layout) {
  const Slot* highest = nullptr;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back == ComeBack::kReplay &&
        (highest == nullptr || slot.owner_layer > highest->owner_layer)) {
      highest = &slot;
    }
  }
  if (highest == nullptr) return absl::OkStatus();
  for (const Slot& slot : layout.slots) {
    if (slot.come_back != ComeBack::kSnapshot ||
        slot.kind == SlotKind::kOpenGroup) {
      continue;
    }
    const uint32_t lowest_reader = slot.reader_layers.empty()
                                       ? slot.owner_layer
                                       : slot.reader_layers.front();
    if (lowest_reader < highest->owner_layer) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "slot '%s' of layer %d: cannot be replayed, since layer %d below "
          "needs slot '%s' of earlier tokens and that is a snapshot of the "
          "cut; declare both as snapshots",
          highest->name, highest->owner_layer, lowest_reader, slot.name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view SlotKindName(SlotKind kind) {
  switch (kind) {
    case SlotKind::kFull:
      return "full";
    case SlotKind::kSliding:
      return "sliding";
    case SlotKind::kChunked:
      return "chunked";
    case SlotKind::kPooled:
      return "pooled";
    case SlotKind::kOpenGroup:
      return "open group";
    case SlotKind::kRecurrent:
      return "recurrent";
  }
  return "unknown";
}

std::string_view ComeBackName(ComeBack come_back) {
  switch (come_back) {
    case ComeBack::kPersist:
      return "persist";
    case ComeBack::kReplay:
      return "replay";
    case ComeBack::kDerive:
      return "derive";
    case ComeBack::kSnapshot:
      return "snapshot";
  }
  return "unknown";
}

Rows RowsOf(const Slot& slot, uint64_t begin, uint64_t end) {
  switch (slot.kind) {
    case SlotKind::kPooled:
      return {begin / slot.tokens_per_row, end / slot.tokens_per_row};
    case SlotKind::kRecurrent:
      return {};
    case SlotKind::kFull:
    case SlotKind::kSliding:
    case SlotKind::kChunked:
    case SlotKind::kOpenGroup:
      break;
  }
  return {begin, end};
}

absl::Status ModelLayout::Validate() const {
  if (n_layers == 0 || n_layers > kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layout: %d layers, wanted 1 to %d", n_layers, kMaxLayers));
  }
  if (slots.size() > kMaxSlots) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "layout: %d slots, wanted at most %d", slots.size(), kMaxSlots));
  }
  std::set<std::string> names;
  size_t n_readers = 0;
  uint64_t group = kMinBlockSize;
  for (const Slot& slot : slots) {
    if (slot.name.empty() || !names.insert(slot.name).second) {
      return Bad(slot, "wanted a name of its own");
    }
    TORPOR_RETURN_IF_ERROR(ValidateSlot(*this, slot));
    n_readers += slot.reader_layers.size();
    group = std::lcm(group, uint64_t{slot.tokens_per_row});
    if (n_readers > kMaxReaders || group > kMaxGroup) {
      return Bad(slot, absl::StrFormat(
                           "with it %d readers and groups that close together "
                           "every %d tokens, wanted at most %d and %d",
                           n_readers, group, kMaxReaders, kMaxGroup));
    }
  }
  return ValidateReplay(*this);
}

std::vector<uint32_t> ModelLayout::CompactSlots() const {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i].come_back == ComeBack::kPersist) out.push_back(i);
  }
  return out;
}

std::vector<uint32_t> ModelLayout::ReplaySlots() const {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i].come_back == ComeBack::kReplay) out.push_back(i);
  }
  return out;
}

std::vector<uint32_t> ModelLayout::SnapshotSlots() const {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < slots.size(); ++i) {
    if (slots[i].come_back == ComeBack::kReplay ||
        slots[i].come_back == ComeBack::kSnapshot) {
      out.push_back(i);
    }
  }
  return out;
}

uint64_t ModelLayout::LargestWindow() const {
  uint64_t largest = 0;
  for (const Slot& slot : slots) {
    if (slot.come_back == ComeBack::kReplay) {
      largest = std::max(largest, slot.reach());
    }
  }
  return largest;
}

namespace {

// The largest exact figures of all cuts, far enough from the start that nothing
// is clamped. Windows alone: any cut. Else what a cut owes repeats
// with the least common multiple of the chunks.
void SetExactFigures(const ModelLayout& layout, LayoutFigures* figures) {
  constexpr uint64_t kMaxPeriod = uint64_t{1} << 32;
  constexpr uint64_t kMaxWork = uint64_t{1} << 28;
  uint64_t far = 1;
  uint64_t period = 1;
  std::set<std::pair<SlotKind, uint64_t>> reaches;
  for (const Slot& slot : layout.slots) {
    far += slot.reach() + slot.overlap_tokens + slot.tokens_per_row;
    if (slot.come_back != ComeBack::kReplay || !slot.is_window()) continue;
    reaches.insert({slot.kind, slot.reach()});
    if (slot.chunk == 0) continue;
    const uint64_t with = std::lcm(period, uint64_t{slot.chunk});
    if (with <= kMaxPeriod) period = with;
  }
  const uint64_t end = (far / period + 3) * period;
  // One chunk alone owes most when it is all but full.
  uint64_t begin = end - 1;
  const uint64_t work = period * (layout.n_layers + layout.slots.size());
  if (reaches.size() > 1 && work <= kMaxWork) begin = end - period;
  for (uint64_t cut = begin; cut < end; ++cut) {
    const absl::StatusOr<ReplayPlan> plan =
        PlanReplay(layout, {.resume_at = cut,
                            .mode = ReplayMode::kExact,
                            .open_groups_stored = true});
    if (!plan.ok()) continue;
    figures->exact_tokens =
        std::max(figures->exact_tokens, plan->replay_tokens());
    figures->exact_token_layers =
        std::max(figures->exact_token_layers, plan->token_layers);
  }
}

}  // namespace

LayoutFigures FiguresOf(const ModelLayout& layout, uint64_t n_tokens) {
  LayoutFigures figures;
  for (const Slot& slot : layout.slots) {
    const double per_token =
        static_cast<double>(slot.row_bytes) / slot.tokens_per_row;
    if (slot.is_draft()) {
      figures.draft_bytes_per_token += per_token;
      continue;
    }
    if (slot.come_back == ComeBack::kPersist) {
      figures.compact_bytes_per_token += per_token;
    }
    if (slot.come_back == ComeBack::kPersist || slot.is_window()) {
      figures.all_window_bytes_per_token += per_token;
    }
    if (slot.is_window() && slot.come_back != ComeBack::kPersist) {
      figures.snapshot_bytes +=
          std::min(slot.reach() - 1, n_tokens) * slot.row_bytes;
    } else if (slot.kind == SlotKind::kRecurrent) {
      figures.snapshot_bytes += slot.row_bytes;
    }
  }
  if (figures.compact_bytes_per_token > 0) {
    figures.ratio =
        figures.all_window_bytes_per_token / figures.compact_bytes_per_token;
  }
  figures.bounded_tokens = layout.LargestWindow();
  SetExactFigures(layout, &figures);
  return figures;
}

uint32_t ChooseBlockSize(const ModelLayout& layout) {
  constexpr uint64_t kLeast = 256 * 1024;
  constexpr uint64_t kMost = 1024 * 1024;
  constexpr uint64_t kPage = 4096;
  uint64_t unit = kMinBlockSize;
  double per_token = 0;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back != ComeBack::kPersist) continue;
    unit = std::lcm(unit, uint64_t{slot.tokens_per_row});
    per_token += static_cast<double>(slot.row_bytes) / slot.tokens_per_row;
  }
  if (per_token == 0) return 1024;
  // Of the sizes in range, the one that leaves the least of its last page
  // empty, per byte; of equal ones the largest.
  uint64_t best = unit;
  double best_waste = 1e300;
  for (uint64_t tokens = unit; tokens <= 64 * 1024; tokens += unit) {
    const auto bytes =
        static_cast<uint64_t>(per_token * static_cast<double>(tokens));
    if (bytes > kMost && tokens > unit) break;
    if (bytes < kLeast && tokens < 1024 &&
        static_cast<double>(tokens + unit) * per_token <= kMost) {
      continue;
    }
    // Header, directory, alignment and the tokens themselves.
    const uint64_t extra = 160 + layout.slots.size() * (48 + 32) + 4 * tokens;
    const uint64_t total = bytes + extra;
    const uint64_t pages = (total + kPage - 1) / kPage;
    const double waste =
        static_cast<double>(pages * kPage - bytes) / static_cast<double>(bytes);
    if (waste <= best_waste) {
      best_waste = waste;
      best = tokens;
    }
    if (tokens >= 1024 && bytes >= kLeast) break;
  }
  return static_cast<uint32_t>(best);
}

}  // namespace torpor::replay
