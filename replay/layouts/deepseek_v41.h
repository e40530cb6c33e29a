// SPDX-License-Identifier: Apache-2.0
//
// Which layers of DeepSeek V4.1 write compressed rows, which choose among them,
// and which read whose: what the layout and the forward both follow.

#ifndef TORPOR_REPLAY_LAYOUTS_DEEPSEEK_V41_H_
#define TORPOR_REPLAY_LAYOUTS_DEEPSEEK_V41_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "replay/config_json.h"
#include "replay/layouts/deepseek_records.h"
#include "replay/model_layout.h"

namespace torpor::replay::layouts {

struct V41Schedule {
  DeepSeekShape shape;
  // Per layer: tokens of a compressed entry, 0 = the layer reads none.
  std::vector<int64_t> ratios;
  // Per layer: the layer whose entries it reads, -1 = none.
  std::vector<int64_t> kv_source;
  // Layers that choose entries, ascending.
  std::vector<int64_t> index_sources;
};

// Faults go to the reader's status.
V41Schedule ReadV41Schedule(ConfigReader* reader);

// Windows, entries, keys and open groups, without draft windows.
absl::StatusOr<ModelLayout> V41LayoutOf(const V41Schedule& schedule,
                                        const std::string& kv_dtype);

}  // namespace torpor::replay::layouts

#endif  // TORPOR_REPLAY_LAYOUTS_DEEPSEEK_V41_H_
