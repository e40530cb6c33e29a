// SPDX-License-Identifier: Apache-2.0
//
// The FFN of a layer: routed experts and a shared one (DeepSeek V4.1 section
// 2.10). A row's result is summed over its experts in ascending order, then the
// shared one, in f32: rows beside it change nothing. Not thread-safe.

#ifndef TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_
#define TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_

#include <cstdint>
#include <span>

#include "replay/deepseek_v41/config.h"
#include "replay/deepseek_v41/row_math.h"
#include "replay/deepseek_v41/weights.h"
#include "replay/row_batch.h"

namespace torpor::replay::deepseek_v41 {

class ExpertSite {
 public:
  // Both outlive it.
  ExpertSite(const Config& config, RowMath* math);

  // `x` is [rows of `runs`, hidden], normed; so is the result, not normed.
  FloatRows Run(uint32_t layer, const FfnWeights& w,
                std::span<const RowRun> runs, const FloatRows& x);

 private:
  void Route(uint32_t layer, const FfnWeights& w, std::span<const RowRun> runs,
             const FloatRows& x);
  void ShowChoices(uint32_t layer, std::span<const RowRun> runs);
  // Of every row's experts, by entry: [rows, n_active * hidden].
  FloatRows RunRouted(const FfnWeights& w, const FloatRows& x);
  FloatRows RunShared(const ExpertWeights& w, const FloatRows& x);

  const Config& c_;
  RowMath& math_;
  // What kernels/experts.h says of the rows at hand.
  kernels::Buffer<int32_t> experts_;
  kernels::Buffer<int32_t> first_;
  kernels::Buffer<int32_t> rows_;
  kernels::Buffer<int32_t> entries_;
  Floats weights_;
};

}  // namespace torpor::replay::deepseek_v41

#endif  // TORPOR_REPLAY_DEEPSEEK_V41_EXPERTS_H_
