// SPDX-License-Identifier: Apache-2.0
//
// The inventory of every buffer an engine holds for one model (design D2), and
// the sizes that follow from it. A layout says how each buffer comes back after
// a sleep; it knows nothing of weights. Plain values.

#ifndef TORPOR_REPLAY_MODEL_LAYOUT_H_
#define TORPOR_REPLAY_MODEL_LAYOUT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace torpor::replay {

// Numbers are frozen: they stand in registered models.
enum class SlotKind : uint8_t {
  // Readers attend to every token.
  kFull = 1,
  // Readers attend to the last `window` tokens, themselves included.
  kSliding = 2,
  // Readers attend to the tokens of their own chunk, [floor(i / chunk) * chunk,
  // i].
  kChunked = 3,
  // One row per `tokens_per_row` tokens, written when the group closes.
  kPooled = 4,
  // Rows of the pooled group that is not complete at the cut, and of
  // `overlap_tokens` tokens before it.
  kOpenGroup = 5,
  // A state carried from token to token; one row a session.
  kRecurrent = 6,
};

enum class ComeBack : uint8_t {
  kPersist = 1,
  kReplay = 2,
  // A function of the token ids alone.
  kDerive = 3,
  kSnapshot = 4,
};

enum class ShardAxis : uint8_t { kReplicated = 1, kHeads = 2, kLayers = 3 };

std::string_view SlotKindName(SlotKind kind);
std::string_view ComeBackName(ComeBack come_back);

struct Slot {
  std::string name;
  SlotKind kind = SlotKind::kFull;
  // Rows are a function of the input of this layer ...
  uint32_t owner_layer = 0;
  // ... and read by these, ascending, none of them below the owner. A replayed
  // window that none reads is that of a draft model beside the layers.
  std::vector<uint32_t> reader_layers;
  // Tokens; sliding only.
  uint32_t window = 0;
  // Tokens; chunked only.
  uint32_t chunk = 0;
  // Pooled and open-group slots: tokens of a group, which is one row of a
  // pooled slot alone. Else 1.
  uint32_t tokens_per_row = 1;
  // Open-group slots: tokens before the group that its pooling also reads.
  uint32_t overlap_tokens = 0;
  // Bytes of one unsharded row.
  uint32_t row_bytes = 0;
  // What a row's bytes are, for example "bf16".
  std::string format;
  ShardAxis shard_axis = ShardAxis::kReplicated;
  // Parts that a row may be cut into when sharded by heads.
  uint32_t n_heads = 1;
  ComeBack come_back = ComeBack::kPersist;

  // Window or chunk: how far back a reader can look. 0 for other kinds.
  [[nodiscard]] uint64_t reach() const {
    return kind == SlotKind::kSliding   ? window
           : kind == SlotKind::kChunked ? chunk
                                        : 0;
  }
  [[nodiscard]] bool is_window() const {
    return kind == SlotKind::kSliding || kind == SlotKind::kChunked;
  }
  [[nodiscard]] bool is_draft() const {
    return is_window() && come_back == ComeBack::kReplay &&
           reader_layers.empty();
  }
  friend bool operator==(const Slot&, const Slot&) = default;
};

// Rows [begin, end) of a slot; positions for window and full slots.
struct Rows {
  uint64_t begin = 0;
  uint64_t end = 0;

  [[nodiscard]] uint64_t size() const { return end - begin; }
  friend bool operator==(const Rows&, const Rows&) = default;
};

// Rows of a slot that stand for tokens [begin, end): whole groups of a pooled
// slot, one a token of any other, an open group included. Of a recurrent state,
// which stands for no token, none.
Rows RowsOf(const Slot& slot, uint64_t begin, uint64_t end);

struct ModelLayout {
  // For example "gemma3_text".
  std::string family;
  uint32_t n_layers = 0;
  uint32_t vocab_size = 0;
  std::vector<Slot> slots;

  // kInvalidArgument names the slot or layer that cannot be;
  // kFailedPrecondition for a recurrent state that is not snapshotted, since no
  // replay of a bounded length rebuilds it, and for a replay that would have to
  // pass through a layer whose state is a snapshot.
  [[nodiscard]] absl::Status Validate() const;

  // Slots with a row (or part of one) per token that persist, in order.
  [[nodiscard]] std::vector<uint32_t> CompactSlots() const;
  // Window slots that replay rebuilds, in order.
  [[nodiscard]] std::vector<uint32_t> ReplaySlots() const;
  // Slots that a snapshot holds, in order: those that replay rebuilds, and
  // those that nothing but a snapshot brings back.
  [[nodiscard]] std::vector<uint32_t> SnapshotSlots() const;

  // The largest window or chunk that replay rebuilds; 0 when there is none.
  [[nodiscard]] uint64_t LargestWindow() const;

  friend bool operator==(const ModelLayout&, const ModelLayout&) = default;
};

// Sizes of a layout (design.md, "plan means"). Draft windows are counted by
// their own figure alone.
struct LayoutFigures {
  // Persisted rows.
  double compact_bytes_per_token = 0;
  // The same and every window row of every token kept.
  double all_window_bytes_per_token = 0;
  // Window rows of draft models, were every token's kept.
  double draft_bytes_per_token = 0;
  // all / compact; 0 when compact is 0.
  double ratio = 0;
  // Window rows of one cut at n tokens, sum of min(W - 1, n) x row bytes, and
  // the states at it.
  uint64_t snapshot_bytes = 0;
  // The shortest bounded replay, and the exact one, in tokens; without logits
  // and not clamped to n. For chunked layers the largest over all cuts, where
  // chunks of different sizes meet in fewer than about a million tokens; else
  // that of the cut at which all chunks are all but full.
  uint64_t bounded_tokens = 0;
  uint64_t exact_tokens = 0;
  // Rows that run attention and FFN in an exact replay, all layers.
  uint64_t exact_token_layers = 0;
};
LayoutFigures FiguresOf(const ModelLayout& layout, uint64_t n_tokens);

// Tokens a block: a multiple of every group, at least 16, block bytes about
// 256 KiB to 1 MiB and filling pages; 1,024 where nothing but tokens persists.
uint32_t ChooseBlockSize(const ModelLayout& layout);

}  // namespace torpor::replay

#endif  // TORPOR_REPLAY_MODEL_LAYOUT_H_
