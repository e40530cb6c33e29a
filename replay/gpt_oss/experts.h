// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward of a gpt-oss layer: each row's experts, behind a softmax
// over the logits of those alone, summed in ascending order. Rows beside a row
// change nothing of it (design D9). Not thread-safe.

#ifndef TORPOR_REPLAY_GPT_OSS_EXPERTS_H_
#define TORPOR_REPLAY_GPT_OSS_EXPERTS_H_

#include <cstdint>

#include "kernels/ops.h"
#include "replay/activations.h"
#include "replay/gpt_oss/config.h"
#include "replay/gpt_oss/weights.h"

namespace torpor::replay::gpt_oss {

class Experts {
 public:
  // Both outlive it.
  Experts(const Config& config, kernels::DType dtype, kernels::Ops* ops);

  // `logits` are the router's, [n_rows, n_experts] f32, and are changed; `x` is
  // [n_rows, hidden] of `dtype`. The result, [n_rows, hidden] f32, is valid
  // until the next call.
  const Floats& Run(const ExpertWeights& w, int64_t n_rows, Floats* logits,
                    const void* x);

  // Floats of a row in its buffers.
  int64_t WorkFloats() const;

 private:
  // Says which entries are whose.
  void Route(int64_t n_rows, Floats* logits);

  const Config& c_;
  const kernels::DType dtype_;
  kernels::Ops& ops_;
  // What kernels/experts.h says of the rows at hand.
  kernels::Buffer<int32_t> experts_;
  kernels::Buffer<int32_t> first_;
  kernels::Buffer<int32_t> rows_;
  kernels::Buffer<int32_t> entries_;
  Floats weights_;
  // By entry.
  Floats gate_up_;
  Activations gated_;
  Floats down_;
  Floats sum_;
};

}  // namespace torpor::replay::gpt_oss

#endif  // TORPOR_REPLAY_GPT_OSS_EXPERTS_H_
