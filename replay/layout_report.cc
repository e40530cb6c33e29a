// SPDX-License-Identifier: Apache-2.0

#include "replay/layout_report.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace torpor::replay {
namespace {

constexpr uint64_t kTokenIdBytes = 4;

// The name with its first number that is a component of its own, which is the
// layer or draft, as N.
std::string GroupName(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view part =
        std::string_view(name).substr(begin, end - begin);
    if (!part.empty() &&
        part.find_first_not_of("0123456789") == std::string_view::npos) {
      return name.substr(0, begin) + "N" + name.substr(end);
    }
    begin = end + 1;
  }
  return name;
}

bool ReadByItselfAlone(const Slot& slot) {
  return slot.reader_layers == std::vector<uint32_t>{slot.owner_layer};
}

bool AreAlike(const Slot& a, const Slot& b) {
  // Readers besides the layer itself are shown, so they must be the same.
  const bool same_readers = ReadByItselfAlone(a)
                                ? ReadByItselfAlone(b)
                                : a.reader_layers == b.reader_layers;
  return same_readers && a.kind == b.kind && a.window == b.window &&
         a.chunk == b.chunk && a.tokens_per_row == b.tokens_per_row &&
         a.overlap_tokens == b.overlap_tokens && a.row_bytes == b.row_bytes &&
         a.format == b.format && a.shard_axis == b.shard_axis &&
         a.n_heads == b.n_heads && a.come_back == b.come_back;
}

// Rows of a window slot that a session of n tokens holds.
uint64_t WindowRows(const Slot& slot, uint64_t n_tokens) {
  return std::min(slot.reach() - 1, n_tokens);
}

bool IsReplayedWindow(const Slot& slot) {
  return slot.is_window() && !slot.is_draft() &&
         slot.come_back == ComeBack::kReplay;
}

// Sum of min(most, floor(n * i / turns)) over turns i = 1 to `turns`.
absl::uint128 RowsOverTurns(uint64_t most, uint64_t n, uint64_t turns) {
  // Turns from `first` on hold `most` rows: n * i / turns >= most.
  const absl::uint128 full_from =
      n == 0 ? absl::uint128{turns} + 1
             : (absl::uint128{most} * turns + n - 1) / n;
  const absl::uint128 first =
      std::min(std::max<absl::uint128>(full_from, 1), absl::uint128{turns} + 1);
  absl::uint128 sum = (absl::uint128{turns} + 1 - first) * most;
  // The windows grow over fewer turns than they have rows, or not at all
  // between many of them.
  for (absl::uint128 i = 1; i < first; ++i) sum += absl::uint128{n} * i / turns;
  return sum;
}

}  // namespace

std::vector<SlotGroup> GroupSlots(const ModelLayout& layout) {
  std::vector<SlotGroup> groups;
  for (const Slot& slot : layout.slots) {
    const std::string name = GroupName(slot.name);
    auto it = std::find_if(groups.begin(), groups.end(), [&](SlotGroup& g) {
      return g.name == name && AreAlike(g.slot, slot);
    });
    if (it == groups.end()) {
      it = groups.insert(groups.end(), {.name = name, .slot = slot});
    }
    it->layers.push_back(slot.owner_layer);
    it->bytes_per_token +=
        static_cast<double>(slot.row_bytes) / slot.tokens_per_row;
  }
  return groups;
}

std::string LayerRanges(const std::vector<uint32_t>& layers) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < layers.size();) {
    // The longest run of equal steps; two alone make a run only when they are
    // neighbours.
    size_t end = begin + 1;
    const uint32_t step = end < layers.size() ? layers[end] - layers[begin] : 0;
    while (end < layers.size() && layers[end] - layers[end - 1] == step) ++end;
    if (end - begin > 2 && step > 1) {
      parts.push_back(
          absl::StrFormat("%d-%d by %d", layers[begin], layers[end - 1], step));
    } else if (end - begin > 1 && step == 1) {
      parts.push_back(absl::StrFormat("%d-%d", layers[begin], layers[end - 1]));
    } else {
      end = begin + 1;
      parts.push_back(std::to_string(layers[begin]));
    }
    begin = end;
  }
  return absl::StrJoin(parts, ", ");
}

std::vector<PersistedWindow> PersistedWindows(const ModelLayout& layout) {
  std::vector<PersistedWindow> out;
  for (const Slot& slot : layout.slots) {
    if (!slot.is_window() || slot.come_back != ComeBack::kPersist) continue;
    auto it = std::find_if(out.begin(), out.end(), [&](PersistedWindow& w) {
      return w.reach == slot.reach();
    });
    if (it == out.end()) it = out.insert(out.end(), {slot.reach(), {}});
    if (it->layers.empty() || it->layers.back() != slot.owner_layer) {
      it->layers.push_back(slot.owner_layer);
    }
  }
  return out;
}

absl::StatusOr<FleetFigures> FleetFiguresOf(const ModelLayout& layout,
                                            const FleetRequest& request) {
  // Beyond these the figures mean nothing, and 128 bits hold every product.
  constexpr uint64_t kMost = uint64_t{1} << 40;
  constexpr uint64_t kMostTurns = uint64_t{1} << 16;
  if (request.n_sessions > kMost || request.n_tokens > kMost ||
      request.n_turns == 0 || request.n_turns > kMostTurns) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fleet: got %d sessions of %d tokens in %d turns, wanted at most %d, "
        "%d and 1 to %d",
        request.n_sessions, request.n_tokens, request.n_turns, kMost, kMost,
        kMostTurns));
  }
  absl::uint128 compact = 0;
  absl::uint128 all_windows = 0;
  absl::uint128 last_windows = 0;
  absl::uint128 turn_windows = 0;
  // By reach: a model has few.
  std::map<uint64_t, absl::uint128> turn_rows;
  for (const Slot& slot : layout.slots) {
    if (slot.come_back == ComeBack::kPersist) {
      // Only whole groups have a row.
      compact += absl::uint128{request.n_tokens / slot.tokens_per_row} *
                 slot.row_bytes;
    }
    if (!IsReplayedWindow(slot)) continue;
    all_windows += absl::uint128{request.n_tokens} * slot.row_bytes;
    last_windows +=
        absl::uint128{WindowRows(slot, request.n_tokens)} * slot.row_bytes;
    const auto [rows, is_new] = turn_rows.try_emplace(slot.reach(), 0);
    if (is_new) {
      rows->second =
          RowsOverTurns(slot.reach() - 1, request.n_tokens, request.n_turns);
    }
    turn_windows += rows->second * slot.row_bytes;
  }
  bool too_much = false;
  const auto fleet = [&](absl::uint128 of_session) {
    const absl::uint128 bytes = of_session * request.n_sessions;
    too_much = too_much || bytes > (absl::uint128{1} << 62);
    return static_cast<uint64_t>(bytes);
  };
  FleetFigures out;
  // An engine that knows of windows holds no more of them than they reach.
  const uint64_t awake = fleet(compact + last_windows);
  out.every_window_row = {fleet(compact + all_windows),
                          fleet(compact + all_windows)};
  out.snapshot_per_turn = {fleet(compact + turn_windows), awake};
  out.snapshot_per_session = {fleet(compact + last_windows), awake};
  out.torpor = {fleet(compact), awake};
  out.token_id_bytes = fleet(absl::uint128{request.n_tokens} * kTokenIdBytes);
  if (too_much) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fleet: %d sessions of %d tokens need more than 2^62 bytes",
        request.n_sessions, request.n_tokens));
  }
  return out;
}

}  // namespace torpor::replay
