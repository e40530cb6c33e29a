// SPDX-License-Identifier: Apache-2.0
//
// What DeepSeek V4 and V4.1 store in a row, in their own records and in plain
// ones; and slots of them.

#ifndef TORPOR_REPLAY_LAYOUTS_DEEPSEEK_RECORDS_H_
#define TORPOR_REPLAY_LAYOUTS_DEEPSEEK_RECORDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "replay/config_json.h"
#include "replay/model_layout.h"

namespace torpor::replay::layouts {

struct RowRecord {
  // Names the quantiser as well as the elements.
  std::string format;
  // Bytes of a row.
  int64_t bytes = 0;
};

struct DeepSeekRecords {
  RowRecord window;
  // A compressed entry, and its key in the indexer.
  RowRecord main;
  RowRecord index;
};

// Widths of a row's vectors, in elements.
struct DeepSeekShape {
  int64_t vocab_size = 0;
  int64_t n_layers = 0;
  // head_dim; the last rope_dim of them are rotated.
  int64_t head_dim = 0;
  int64_t rope_dim = 0;
  int64_t index_dim = 0;
  int64_t window = 0;
  int64_t max_positions = 0;
};

// Reads the keys both families have.
DeepSeekShape ReadDeepSeekShape(ConfigReader* reader,
                                const DeepSeekShape& defaults);

// V4: 448 E4M3 with a scale per 64, 64 bf16 and padding to 8 bytes (584 in all)
// for window and main; E2M1 with a scale per 32 for keys (68).
// V4.1: E4M3 with a scale per 32 for windows (528), E2M1 with a scale per 16
// for main (288), keys as V4. Anything but "native" is plain elements.
// kInvalidArgument where head_dim or index_head_dim is no multiple of what a
// scale covers.
absl::StatusOr<DeepSeekRecords> V4Records(const DeepSeekShape& shape,
                                          const std::string& kv_dtype);
absl::StatusOr<DeepSeekRecords> V41Records(const DeepSeekShape& shape,
                                           const std::string& kv_dtype);

// Slots that their own layer reads, replicated over ranks, as one latent serves
// all heads.
Slot WindowSlot(const DeepSeekShape& shape, int64_t layer,
                const RowRecord& record);
Slot PooledSlot(const char* part, int64_t layer, int64_t ratio,
                const RowRecord& record);
// What pooling has gathered of a group that is not complete: `n_floats` of f32
// a token, also of the `overlap` tokens before the group.
Slot OpenSlot(const char* part, int64_t layer, int64_t ratio, int64_t overlap,
              int64_t n_floats);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_DEEPSEEK_RECORDS_H_
