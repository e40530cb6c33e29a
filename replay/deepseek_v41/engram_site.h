// SPDX-License-Identifier: Apache-2.0
//
// What an Engram adds to the streams of a row (DeepSeek V4.1 section 2.11):
//   e = the table's rows for the row's n-grams, one after the other
//   [key_1 .. key_S, value] = Wkv e
//   t_j = <X_j qk_j, key_j> / (rms(X_j) rms(key_j) sqrt(hidden))
//   X_j += sigmoid(copysign(sqrt(max(|t_j|, 1e-6)), t_j)) value

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_SITE_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_SITE_H_

#include <cstdint>
#include <span>

#include "kernels/cpu_ops.h"
#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/engram.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/deepseek_v41/weights.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

// `x` is [rows of `runs`, streams * hidden], added to in place. Ids come from
// the batch's segments and their histories; `host` decodes the table's rows,
// which stay in the host's memory until they are looked up.
void AddEngram(const Config& config, size_t table, const EngramIndex& index,
               const EngramWeights& w, const RowBatch& batch,
               std::span<const RowRun> runs, FloatRows* x, RowMath* math,
               kernels::CpuOps* host);

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_ENGRAM_SITE_H_
