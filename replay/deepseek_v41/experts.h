// SPDX-License-Identifier: Apache-2.0
//
// The FFN of a layer: routed experts and a shared one (DeepSeek V4.1 section
// 2.10). A row's result is summed over its experts in ascending order, then the
// shared one, in f32: rows beside it change nothing.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_

#include <cstdint>
#include <span>

#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/deepseek_v41/weights.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

// `x` is [rows of `runs`, hidden], normed; so is the result, not normed.
FloatRows RunExperts(const Config& config, uint32_t layer, const FfnWeights& w,
                     std::span<const RowRun> runs, std::span<const float> x,
                     RowMath* math);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_
