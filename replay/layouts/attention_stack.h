// SPDX-License-Identifier: Apache-2.0
//
// What most families say of their cache: for each layer the kind of attention,
// how far it looks back, and the shape of its K and V rows. A family's file
// fills one in from its config keys; the layout follows from it. Plain values.

#ifndef TORPOR_REPLAY_LAYOUTS_ATTENTION_STACK_H_
#define TORPOR_REPLAY_LAYOUTS_ATTENTION_STACK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "replay/model_layout.h"

namespace torpor::replay::layouts {

enum class LayerKind : uint8_t { kFull, kSliding, kChunked };

struct LayerSpec {
  LayerKind kind = LayerKind::kFull;
  // Tokens of the window or chunk; 0 for full layers.
  int64_t reach = 0;
  int64_t n_kv_heads = 0;
  // Elements of one head's K and V. A layer without V keeps one row a token
  // that serves for both.
  int64_t k_dim = 0;
  int64_t v_dim = 0;
  // The layer whose rows it reads, itself or one below; -1 = itself.
  int64_t owner = -1;
};

struct AttentionStack {
  int64_t vocab_size = 0;
  // Positions that the model knows: a window of as many is no window.
  int64_t max_positions = 0;
  std::vector<LayerSpec> layers;
  // Config keys that the size of a row comes from, for messages.
  std::string row_keys = "'num_key_value_heads' and 'head_dim'";
  // Draft layers behind the last one, which the layout leaves out.
  int64_t n_draft_layers = 0;
};

// How an element of a row is stored.
struct KvFormat {
  // For example "bf16".
  std::string name;
  int64_t bytes = 0;
};

// "bf16", "f16" or "f32" as asked; for "native" the dtype that the config names
// (bf16 where `native` is empty). kInvalidArgument for other names.
absl::StatusOr<KvFormat> KvFormatOf(const std::string& asked,
                                    const std::string& native);

// kInvalidArgument names the keys whose rows would not fit a layout.
absl::Status CheckStack(const AttentionStack& stack, const KvFormat& format);

// Slots "layer.N.k" and "layer.N.v" of each layer that owns rows, or
// "layer.N.latent" where K and V are one. Windows come back by replay, unless
// they hold every position that the model knows: those persist.
// REQUIRES: CheckStack is OK.
ModelLayout BuildLayout(const AttentionStack& stack, const std::string& family,
                        const KvFormat& format);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_ATTENTION_STACK_H_
